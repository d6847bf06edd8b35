package manifest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/capability/manifest"
)

// wide is a manifest with all kinds of effects.
const wide = `(capability "a.b" :version "1.0.0" :effects [:network :fs]
	:runtime {:type :microvm :image "x" :entrypoint ["x"]}
	:filesystem {:quota-mb 10 :mounts [{:host "src" :guest "/app"}]}
	:network {:allowed-hosts ["api.example.com" "*.cdn.example" "10.0.0.0/24"] :allowed-ports [443] :egress-rate-limit 10
	          :inject [{:secret :TOKEN :host "api.example.com"}]}
	:secrets [:KEY :TOKEN]
	:resources {:cpu-shares 100 :memory-mb 64 :timeout-ms 1000 :network-bytes 1000 :pids 5}
	:approval {:tier :elevated :requires-per-use true}
	:data-classes {:input [:pii.chat]})`

// changes are modifications of wide with their expected effects.
var changes = []struct {
	old, new string
	want     []string
}{
	{`"1.0.0"`, `"1.1.0"`, nil},
	{`"x" :entrypoint`, `"y" :entrypoint`, nil},

	{`[:network :fs]`, `[:network :fs :state :exec]`, []string{"changes what is kept (:state)", "runs programs (:exec)"}},
	{`:type :microvm`, `:type :container`, []string{"runs as :container and no longer as :microvm"}},
	{`:type :microvm`, `:type :gvisor`, []string{"runs as :gvisor and no longer as :microvm"}},

	{`"api.example.com" "*`, `"api.example.com" "www.example.com" "*`, []string{"reaches www.example.com"}},
	{`"api.example.com" "*`, `"api.example.com" "a.cdn.example" "*.b.cdn.example" "*`, nil},
	{`"*.cdn.example"`, `"cdn.example"`, []string{"reaches cdn.example"}},
	{`"*.cdn.example"`, `"*.example"`, []string{"reaches every host below example"}},
	{`"*.cdn.example"`, `"*"`, []string{"reaches every host of the Internet"}},
	{`"10.0.0.0/24"`, `"10.0.0.7"`, nil},
	{`"10.0.0.0/24"`, `"10.0.0.0/23"`, []string{"reaches 10.0.0.0/23, which is not of the Internet but of this host's own network"}},
	{`"10.0.0.0/24"`, `"127.0.0.1"`, []string{"reaches 127.0.0.1, which is this host itself"}},
	{`"10.0.0.0/24"`, `"169.254.169.254"`, []string{"reaches 169.254.169.254, which is not of the Internet but of this host's own network"}},
	{`"10.0.0.0/24"`, `"0.0.0.0/0"`, []string{"reaches 0.0.0.0/0, which is every address there is, this host's and its network's too"}},
	{`[443]`, `[443 22]`, []string{"reaches port 22"}},
	{`:allowed-ports [443]`, ``, []string{"reaches port 80"}},
	{`rate-limit 10`, `rate-limit 9`, nil},
	{`rate-limit 10`, `rate-limit 11`, []string{"may use 11 requests in a minute, where it was 10"}},
	{`:egress-rate-limit 10`, ``, []string{"may use as many requests in a minute as the host lets it, where it was 10"}},

	{`[:KEY :TOKEN]`, `[:TOKEN]`, nil},
	{`[:KEY :TOKEN]`, `[:KEY :TOKEN :MORE]`, []string{"is given the secret MORE"}},
	{`:host "api.example.com"}]`, `}]`, []string{"has the secret TOKEN put into requests to every host below cdn.example", "has the secret TOKEN put into requests to 10.0.0.0/24, which is not of the Internet but of this host's own network"}},
	{`:inject [{:secret :TOKEN :host "api.example.com"}]`, ``, []string{"is given the secret TOKEN"}},

	{`:host "src"`, `:host "src/a"`, nil},
	{`:host "src"`, `:host "source"`, []string{"reads source of the workspace"}},
	{`:host "src"`, `:host "."`, []string{"reads all of the workspace"}},
	{`:guest "/app"`, `:guest "/app" :mode :rw`, []string{"reads and writes src of the workspace"}},
	{`:quota-mb 10`, `:quota-mb 10 :mode :session`, []string{"keeps what it writes until the session ends"}},
	{`:quota-mb 10`, `:quota-mb 11 :mode :persistent`, []string{"keeps what it writes from call to call", "may use 11 MiB to write, where it was 10"}},

	{`:cpu-shares 100`, `:cpu-shares 50`, nil},
	{`:cpu-shares 100`, `:cpu-shares 200`, []string{"may use 200 of the processor's shares, where it was 100"}},
	{`:memory-mb 64`, ``, []string{"may use as many MiB of memory as the host lets it, where it was 64"}},
	{`:timeout-ms 1000`, `:timeout-ms 2000`, []string{"may take 2s for a call, where it was 1s"}},
	{`:timeout-ms 1000`, ``, []string{"may take as long as the host lets it for a call, where it was 1s"}},
	{`:network-bytes 1000 :pids 5`, `:network-bytes 2000 :pids 6`, []string{"may use 2000 bytes over the network, where it was 1000", "may use 6 processes, where it was 5"}},

	{`:tier :elevated`, `:tier :preapproved`, []string{"is approved as standard, where it was elevated"}},
	{`:requires-per-use true`, ``, []string{"is no longer asked about at each use"}},

	{`[:pii.chat]`, `[:pii.chat.message]`, nil},
	{`[:pii.chat]`, `[:pii]`, []string{"receives data of class pii"}},
	{`[:pii.chat]}`, `[:pii.chat] :output [:secret]}`, []string{"returns data of class secret"}},
	{`[:pii.chat]}`, `[:pii.chat] :output [:redacted]}`, []string{"makes redacted of data that is pii.chat: it lowers what protects it"}},
}

