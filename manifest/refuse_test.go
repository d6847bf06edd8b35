package manifest_test

import (
	"errors"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/internal/problem"
	"glasshouse/manifest"
)

// container is a manifest that is right, but for what is put in the place of %.
const container = `(capability "a.b" :runtime {:type :container :image "x" :entrypoint ["x"] } %)`

func in(more string) string { return strings.Replace(container, "%", more, 1) }

func runtime(r string) string { return `(capability "a.b" :runtime {` + r + `})` }

func TestWhatIsWrongWithAManifestIsSaid(t *testing.T) {
	const server = `:type :container :image "x" :entrypoint ["x"] `
	for _, c := range []struct{ text, want string }{
		// The text.
		{``, `there is no (capability "id" …) in it`},
		{`(capability "a" `, `1:1`},
		{`(def x 1)`, `only (capability "id" …) may stand here`},
		{`[1]`, `a capability is an object, not the number 1`},
		{`(capability)`, `it has no id`},
		{`(capability a)`, `capability: it is a string, not the symbol a`},
		{`(capability "Places.Search" :implementation (fn [x] x))`, `"Places.Search" is not an id: words in lower case`},
		{`(capability "a..b" :implementation (fn [x] x))`, `is not an id`},
		{`(capability "a__b" :implementation (fn [x] x))`, `is not an id`},
		{`(capability "` + strings.Repeat("a.", 22) + `a" :implementation (fn [x] x))`, `is too long`},
		{`(capability "a" :implementation (fn [x] x)) (capability "a" :implementation (fn [x] x))`, `duplicate id a`},

		// Keys.
		{in(`:efects []`), `efects: unknown key; did you mean effects?`},
		{in(`:input_schema [:map]`), `input_schema: unknown key; did you mean input-schema?`},
		{in(`:permissions []`), `permissions: unknown key; say in effects what it does`},
		{in(`:zzz 1`), `zzz: unknown key; there are approval, data-classes`},
		{in(`:effects [] :effects [:fs]`), `effects: duplicate key`},
		{in(`:effects`), `effects: it has no value`},
		{in(`"effects" []`), `a key is a keyword, such as :approval, not the string "effects"`},
		{runtime(server + `:startup-timeout 5`), `runtime.startup-timeout: unknown key; did you mean startup-timeout-ms?`},
		{runtime(server + `:code "x"`), `runtime.code: unknown key`},
		{in(`:network {:allowed_hosts []}`), `network.allowed_hosts: unknown key; did you mean allowed-hosts?`},

		{in(`:network ^{:strict true} {:mode :none}`), `what ^ says of it has no meaning here`},
		{`^:x (capability "a" :implementation (fn [x] x))`, `what ^ says of it has no meaning here`},
		{in(`:metadata {:a {:b 1 "b" 2}}`), `metadata.a.b: duplicate key`},

		// Types of values.
		{in(`:description 5`), `description: it is a string, not the number 5`},
		{in(":description \"a\u202eb\""), `description: contains invisible characters`},
		{in(":description \"a\x1b[2Jb\""), `description: contains invisible characters`},
		{in(`:description " "`), `description: it is empty`},
		{in(`:description "` + strings.Repeat("x", 5000) + `"`), `description: it is longer than 4096 letters`},
		{in(`:effects :network`), `effects: it is a vector, not the keyword :network`},
		{in(`:effects ["network"]`), `effects[0]: it is a keyword, :network, not a string`},
		{in(`:effects [:netwrok]`), `effects[0]: "netwrok" is not among what it may be; did you mean network?`},
		{in(`:effects [:fs :fs]`), `effects[1]: duplicate element fs`},
		{in(`:runtime 5`), `runtime: duplicate key`},
		{`(capability "a" :runtime 5)`, `runtime: it is a map, not the number 5`},
		{in(`:version "1.0"`), `version: "1.0" is not a version`},
		{in(`:version "v1.0.0"`), `is not a version`},
		{in(`:version "1.0.0.0"`), `is not a version`},
		{in(`:version "01.0.0"`), `is not a version`},
		{in(`:approval {:tier :elevate}`), `approval.tier: "elevate" is not among what it may be; did you mean elevated?`},
		{in(`:approval {:requires-per-use "no"}`), `approval.requires-per-use: it is true or false, not the string "no"`},
		{in(`:resources {:memory-mb 1.5}`), `resources.memory-mb: it is a whole number, not the number 1.5`},
		{in(`:resources {:memory-mb 0}`), `resources.memory-mb: 0 is not from 1 to 1048576`},
		{in(`:resources {:timeout-ms -1}`), `resources.timeout-ms: -1 is not from 1`},
		{in(`:resources {:memory 5}`), `resources.memory: unknown key; did you mean memory-mb?`},
		{in(`:metadata {:f (fn [x] x)}`), `metadata.f: it is plain data, not a list`},
		{in(`:metadata {1 2}`), `metadata: a key is a keyword or a string, not the number 1`},
		{in(`:input-schema [:mapp]`), `input-schema: `},
		{in(`:output-schema [:map [:a :strin]]`), `output-schema: `},
		{in(`:input-schema [:map [:a Address]]`), `input-schema: unknown type Address: no value would match`},

		// What runs it.
		{`(capability "a")`, `the runtime is missing`},
		{`(capability "a" :runtime {})`, `runtime.type: it is missing; there are rtfs, wasm, container, microvm, native`},
		{runtime(`:type :docker`), `"docker" is not among what it may be; there are rtfs, wasm`},
		{runtime(`:type :rtfs`), `implementation: it is missing: (fn [input] …)`},
		{runtime(`:type :rtfs :image "x"`), `runtime.image: it has no meaning for :rtfs, only for :container, :microvm`},
		{`(capability "a" :implementation (+ 1 2))`, `it is a function of one parameter, the input: (fn [input] …)`},
		{`(capability "a" :implementation (fn [a b] a))`, `it is a function of one parameter`},
		{`(capability "a" :implementation "(fn [a] a)")`, `it is a function of one parameter`},
		{in(`:implementation (fn [x] x)`), `implementation: it is for :rtfs, and the runtime is :container`},
		{runtime(`:type :wasm`), `runtime.module: it is missing`},
		{runtime(`:type :wasm :module "/etc/x.wasm"`), `runtime.module: "/etc/x.wasm" is not relative to the workspace`},
		{runtime(`:type :wasm :module "a/../../x.wasm"`), `runtime.module: "a/../../x.wasm" leaves the workspace`},
		{runtime(`:type :container :entrypoint ["x"]`), `image or rootfs is required`},
		{runtime(server + `:rootfs "debian"`), `image and rootfs are mutually exclusive`},
		{runtime(`:type :container :image "x"`), `runtime.entrypoint: it is missing`},
		{runtime(`:type :container :image "x" :entrypoint []`), `runtime.entrypoint: it is empty`},
		{runtime(`:type :container :image "x" :entrypoint [5]`), `runtime.entrypoint[0]: it is a string, not the number 5`},
		{runtime(`:type :container :image "-v /:/x" :entrypoint ["x"]`), `is not the name of an image`},
		{runtime(`:type :container :image "/images/../etc" :entrypoint ["x"]`), `runtime.image: "/images/../etc" is not a path`},
		{runtime(server + `:port 70000`), `runtime.port: 70000 is not from 1 to 65535`},
		{runtime(server + `:health-check "/ping"`), `runtime.health-check: it needs a server, but no port is given`},
		{runtime(server + `:port 80 :health-check "ping"`), `runtime.health-check: "ping" is not the path of a request`},
		{runtime(server + `:port 80 :path "//evil.example/"`), `is not the path of a request`},
		{runtime(server + `:port 80 :stdio :text`), `runtime.stdio: a server with a port is spoken to by HTTP`},
		{runtime(server + `:workdir "app"`), `runtime.workdir: "app" is not absolute`},
		{runtime(server + `:env {:A 5}`), `runtime.env.A: it is a string, not the number 5`},
		{runtime(server + `:env {"A=B" "x"}`), `"A=B" is not a valid variable name`},
		{`(capability "a" :secrets [:KEY] :runtime {` + server + `:env {:KEY "x"}})`, `runtime.env.KEY: a secret is never in the environment: it is in the file /run/secrets/KEY`},
		{runtime(server + `:warm {:max 1000}`), `runtime.warm.max: 1000 is not from 0 to 64`},
		{runtime(server + `:warm {:ttl-ms 5}`), `runtime.warm: none are kept`},
		{runtime(`:type :native :entrypoint ["x"] :digest "md5:00"`), `runtime.digest: "md5:00" is not a digest`},

		// Files.
		{in(`:filesystem {:mode :forever}`), `filesystem.mode: "forever" is not among what it may be; there are ephemeral, session, persistent`},
		{in(`:filesystem {:mounts [{:host "/etc" :guest "/x"}]}`), `filesystem.mounts[0].host: "/etc" is not relative to the workspace`},
		{in(`:filesystem {:mounts [{:host "a/../../etc" :guest "/x"}]}`), `leaves the workspace`},
		{in(`:filesystem {:mounts [{:host "~/.ssh" :guest "/x"}]}`), `is not relative to the workspace`},
		{in(`:filesystem {:mounts [{:host "a" :guest "x"}]}`), `filesystem.mounts[0].guest: "x" is not absolute`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/"}]}`), `nothing can be mounted at /`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/run"}]}`), `nothing can be mounted at /run`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/proc/self"}]}`), `nothing can be mounted at /proc/self`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/a/../proc"}]}`), `is not a path`},
		{in(`:filesystem {:mounts [{:host "a"}]}`), `filesystem.mounts[0].guest: it is missing`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/x" :mode :wo}]}`), `filesystem.mounts[0].mode: "wo" is not among what it may be`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/x"} {:host "b" :guest "/x/"}]}`), `duplicate mount at /x`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/x" :mode :rw}]}`), `it writes into the workspace, and effects does not say :fs`},
		{in(`:filesystem {:mode :persistent}`), `effects says neither :state nor :fs`},
		{in(`:filesystem {:quota-mb 0}`), `filesystem.quota-mb: 0 is not from 1`},

		// The network.
		{in(`:network {:mode :direct :allowed-hosts ["x.example"]}`), `network.mode: nothing here reaches the network directly`},
		{in(`:network {:mode :proxy}`), `network.allowed-hosts: no host is named`},
		{in(`:network {:mode :none :allowed-hosts ["x.example"]}`), `network.allowed-hosts: the mode is :none`},
		{in(`:network {:mode :proxy :allowed-hosts ["x.example"]}`), `network: it reaches hosts, and effects does not say :network`},
		{in(`:network {:allowed-hosts ["https://x.example/"]}`), `give the host name only`},
		{in(`:network {:allowed-hosts ["x.example:443"]}`), `ports stand in allowed-ports`},
		{in(`:network {:allowed-hosts ["x.*.example"]}`), `is neither the name of a host`},
		{in(`:network {:allowed-hosts ["127.1"]}`), `ends in a number and is no address as it must be written`},
		{in(`:network {:allowed-hosts ["x.example" "X.example"]}`), `network.allowed-hosts[1]: duplicate element x.example`},
		{in(`:network {:allowed-ports [0]}`), `network.allowed-ports[0]: 0 is not from 1 to 65535`},
		{in(`:network {:allowed-ports [443 443]}`), `duplicate port 443`},
		{in(`:network {:egress-rate-limit 0}`), `network.egress-rate-limit: 0 is not from 1`},
		{in(`:egress ["x.example"]`), `egress[0]: it is a keyword`},
		{in(`:egress [:proxy]`), `egress[0]: it is [:none]`},
		{in(`:egress []`), `egress: it is empty`},

		// Secrets.
		{in(`:secrets ["KEY"]`), `secrets[0]: it is a keyword, :KEY, not a string`},
		{in(`:secrets [:a/b]`), `is not the name of a secret`},
		{in(`:network {:allowed-hosts ["x.example"] :inject [{:header "X"}]}`), `network.inject[0].secret: it is not said which secret`},
		{in(`:network {:allowed-hosts ["x.example"] :inject [{:secret :KEY}]}`), `network.inject[0].secret: KEY is not among secrets`},
		{in(`:secrets [:KEY] :network {:allowed-hosts ["x.example"] :inject [{:secret :KEY :host "y.example"}]}`), `network.inject[0].host: y.example is not among allowed-hosts`},
		{in(`:secrets [:KEY] :network {:allowed-hosts ["x.example"] :inject [{:secret :KEY :header "X" :query "y"}]}`), `it is shown in one way`},
		{in(`:secrets [:KEY] :network {:allowed-hosts ["x.example"] :inject [{:secret :KEY :header "Host"}]}`), `"Host" cannot be a header for a secret`},
		{in(`:secrets [:KEY] :network {:allowed-hosts ["x.example"] :inject [{:secret :KEY :bearer false}]}`), `network.inject[0].bearer: it is true, or it is not there`},

		// What a runtime cannot give, or cannot be held to.
		{`(capability "a" :implementation (fn [x] x) :secrets [:KEY])`, `secrets: code of :rtfs touches nothing itself`},
		{`(capability "a" :implementation (fn [x] x) :filesystem {:mode :session})`, `filesystem: code of :rtfs touches nothing itself`},
		{`(capability "a" :implementation (fn [x] x) :effects [:network] :network {:allowed-hosts ["x.example"]})`, `network: code of :rtfs touches nothing itself`},
		{`(capability "a" :runtime {:type :native :entrypoint ["x"]} :network {:mode :none})`, `network: a process of the host itself cannot be held to it`},
		{`(capability "a" :runtime {:type :native :entrypoint ["x"]} :egress [:none])`, `egress: a process of the host itself cannot be held to it`},
		{`(capability "a" :runtime {:type :native :entrypoint ["x"]} :filesystem {:mounts [{:host "a" :guest "/b"}]})`, `filesystem: a process of the host itself cannot be held to it`},
		{`(capability "a" :runtime {:type :native :entrypoint ["x"]} :resources {:network-bytes 5})`, `are not counted`},

		// Estimates and classes.
		{in(`:resource-estimates {:wall-clock-ms 5}`), `resource-estimates.wall-clock-ms: it is [typical worst]`},
		{in(`:resource-estimates {:wall-clock-ms [5 3]}`), `what is typical, 5, is more than the worst, 3`},
		{in(`:resource-estimates {:wallclock-ms [1 2]}`), `did you mean wall-clock-ms?`},
		{in(`:resources {:timeout-ms 1000} :resource-estimates {:wall-clock-ms [1 2000]}`), `the worst, 2000, is more than resources.timeout-ms allows, 1000`},
		{in(`:resources {:network-bytes 10} :resource-estimates {:network-bytes [1 20]}`), `the worst, 20, is more than resources.network-bytes allows, 10`},
		{in(`:data-classes {:input [:private]}`), `data-classes.input[0]: "private" is no class of data`},
		{in(`:data-classes {:input [:PII]}`), `did you mean pii?`},
		{in(`:declassifier true`), `nothing in data-classes is lower behind it than before it`},
		{in(`:data-classes {:input [:secret] :output [:pii]} :declassifier false`), `and this says that nothing is lowered`},

		// The words of before.
		{`(capability "a" :metadata {:sandbox_runtime {:type :wasm}})`, `metadata.sandbox_runtime: it is a string that holds JSON, not a map`},
		{in(`:metadata {:sandbox_resources "{"}`), `metadata.sandbox_resources: it is not JSON`},
		{in(`:metadata {:sandbox_resources "{\"memory_gb\":1}"}`), `resources.memory-gb: unknown key; did you mean memory-mb?`},
		{in(`:metadata {:sandbox_filesystem "{\"mounts\":[{\"host_path\":\"/etc\",\"guest_path\":\"/x\"}]}"}`), `filesystem.mounts[0].host: "/etc" is not relative to the workspace`},

		// The JSON twin.
		{`{"capability":"a"`, `it ends too early`},
		{`{"capability":"a",}`, `it is not JSON`},
		{`{"capability":"a"} x`, `there is more text behind the end`},
		{`{"version":"1.0.0"}`, `capability: the id is missing`},
		{`{"capability":"a","capability":"b"}`, `capability: duplicate key`},
		{`{"capability":"a","effects":[":network"]}`, `effects[0]: in JSON it is written without a colon, "network"`},
		{`{"capability":"a","runtime":{"type":"container","image":null}}`, `runtime.image: it is a string, not null`},
		{`{"capability":"a","implementation":"(fn [x]"}`, `implementation: `},
		{`{"capability":"a","implementation":"1 2"}`, `implementation: it holds 2 forms, not one`},
		{`[]`, `there is no capability in it`},
		{strings.Repeat("[", 200), `it is nested deeper than 100`},
	} {
		_, err := manifest.Read("m.rtfs", []byte(c.text))
		switch {
		case err == nil:
			t.Errorf("Read(%.200s) = nil, want %q", c.text, c.want)
		case !strings.Contains(err.Error(), c.want):
			t.Errorf("Read(%.200s) =\n%v\nwant %q", c.text, err, c.want)
		case fault.KindOf(err) != fault.Invalid:
			t.Errorf("Read(%.200s) is %q, want invalid", c.text, fault.KindOf(err))
		}
	}
}

