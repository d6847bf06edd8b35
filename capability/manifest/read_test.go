package manifest_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/fault"
)

// plain compares capabilities without the fields that depend on their source text.
var plain = cmp.Options{
	cmpopts.IgnoreFields(manifest.Capability{}, "Source", "Input", "Output"),
	cmpopts.IgnoreFields(manifest.Spec{}, "Code"),
	cmpopts.IgnoreUnexported(manifest.Spec{}),
	cmp.Comparer(func(a, b *form.Map) bool { return form.Equal(a, b) }),
}

func places(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("testdata/places.rtfs")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func read(t *testing.T, text string) *manifest.Capability {
	t.Helper()
	all, err := manifest.Read("test.rtfs", []byte(text))
	if err != nil {
		t.Fatalf("Read:\n%v", err)
	}
	if len(all) != 1 {
		t.Fatalf("Read = %d capabilities, want 1", len(all))
	}
	return all[0]
}

func TestReadPlacesManifest(t *testing.T) {
	got := read(t, places(t))
	want := &manifest.Capability{
		ID:          "places.search",
		Description: "Search for nearby places using Google Places API",
		Version:     "1.0.0",
		Effects:     []string{"network"},
		Runtime: manifest.Spec{
			Type:           manifest.MicroVM,
			Image:          "python:3.12-slim",
			Entrypoint:     []string{"uvicorn", "local_places.main:app", "--host", "0.0.0.0", "--port", "8000"},
			Port:           8000,
			StartupTimeout: 5 * time.Second,
			HealthCheck:    "/ping",
		},
		Filesystem: manifest.Filesystem{
			Mode:    manifest.Ephemeral,
			Mounts:  []manifest.Mount{{Host: "capabilities/places/src", Guest: "/app"}},
			QuotaMB: 100,
		},
		Network: manifest.Network{
			Mode:  manifest.ModeProxy,
			Hosts: []string{"places.googleapis.com", "maps.googleapis.com"},
			Ports: []uint16{443},
			Rate:  100,
		},
		Secrets:   []string{"GOOGLE_PLACES_API_KEY"},
		Resources: manifest.Resources{CPUShares: 256, MemoryMB: 512, Timeout: 30 * time.Second},
		Approval:  manifest.Approval{Tier: manifest.Standard},
	}
	if d := cmp.Diff(want, got, plain); d != "" {
		t.Errorf("Read (-want +got):\n%s", d)
	}
	if !strings.HasPrefix(got.Source, `(capability "places.search"`) || !strings.HasSuffix(got.Source, ")") {
		t.Errorf("Source = %.40q…, want the form as it was written", got.Source)
	}
	input := form.NewMap(form.Keyword("query"), "coffee",
		form.Keyword("location"), form.NewMap(form.Keyword("lat"), 51.5, form.Keyword("lng"), -0.1),
		form.Keyword("filters"), form.NewMap(form.Keyword("min_rating"), 6.0))
	if err := got.Input.Check(input); err == nil || !strings.Contains(err.Error(), "min_rating") {
		t.Errorf("Check of a rating of 6 = %v, want an error at min_rating", err)
	}
}

// whole is a manifest that uses every key of a container.
const whole = `
(capability "notes.publish"
  :description "Publishes a note" :version "2.1.0-rc.1+build.5"
  :input-schema [:map [:text :string] [:lang {:optional true} [:enum "de" "en"]]]
  :output-schema [:map [:url :string]]
  :effects [:network :fs :state]
  :runtime {:type :container :rootfs "debian" :entrypoint ["python3" "/app/main.py" ""]
            :env {:LANG "C.UTF-8" "lower_case" "x"} :workdir "/app/" :port 8000 :path "/v1/publish?x=1"
            :startup-timeout-ms 1500 :health-check "/ping" :warm {:max 2 :ttl-ms 60000}}
  :filesystem {:mode :persistent :quota-mb 10
               :mounts [{:host "src/./notes" :guest "/app" :mode :ro} {:host "out" :guest "/out" :mode :rw}]}
  :network {:mode :proxy :allowed-hosts ["*.Example.com" "api.example.org." "192.0.2.0/24" "2001:DB8::1" "bücher.example"]
            :allowed-ports [443 8443] :egress-rate-limit 60
            :inject [{:secret :API_KEY :host "a.example.com" :header "X-Key"} {:secret :TOKEN}
                     {:secret :OTHER :host "api.example.org" :query "key"} {:secret :PAIR :basic "me"} {:secret :FIFTH :bearer true}]}
  :secrets [:API_KEY :TOKEN :OTHER :PAIR :FIFTH :FILE]
  :resources {:cpu-shares 512 :memory-mb 64 :timeout-ms 2000 :network-bytes 1048576 :pids 20}
  :resource-estimates {:wall-clock-ms [500 2000] :network-bytes [5000 50000] :llm-tokens nil}
  :approval {:tier :elevated :requires-per-use true}
  :data-classes {:input [:pii.chat.message] :output [:redacted]}
  :declassifier true
  :metadata {:author "someone" :tags [:a "b"] :nested {:k 1 "l" 2.5 :n nil}})`

func TestReadEveryKey(t *testing.T) {
	got := read(t, whole)
	want := &manifest.Capability{
		ID: "notes.publish", Description: "Publishes a note", Version: "2.1.0-rc.1+build.5",
		Effects: []string{"network", "fs", "state"},
		Runtime: manifest.Spec{
			Type: manifest.Container, Rootfs: "debian", Entrypoint: []string{"python3", "/app/main.py", ""},
			Env: map[string]string{"LANG": "C.UTF-8", "lower_case": "x"}, Workdir: "/app", Port: 8000, Path: "/v1/publish?x=1",
			StartupTimeout: 1500 * time.Millisecond, HealthCheck: "/ping", Warm: manifest.Warm{Max: 2, TTL: time.Minute},
		},
		Filesystem: manifest.Filesystem{
			Mode: manifest.Persistent, QuotaMB: 10,
			Mounts: []manifest.Mount{{Host: "src/notes", Guest: "/app"}, {Host: "out", Guest: "/out", Write: true}},
		},
		Network: manifest.Network{
			Mode: manifest.ModeProxy, Ports: []uint16{443, 8443}, Rate: 60,
			Hosts: []string{"*.example.com", "api.example.org", "192.0.2.0/24", "2001:db8::1", "xn--bcher-kva.example"},
			Inject: []manifest.Inject{
				{Secret: "API_KEY", Host: "a.example.com", As: "header", Name: "X-Key"}, {Secret: "TOKEN", As: "bearer"},
				{Secret: "OTHER", Host: "api.example.org", As: "query", Name: "key"}, {Secret: "PAIR", As: "basic", Name: "me"},
				{Secret: "FIFTH", As: "bearer"},
			},
		},
		Secrets:     []string{"API_KEY", "TOKEN", "OTHER", "PAIR", "FIFTH", "FILE"},
		Resources:   manifest.Resources{CPUShares: 512, MemoryMB: 64, Timeout: 2 * time.Second, NetworkBytes: 1 << 20, PIDs: 20},
		Estimates:   map[string]manifest.Estimate{"wall-clock-ms": {Typical: 500, Worst: 2000}, "network-bytes": {Typical: 5000, Worst: 50000}},
		Approval:    manifest.Approval{Tier: manifest.Elevated, PerUse: true},
		DataClasses: manifest.DataClasses{Input: []manifest.Label{"pii.chat.message"}, Output: []manifest.Label{"redacted"}, Declassifies: true},
		Metadata: map[string]form.Value{
			"author": "someone", "tags": form.Vector{"a", "b"},
			"nested": form.NewMap("k", int64(1), "l", 2.5, "n", nil),
		},
	}
	if d := cmp.Diff(want, got, plain); d != "" {
		t.Errorf("Read (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"FILE"}, got.SecretFiles()); d != "" {
		t.Errorf("SecretFiles (-want +got): %s", d)
	}
}

func TestDefaults(t *testing.T) {
	got := read(t, `(capability "plain" :runtime {:type :container :image "x" :entrypoint ["run"]})`)
	want := &manifest.Capability{
		ID: "plain", Version: "0.0.0",
		Runtime:    manifest.Spec{Type: manifest.Container, Image: "x", Entrypoint: []string{"run"}, Stdio: manifest.JSONStdio},
		Filesystem: manifest.Filesystem{Mode: manifest.Ephemeral},
		Network:    manifest.Network{Mode: manifest.ModeNone},
		Approval:   manifest.Approval{Tier: manifest.Standard},
	}
	if d := cmp.Diff(want, got, plain); d != "" {
		t.Errorf("Read (-want +got):\n%s", d)
	}
}

func TestReadEveryRuntime(t *testing.T) {
	for text, want := range map[string]manifest.Spec{
		`(capability "a" :implementation (fn [input] (get input :x)))`:                                                  {Type: manifest.RTFS},
		`(capability "a" :implementation (fn [input : [:map [:x :int]]] : int ^{:runtime.timeout 5} (call "b" input)))`: {Type: manifest.RTFS},
		`(capability "a" :runtime {:type :rtfs} :implementation (fn [{:keys [x]}] x))`:                                  {Type: manifest.RTFS},
		`(capability "a" :runtime {:type :wasm :module "bin/a.wasm" :entrypoint ["a" "-v"] :warm {:max 3}})`:            {Type: manifest.WASM, Module: "bin/a.wasm", Entrypoint: []string{"a", "-v"}, Warm: manifest.Warm{Max: 3}},
		`(capability "a" :runtime {:type :container :rootfs "debian" :entrypoint ["sh" "a.sh"] :stdio :text})`:          {Type: manifest.Container, Rootfs: "debian", Entrypoint: []string{"sh", "a.sh"}, Stdio: manifest.TextStdio},
		`(capability "a" :runtime {:type :container :image "/images/python.tar" :entrypoint ["x"]})`:                    {Type: manifest.Container, Image: "/images/python.tar", Entrypoint: []string{"x"}, Stdio: manifest.JSONStdio},
		`(capability "a" :runtime {:type :microvm :image "x:1@sha256:00" :entrypoint ["x"] :port 80})`:                  {Type: manifest.MicroVM, Image: "x:1@sha256:00", Entrypoint: []string{"x"}, Port: 80},
		`(capability "a" :runtime {:type :native :entrypoint ["x"] :digest "sha256:` + strings.Repeat("0a", 32) + `"})`: {Type: manifest.Native, Entrypoint: []string{"x"}, Stdio: manifest.JSONStdio, Digest: "sha256:" + strings.Repeat("0a", 32)},
	} {
		got := read(t, text)
		if d := cmp.Diff(want, got.Runtime, plain); d != "" {
			t.Errorf("%s (-want +got):\n%s", text, d)
		}
		if (want.Type == manifest.RTFS) != (got.Runtime.Code != nil) {
			t.Errorf("%s: Code = %v", text, got.Runtime.Code)
		}
	}
}

func TestReadSeveralManifests(t *testing.T) {
	all, err := manifest.Read("x", []byte("; two of them\n(capability \"a.b\" :implementation (fn [x] x))\n(capability \"a.c\" :implementation (fn [x] x))"))
	if err != nil || len(all) != 2 || all[0].ID != "a.b" || all[1].ID != "a.c" {
		t.Fatalf("Read = %v, %v", all, err)
	}
	if want := `(capability "a.c" :implementation (fn [x] x))`; all[1].Source != want {
		t.Errorf("Source = %q, want %q", all[1].Source, want)
	}
}

func TestEarlyMetadataKeysAreReadIfKeyIsAbsent(t *testing.T) {
	const text = `(capability "old.one" :effects [:fs] :metadata {
		:sandbox_filesystem "{\"mounts\":[{\"host_path\":\"src\",\"guest_path\":\"/app\",\"mode\":\"ReadWrite\"}],\"quota_mb\":0,\"mode\":\"Session\"}"
		:sandbox_resources "{\"cpu_shares\":256,\"memory_mb\":512,\"timeout_ms\":30000,\"network_egress_bytes\":1024}"
		:sandbox_runtime "{\"runtime_type\":\"MicroVM\",\"image\":\"python:3.12-slim\",\"entry_point\":[\"x\"],\"port\":null,\"startup-timeout-ms\":0,\"env\":{\"my_key\":\"v\"}}"
		:kept "yes"})`
	got := read(t, text)
	want := &manifest.Capability{
		ID: "old.one", Version: "0.0.0", Effects: []string{"fs"},
		Runtime:    manifest.Spec{Type: manifest.MicroVM, Image: "python:3.12-slim", Entrypoint: []string{"x"}, Stdio: manifest.JSONStdio, Env: map[string]string{"my_key": "v"}},
		Filesystem: manifest.Filesystem{Mode: manifest.Session, Mounts: []manifest.Mount{{Host: "src", Guest: "/app", Write: true}}},
		Network:    manifest.Network{Mode: manifest.ModeNone},
		Resources:  manifest.Resources{CPUShares: 256, MemoryMB: 512, Timeout: 30 * time.Second, NetworkBytes: 1024},
		Approval:   manifest.Approval{Tier: manifest.Standard},
		Metadata:   map[string]form.Value{"kept": "yes"},
	}
	if d := cmp.Diff(want, got, plain); d != "" {
		t.Errorf("Read (-want +got):\n%s", d)
	}

	over := read(t, strings.Replace(text, ":metadata", ":resources {:memory-mb 8} :metadata", 1))
	if over.Resources != (manifest.Resources{MemoryMB: 8}) {
		t.Errorf("with :resources of its own: %+v, want those", over.Resources)
	}
	if _, kept := over.Metadata["sandbox_resources"]; !kept {
		t.Error("what was not read is no longer in the metadata")
	}
}

func TestDeclassifyingManifest(t *testing.T) {
	c := read(t, `(capability "chat.summarize"
	  :data-classes {:input [:pii.chat.message] :output [:redacted]}
	  :egress [:none]
	  :implementation (fn [input] input))`)
	if !c.NoEgress || !c.DataClasses.Declassifies {
		t.Errorf("NoEgress = %v, Declassifies = %v, want both", c.NoEgress, c.DataClasses.Declassifies)
	}
	if got := c.EffectiveTier(); got != manifest.Elevated {
		t.Errorf("EffectiveTier = %s, want elevated: it lowers what protects the data", got)
	}
}

func TestTooLargeTextIsRefused(t *testing.T) {
	_, err := manifest.Read("x", make([]byte, manifest.MaxText+1))
	if want := fmt.Sprintf("%d bytes, which exceeds the maximum of %d", manifest.MaxText+1, manifest.MaxText); fault.KindOf(err) != fault.TooLarge || !strings.Contains(err.Error(), want) {
		t.Errorf("Read = %v, want too large with %q", err, want)
	}
}

var _ *schema.Type