func TestWidens(t *testing.T) {
	for _, c := range changes {
		if !strings.Contains(wide, c.old) {
			t.Fatalf("%q is not in the manifest", c.old)
		}
		got := manifest.Widens(read(t, wide), read(t, strings.Replace(wide, c.old, c.new, 1)))
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s → %s (-want +got):\n%s", c.old, c.new, d)
		}
	}
}

func TestWidensReplacesHostDefault(t *testing.T) {
	const text = `(capability "a" :runtime {:type :container :image "x" :entrypoint ["x"]} %)`
	for limit, want := range map[string]string{
		":resources {:memory-mb 9000}":  "may use 9000 MiB of memory, where the host decided",
		":resources {:timeout-ms 9000}": "may take 9s for a call, where the host decided",
		":filesystem {:quota-mb 9000}":  "may use 9000 MiB to write, where the host decided",
	} {
		got := manifest.Widens(read(t, strings.Replace(text, "%", "", 1)), read(t, strings.Replace(text, "%", limit, 1)))
		if d := cmp.Diff([]string{want}, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", limit, d)
		}
	}
}

func TestSmallStepsDoNotWiden(t *testing.T) {
	all := []*manifest.Capability{read(t, wide)}
	for _, c := range changes {
		all = append(all, read(t, strings.Replace(wide, c.old, c.new, 1)))
	}
	quiet := make([][]bool, len(all))
	for i, a := range all {
		for _, b := range all {
			quiet[i] = append(quiet[i], len(manifest.Widens(a, b)) == 0)
		}
	}
	for i, a := range all {
		for j, b := range all {
			for k, c := range all {
				if quiet[i][j] && quiet[j][k] && !quiet[i][k] {
					t.Errorf("two steps need no approval, but one step widens by %q\n%s\n%s\n%s", manifest.Widens(a, c), a.Source, b.Source, c.Source)
				}
			}
		}
	}
}