func TestAllThatIsWrongIsToldWithItsPlace(t *testing.T) {
	const text = `(capability "a.b"
  :version "one"
  :runtime {:type :container :image "x" :entrypoint ["x"]}
	:efects [:network])
`
	_, err := manifest.Read("m.rtfs", []byte(text))
	want := `manifest.Read: version: invalid: m.rtfs:2:12: version: "one" is not a version: three numbers with dots between, such as 1.0.0, and what semver allows behind them
  2 |   :version "one"
    |            ^
m.rtfs:4:2: efects: unknown key; did you mean effects?
  4 |  :efects [:network])
    |  ^`
	if err == nil || err.Error() != want {
		t.Errorf("Read =\n%v\nwant\n%s", err, want)
	}
	problems, ok := errors.AsType[problem.List](err)
	if !ok || len(problems) != 2 || problems[1].Pos.Line != 4 || problems[1].Field != "efects" {
		t.Errorf("problems = %+v", problems)
	}
	if got := fault.FieldOf(err); got != "version" {
		t.Errorf("FieldOf = %q, want that of the first", got)
	}
}

func TestThePlaceInJSONIsToldToo(t *testing.T) {
	_, err := manifest.Read("m.json", []byte("{\"capability\": \"a\",\n \"description\": \"ü\", \"vers\": 5}"))
	if want := "m.json:2:22: vers: unknown key; did you mean version?\n  2 |  \"description\": \"ü\", \"vers\": 5}\n    |                      ^"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Read =\n%v\nwant\n%s", err, want)
	}
}

func TestManyProblemsAreCounted(t *testing.T) {
	_, err := manifest.Read("m", []byte(in(strings.Repeat(":zzzzzz 1 ", 5_000))))
	if err == nil || !strings.HasSuffix(err.Error(), " more") || len(err.Error()) > 20_000 {
		t.Errorf("Read = %d bytes of error, want the first problems and how many more there are", len(err.Error()))
	}
}
