package manifest_test

import (
	"errors"
	"strings"
	"testing"

	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/problem"
	"glasshouse/fault"
)

// container is a valid manifest; % is replaced by further keys.
const container = `(capability "a.b" :runtime {:type :container :image "x" :entrypoint ["x"] } %)`

func in(more string) string { return strings.Replace(container, "%", more, 1) }

func runtime(r string) string { return `(capability "a.b" :runtime {` + r + `})` }

func TestInvalidManifests(t *testing.T) {
	const server = `:type :container :image "x" :entrypoint ["x"] `
	for _, c := range []struct{ text, want string }{
		// The text.
		{``, `the text contains no (capability "id" …)`},
		{`(capability "a" `, `1:1`},
		{`(def x 1)`, `expected (capability "id" …)`},
		{`[1]`, `a capability must be an object, not the number 1`},
		{`(capability)`, `the id is missing`},
		{`(capability a)`, `capability: must be a string, not the symbol a`},
		{`(capability "Places.Search" :implementation (fn [x] x))`, `"Places.Search" is not a valid id: use lower-case words`},
		{`(capability "a..b" :implementation (fn [x] x))`, `is not a valid id`},
		{`(capability "a__b" :implementation (fn [x] x))`, `is not a valid id`},
		{`(capability "` + strings.Repeat("a.", 22) + `a" :implementation (fn [x] x))`, `is too long`},
		{`(capability "a" :implementation (fn [x] x)) (capability "a" :implementation (fn [x] x))`, `duplicate id a`},

		// Keys.
		{in(`:efects []`), `efects: unknown key; did you mean effects?`},
		{in(`:input_schema [:map]`), `input_schema: unknown key; did you mean input-schema?`},
		{in(`:permissions []`), `permissions: unknown key; use effects`},
		{in(`:zzz 1`), `zzz: unknown key; valid: approval, data-classes`},
		{in(`:effects [] :effects [:fs]`), `effects: duplicate key`},
		{in(`:effects`), `effects: the value is missing`},
		{in(`"effects" []`), `a key must be a keyword such as :approval, not the string "effects"`},
		{runtime(server + `:startup-timeout 5`), `runtime.startup-timeout: unknown key; did you mean startup-timeout-ms?`},
		{runtime(server + `:code "x"`), `runtime.code: unknown key`},
		{in(`:network {:allowed_hosts []}`), `network.allowed_hosts: unknown key; did you mean allowed-hosts?`},

		{in(`:network ^{:strict true} {:mode :none}`), `metadata with ^ is not allowed here`},
		{`^:x (capability "a" :implementation (fn [x] x))`, `metadata with ^ is not allowed here`},
		{in(`:metadata {:a {:b 1 "b" 2}}`), `metadata.a.b: duplicate key`},

		// Types of values.
		{in(`:description 5`), `description: must be a string, not the number 5`},
		{in(":description \"a\u202eb\""), `description: contains invisible characters`},
		{in(":description \"a\x1b[2Jb\""), `description: contains invisible characters`},
		{in(`:description " "`), `description: must not be empty`},
		{in(`:description "` + strings.Repeat("x", 5000) + `"`), `description: longer than 4096 characters`},
		{in(`:effects :network`), `effects: must be a vector, not the keyword :network`},
		{in(`:effects ["network"]`), `effects[0]: must be the keyword :network, not a string`},
		{in(`:effects [:netwrok]`), `effects[0]: "netwrok" is not a valid value; did you mean network?`},
		{in(`:effects [:fs :fs]`), `effects[1]: duplicate element fs`},
		{in(`:runtime 5`), `runtime: duplicate key`},
		{`(capability "a" :runtime 5)`, `runtime: must be a map, not the number 5`},
		{in(`:version "1.0"`), `version: "1.0" is not a semantic version`},
		{in(`:version "v1.0.0"`), `is not a semantic version`},
		{in(`:version "1.0.0.0"`), `is not a semantic version`},
		{in(`:version "01.0.0"`), `is not a semantic version`},
		{in(`:approval {:tier :elevate}`), `approval.tier: "elevate" is not a valid value; did you mean elevated?`},
		{in(`:approval {:requires-per-use "no"}`), `approval.requires-per-use: must be true or false, not the string "no"`},
		{in(`:resources {:memory-mb 1.5}`), `resources.memory-mb: must be an integer, not the number 1.5`},
		{in(`:resources {:memory-mb 0}`), `resources.memory-mb: 0 is not between 1 and 1048576`},
		{in(`:resources {:timeout-ms -1}`), `resources.timeout-ms: -1 is not between 1`},
		{in(`:resources {:memory 5}`), `resources.memory: unknown key; did you mean memory-mb?`},
		{in(`:metadata {:f (fn [x] x)}`), `metadata.f: must be plain data, not a list`},
		{in(`:metadata {1 2}`), `metadata: a key must be a keyword or a string, not the number 1`},
		{in(`:input-schema [:mapp]`), `input-schema: `},
		{in(`:output-schema [:map [:a :strin]]`), `output-schema: `},
		{in(`:input-schema [:map [:a Address]]`), `input-schema: unknown type Address: no value would match`},

		// What runs it.
		{`(capability "a")`, `the runtime is missing`},
		{`(capability "a" :runtime {})`, `runtime.type: is required; valid: rtfs, wasm, container, gvisor, microvm, native`},
		{runtime(`:type :docker`), `"docker" is not a valid value; valid: rtfs, wasm`},
		{runtime(`:type :rtfs`), `implementation: is required: (fn [input] …)`},
		{runtime(`:type :rtfs :image "x"`), `runtime.image: not applicable to :rtfs, only to :container, :gvisor, :microvm`},
		{`(capability "a" :implementation (+ 1 2))`, `must be a function of one parameter: (fn [input] …)`},
		{`(capability "a" :implementation (fn [a b] a))`, `must be a function of one parameter`},
		{`(capability "a" :implementation "(fn [a] a)")`, `must be a function of one parameter`},
		{in(`:implementation (fn [x] x)`), `implementation: only applicable to :rtfs, but the runtime is :container`},
		{runtime(`:type :wasm`), `runtime.module: is required`},
		{runtime(`:type :wasm :module "/etc/x.wasm"`), `runtime.module: "/etc/x.wasm" is not relative to the workspace`},
		{runtime(`:type :wasm :module "a/../../x.wasm"`), `runtime.module: "a/../../x.wasm" leaves the workspace`},
		{runtime(`:type :container :entrypoint ["x"]`), `image or rootfs is required`},
		{runtime(server + `:rootfs "debian"`), `image and rootfs are mutually exclusive`},
		{runtime(`:type :container :image "x"`), `runtime.entrypoint: is required`},
		{runtime(`:type :container :image "x" :entrypoint []`), `runtime.entrypoint: must not be empty`},
		{runtime(`:type :container :image "x" :entrypoint [5]`), `runtime.entrypoint[0]: must be a string, not the number 5`},
		{runtime(`:type :container :image "-v /:/x" :entrypoint ["x"]`), `is not a valid image name`},
		{runtime(`:type :container :image "/images/../etc" :entrypoint ["x"]`), `runtime.image: "/images/../etc" is not a path`},
		{runtime(server + `:port 70000`), `runtime.port: 70000 is not between 1 and 65535`},
		{runtime(server + `:health-check "/ping"`), `runtime.health-check: it requires a port`},
		{runtime(server + `:port 80 :health-check "ping"`), `runtime.health-check: "ping" is not a valid request path`},
		{runtime(server + `:port 80 :path "//evil.example/"`), `is not a valid request path`},
		{runtime(server + `:port 80 :stdio :text`), `runtime.stdio: not applicable with a port: requests use HTTP`},
		{runtime(server + `:workdir "app"`), `runtime.workdir: "app" is not an absolute path`},
		{runtime(server + `:env {:A 5}`), `runtime.env.A: must be a string, not the number 5`},
		{runtime(server + `:env {"A=B" "x"}`), `"A=B" is not a valid variable name`},
		{`(capability "a" :secrets [:KEY] :runtime {` + server + `:env {:KEY "x"}})`, `runtime.env.KEY: secrets are not passed in the environment: read the file /run/secrets/KEY`},
		{runtime(server + `:warm {:max 1000}`), `runtime.warm.max: 1000 is not between 0 and 64`},
		{runtime(server + `:warm {:ttl-ms 5}`), `runtime.warm: ttl`},
		{runtime(`:type :native :entrypoint ["x"] :digest "md5:00"`), `runtime.digest: "md5:00" is not a digest`},

		// Files.
		{in(`:filesystem {:mode :forever}`), `filesystem.mode: "forever" is not a valid value; valid: ephemeral, session, persistent`},
		{in(`:filesystem {:mounts [{:host "/etc" :guest "/x"}]}`), `filesystem.mounts[0].host: "/etc" is not relative to the workspace`},
		{in(`:filesystem {:mounts [{:host "a/../../etc" :guest "/x"}]}`), `leaves the workspace`},
		{in(`:filesystem {:mounts [{:host "~/.ssh" :guest "/x"}]}`), `is not relative to the workspace`},
		{in(`:filesystem {:mounts [{:host "a" :guest "x"}]}`), `filesystem.mounts[0].guest: "x" is not an absolute path`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/"}]}`), `/ is reserved`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/run"}]}`), `/run is reserved`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/proc/self"}]}`), `/proc/self is reserved`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/a/../proc"}]}`), `is not a path`},
		{in(`:filesystem {:mounts [{:host "a"}]}`), `filesystem.mounts[0].guest: is required`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/x" :mode :wo}]}`), `filesystem.mounts[0].mode: "wo" is not a valid value`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/x"} {:host "b" :guest "/x/"}]}`), `duplicate mount at /x`},
		{in(`:filesystem {:mounts [{:host "a" :guest "/x" :mode :rw}]}`), `it writes to the workspace, but effects lacks :fs`},
		{in(`:filesystem {:mode :persistent}`), `effects lacks :state and :fs`},
		{in(`:filesystem {:quota-mb 0}`), `filesystem.quota-mb: 0 is not between 1`},

		// The network.
		{in(`:network {:mode :direct :allowed-hosts ["x.example"]}`), `network.mode: direct network access is not supported`},
		{in(`:network {:mode :proxy}`), `network.allowed-hosts: no host is listed`},
		{in(`:network {:mode :none :allowed-hosts ["x.example"]}`), `network.allowed-hosts: it has no effect with mode :none`},
		{in(`:network {:mode :proxy :allowed-hosts ["x.example"]}`), `network: it reaches hosts, but effects lacks :network`},
		{in(`:network {:allowed-hosts ["https://x.example/"]}`), `give the host name only`},
		{in(`:network {:allowed-hosts ["x.example:443"]}`), `use allowed-ports`},
		{in(`:network {:allowed-hosts ["x.*.example"]}`), `is not a host name`},
		{in(`:network {:allowed-hosts ["127.1"]}`), `ends in a number but is not an address in canonical form`},
		{in(`:network {:allowed-hosts ["x.example" "X.example"]}`), `network.allowed-hosts[1]: duplicate element x.example`},
		{in(`:network {:allowed-ports [0]}`), `network.allowed-ports[0]: 0 is not between 1 and 65535`},
		{in(`:network {:allowed-ports [443 443]}`), `duplicate port 443`},
		{in(`:network {:egress-rate-limit 0}`), `network.egress-rate-limit: 0 is not between 1`},
		{in(`:egress ["x.example"]`), `egress[0]: must be the keyword`},
		{in(`:egress [:proxy]`), `egress[0]: must be [:none]`},
		{in(`:egress []`), `egress: must not be empty`},

		// Secrets.
		{in(`:secrets ["KEY"]`), `secrets[0]: must be the keyword :KEY, not a string`},
		{in(`:secrets [:a/b]`), `is not a valid secret name`},
		{in(`:network {:allowed-hosts ["x.example"] :inject [{:header "X"}]}`), `network.inject[0].secret: the secret is required`},
		{in(`:network {:allowed-hosts ["x.example"] :inject [{:secret :KEY}]}`), `network.inject[0].secret: KEY is not listed in secrets`},
		{in(`:secrets [:KEY] :network {:allowed-hosts ["x.example"] :inject [{:secret :KEY :host "y.example"}]}`), `network.inject[0].host: y.example is not listed in allowed-hosts`},
		{in(`:secrets [:KEY] :network {:allowed-hosts ["x.example"] :inject [{:secret :KEY :header "X" :query "y"}]}`), `specify exactly one of`},
		{in(`:secrets [:KEY] :network {:allowed-hosts ["x.example"] :inject [{:secret :KEY :header "Host"}]}`), `"Host" is not a valid header for a secret`},
		{in(`:secrets [:KEY] :network {:allowed-hosts ["x.example"] :inject [{:secret :KEY :bearer false}]}`), `network.inject[0].bearer: must be true or absent`},

		// Settings that a runtime cannot provide or enforce.
		{`(capability "a" :implementation (fn [x] x) :secrets [:KEY])`, `secrets: an :rtfs capability has no access of its own`},
		{`(capability "a" :implementation (fn [x] x) :filesystem {:mode :session})`, `filesystem: an :rtfs capability has no access of its own`},
		{`(capability "a" :implementation (fn [x] x) :effects [:network] :network {:allowed-hosts ["x.example"]})`, `network: an :rtfs capability has no access of its own`},
		{`(capability "a" :runtime {:type :native :entrypoint ["x"]} :network {:mode :none})`, `network: it cannot be enforced for a process on the host`},
		{`(capability "a" :runtime {:type :native :entrypoint ["x"]} :egress [:none])`, `egress: it cannot be enforced for a process on the host`},
		{`(capability "a" :runtime {:type :native :entrypoint ["x"]} :filesystem {:mounts [{:host "a" :guest "/b"}]})`, `filesystem: it cannot be enforced for a process on the host`},
		{`(capability "a" :runtime {:type :native :entrypoint ["x"]} :resources {:network-bytes 5})`, `is not counted`},

		// Estimates and classes.
		{in(`:resource-estimates {:wall-clock-ms 5}`), `resource-estimates.wall-clock-ms: must be [typical worst]`},
		{in(`:resource-estimates {:wall-clock-ms [5 3]}`), `the typical value 5 exceeds the worst case 3`},
		{in(`:resource-estimates {:wallclock-ms [1 2]}`), `did you mean wall-clock-ms?`},
		{in(`:resources {:timeout-ms 1000} :resource-estimates {:wall-clock-ms [1 2000]}`), `the worst case 2000 exceeds resources.timeout-ms 1000`},
		{in(`:resources {:network-bytes 10} :resource-estimates {:network-bytes [1 20]}`), `the worst case 20 exceeds resources.network-bytes 10`},
		{in(`:data-classes {:input [:private]}`), `data-classes.input[0]: "private" is not a data class`},
		{in(`:data-classes {:input [:PII]}`), `did you mean pii?`},
		{in(`:declassifier true`), `no output class in data-classes is lower than the input class`},
		{in(`:data-classes {:input [:secret] :output [:pii]} :declassifier false`), `it is false, but data-classes has an output class lower`},

		// The words of before.
		{`(capability "a" :metadata {:sandbox_runtime {:type :wasm}})`, `metadata.sandbox_runtime: must be a string with JSON, not a map`},
		{in(`:metadata {:sandbox_resources "{"}`), `metadata.sandbox_resources: not JSON`},
		{in(`:metadata {:sandbox_resources "{\"memory_gb\":1}"}`), `resources.memory-gb: unknown key; did you mean memory-mb?`},
		{in(`:metadata {:sandbox_filesystem "{\"mounts\":[{\"host_path\":\"/etc\",\"guest_path\":\"/x\"}]}"}`), `filesystem.mounts[0].host: "/etc" is not relative to the workspace`},

		// The JSON twin.
		{`{"capability":"a"`, `unexpected end of text`},
		{`{"capability":"a",}`, `not JSON`},
		{`{"capability":"a"} x`, `unexpected data after the end of the value`},
		{`{"version":"1.0.0"}`, `capability: the id is missing`},
		{`{"capability":"a","capability":"b"}`, `capability: duplicate key`},
		{`{"capability":"a","effects":[":network"]}`, `effects[0]: must be written without a colon in JSON: "network"`},
		{`{"capability":"a","runtime":{"type":"container","image":null}}`, `runtime.image: must be a string, not null`},
		{`{"capability":"a","implementation":"(fn [x]"}`, `implementation: `},
		{`{"capability":"a","implementation":"1 2"}`, `implementation: must contain one form, not 2`},
		{`[]`, `the text contains no capability`},
		{strings.Repeat("[", 200), `nested more than 100 levels deep`},
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

func TestAllProblemsHavePositions(t *testing.T) {
	const text = `(capability "a.b"
  :version "one"
  :runtime {:type :container :image "x" :entrypoint ["x"]}
	:efects [:network])
`
	_, err := manifest.Read("m.rtfs", []byte(text))
	want := `manifest.Read: version: invalid: m.rtfs:2:12: version: "one" is not a semantic version such as 1.0.0
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

func TestJSONProblemsHavePositions(t *testing.T) {
	_, err := manifest.Read("m.json", []byte("{\"capability\": \"a\",\n \"description\": \"ü\", \"vers\": 5}"))
	if want := "m.json:2:22: vers: unknown key; did you mean version?\n  2 |  \"description\": \"ü\", \"vers\": 5}\n    |                      ^"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Read =\n%v\nwant\n%s", err, want)
	}
}

func TestManyProblemsAreTruncated(t *testing.T) {
	_, err := manifest.Read("m", []byte(in(strings.Repeat(":zzzzzz 1 ", 5_000))))
	if err == nil || !strings.HasSuffix(err.Error(), " more") || len(err.Error()) > 20_000 {
		t.Errorf("Read = %d bytes of error, want the first problems and how many more there are", len(err.Error()))
	}
}