func TestWidensOpensNetwork(t *testing.T) {
	const text = `(capability "a" :effects [:network] :runtime {:type :container :image "x" :entrypoint ["x"]}
		:egress [:none] :network {:allowed-hosts ["x.example"] :allowed-ports [443 25]})`
	closed := read(t, text)
	got := manifest.Widens(closed, read(t, strings.Replace(text, ":egress [:none]", "", 1)))
	if d := cmp.Diff([]string{"reaches x.example", "reaches port 25"}, got); d != "" {
		t.Errorf("Widens (-want +got):\n%s", d)
	}
	if got := manifest.Widens(nil, closed); len(got) != 1 {
		t.Errorf("Widens from nothing = %q, want the effect alone: [:none] closes the network whatever else is said", got)
	}
}

func TestWidensFirstVersion(t *testing.T) {
	got := manifest.Widens(nil, read(t, places(t)))
	want := []string{
		"uses the network (:network)",
		"reaches places.googleapis.com",
		"reaches maps.googleapis.com",
		"is given the secret GOOGLE_PLACES_API_KEY",
		"reads capabilities/places/src of the workspace",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Widens (-want +got):\n%s", d)
	}
	if got := manifest.Widens(nil, read(t, `(capability "a" :implementation (fn [x] x))`)); got != nil {
		t.Errorf("Widens of what is pure = %q, want nothing", got)
	}
}

func TestEffectiveTier(t *testing.T) {
	const preapproved = ` :approval {:tier :preapproved})`
	for text, want := range map[string]manifest.Tier{
		`(capability "a" :implementation (fn [x] x)` + preapproved:                                                 manifest.Preapproved,
		`(capability "a" :implementation (fn [x] x))`:                                                              manifest.Standard,
		`(capability "a" :runtime {:type :container :image "x" :entrypoint ["x"]}` + preapproved:                   manifest.Preapproved,
		`(capability "a" :runtime {:type :container :image "x" :entrypoint ["x"]} :secrets [:K]` + preapproved:     manifest.Standard,
		`(capability "a" :runtime {:type :container :image "x" :entrypoint ["x"]} :effects [:state]` + preapproved: manifest.Standard,
		`(capability "a" :runtime {:type :native :entrypoint ["x"]}` + preapproved:                                 manifest.Elevated,
		`(capability "a" :implementation (fn [x] x) :data-classes {:input [:pii] :output [:public]}` + preapproved: manifest.Elevated,
		`(capability "a" :implementation (fn [x] x) :approval {:tier :elevated})`:                                  manifest.Elevated,
	} {
		if got := read(t, text).EffectiveTier(); got != want {
			t.Errorf("%s: EffectiveTier = %s, want %s", text, got, want)
		}
	}
	if !manifest.Elevated.Covers(manifest.Standard) || manifest.Standard.Covers(manifest.Elevated) || !manifest.Standard.Covers(manifest.Preapproved) {
		t.Error("a higher tier covers a lower one, and no other way")
	}
}

func TestWidensNativeProgram(t *testing.T) {
	const text = `(capability "a" :runtime {:type :native :entrypoint ["x"]})`
	got := manifest.Widens(read(t, text), read(t, strings.Replace(text, `"x"`, `"y"`, 1)))
	if d := cmp.Diff([]string{"runs another program on the host itself"}, got); d != "" {
		t.Errorf("Widens (-want +got):\n%s", d)
	}
	first := manifest.Widens(nil, read(t, text))
	if d := cmp.Diff([]string{"runs on the host itself, in no sandbox"}, first); d != "" {
		t.Errorf("Widens from nothing (-want +got):\n%s", d)
	}
}

func TestCompareVersions(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"1.0.0", "1.0.0", 0}, {"1.9.0", "1.10.0", -1}, {"1.0.0", "1.0.0-rc.1", 1}, {"1.0.0+a", "1.0.0+b", 0}, {"2.0.0", "1.99.99", 1}} {
		if got := manifest.CompareVersions(c.a, c.b); got != c.want {
			t.Errorf("CompareVersions(%s, %s) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
