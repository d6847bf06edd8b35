package test_test

import (
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

// may lists, for each package, the packages of this module that it may import besides fault, id
// and internal/*, which are always allowed. "*" allows all packages. An unlisted package fails
// the test: decide first which packages it may import.
var may = map[string][]string{
	"cmd/glasshouse":       {"cli", "jail/backend/bwrap"},
	"cmd/glasshouse-agent": {"agents/agent/builtin"},
	"cmd/glasshouse-guest": {"jail/guest"},
	"cmd/glasshouse-init":  {"jail/init", "host/pages"},
	"cli":                  {"agents/llm/mockllm", "agents/agent", "api/client", "api/wire", "capability/bundle", "policy/chain", "daemon", "capability/engine/wasi", "capability/engine/wasm", "observe/event", "host/enter", "host/probe", "capability/manifest", "capability/market", "capability/mcp", "observe/syscalls", "api/otel", "capability/rtfs", "capability/rtfs/form", "capability/rtfs/lib", "capability/schema", "capability/skill", "store"}, // store: audit verify --offline reads the database without a daemon
	"daemon":               {"*"},
	"store":                {"policy/chain/witness", "e2b", "e2b/template", "fleet", "agents/run", "agents/schedule", "capability/memory", "agents/autonomy", "jail", "policy/access", "api/replay", "jail/snapshot", "policy/approval", "policy/secret", "policy/chain", "capability/registry"},
	"web":                  {},
	"web/docs/pack":        {},
	"sdk/gen":              {"api"},

	"fleet":       {},
	"fleet/pki":   {},
	"fleet/route": {"fleet", "fleet/pki"},

	"object":            {},
	"object/dir":        {"object"},
	"object/objecttest": {"object"},
	"object/s3":         {"object"},

	"e2b":             {"fleet", "policy/access", "jail/init/control", "e2b/envd", "e2b/interpreter", "policy/egress", "host/disk", "jail", "jail/fs", "jail/init/protocol", "policy/secret", "jail/snapshot"},
	"e2b/authority":   {},
	"e2b/envd":        {"jail", "jail/init/control", "jail/init/protocol", "e2b/envdpb", "e2b/interpreter"},
	"e2b/envdpb":      {},
	"e2b/interpreter": {"jail", "jail/init/control", "jail/init/protocol"},
	"e2b/template":    {"fleet", "policy/access", "e2b", "e2b/envd", "policy/egress", "jail", "jail/init/control", "jail/init/protocol", "jail/snapshot"},

	"api":        {"api/client", "policy/chain/archive", "policy/chain/witness", "fleet", "agents/autonomy", "agents/connector", "agents/gateway", "agents/llm", "agents/run", "agents/schedule", "api/wire", "capability/budget", "capability/bundle", "capability/market", "capability/mcp", "capability/skill", "capability/engine", "capability/manifest", "capability/registry", "api/replay", "policy/access", "policy/approval", "policy/chain", "policy/egress", "govern", "policy", "policy/secret", "observe/event", "observe/eventlog", "jail", "jail/init/control", "jail/init/protocol", "observe/report", "jail/rootfs", "jail/snapshot"},
	"api/client": {"api/wire"},
	"api/otel":   {"api/client", "api/wire", "observe/event"}, // an API client like any other
	"api/replay": {},
	"api/wire":   {},

	"agents/agent":         {"agents/agent/acp"},
	"agents/agent/acp":     {},
	"agents/agent/builtin": {},
	"agents/agent/spawn":   {"host/*"},
	"agents/autonomy":      {"policy/approval", "capability/budget", "policy/chain", "policy"},
	"agents/connector":     {"capability/budget", "capability/manifest", "agents/run"},
	"agents/gateway":       {"agents/agent", "agents/agent/acp", "agents/agent/spawn", "policy/approval", "agents/autonomy", "capability/budget", "policy/chain", "capability/engine", "govern", "jail", "jail/init/control", "jail/init/protocol", "agents/llm", "capability/manifest", "capability/mcp", "capability/memory", "policy", "agents/run", "agents/schedule", "capability/skill", "jail/snapshot"},
	"agents/llm":           {"capability/budget", "policy/chain"},
	"agents/llm/mockllm":   {"agents/llm"},
	"agents/run":           {"capability/budget", "policy/chain", "capability/manifest", "capability/rtfs", "capability/rtfs/form", "capability/rtfs/lib", "capability/schema"},
	"agents/schedule":      {},

	"govern":                       {"policy", "policy/approval", "policy/secret", "policy/egress", "policy/chain", "policy/enforce", "capability/budget", "capability/engine", "capability/manifest", "capability/schema", "capability/rtfs/form"},
	"capability/budget":            {"capability/rtfs/form"},
	"capability/bundle":            {"policy/chain", "capability/manifest", "capability/skill"},
	"capability/clients":           {},
	"capability/clients/go":        {},
	"capability/engine":            {"capability/rtfs/form", "capability/manifest"},
	"capability/engine/builtin":    {"capability/engine", "capability/rtfs/form", "capability/manifest"},
	"capability/engine/enginetest": {"capability/engine", "capability/rtfs/form", "capability/schema", "capability/manifest"},
	"capability/engine/jailed":     {"capability/engine", "capability/rtfs/form", "capability/schema", "capability/manifest", "capability/clients", "jail", "jail/init/control", "jail/init/protocol", "host/disk"},
	"capability/engine/native":     {"capability/engine", "capability/rtfs/form", "capability/schema", "capability/manifest", "host/cgroup"},
	"capability/engine/pure":       {"capability/engine", "capability/engine/builtin", "capability/rtfs", "capability/rtfs/form", "capability/schema", "capability/manifest"},
	"capability/engine/wasi":       {},
	"capability/engine/wasm":       {"capability/engine", "capability/engine/wasi", "capability/rtfs/form", "capability/schema", "capability/manifest"},
	"capability/manifest":          {"capability/rtfs/form", "capability/schema", "capability/rtfs/problem"},
	"capability/market":            {"capability/bundle", "capability/manifest"},
	"capability/mcp":               {"capability/engine", "capability/rtfs/form", "capability/schema", "capability/manifest", "capability/skill"},
	"capability/memory":            {"capability/engine", "capability/manifest", "capability/rtfs/form", "capability/schema"},
	"capability/registry":          {"policy/approval", "capability/bundle", "capability/engine", "capability/manifest", "policy", "capability/skill", "capability/rtfs/problem"},
	"capability/rtfs":              {"capability/rtfs/form", "capability/rtfs/lib"},
	"capability/rtfs/form":         {},
	"capability/rtfs/lib":          {"capability/rtfs/form"},
	"capability/rtfs/problem":      {"capability/rtfs/form"},
	"capability/schema":            {"capability/rtfs/form", "capability/rtfs/problem"},
	"capability/skill":             {"capability/manifest", "capability/schema", "capability/rtfs/form", "capability/rtfs/problem"},

	"policy":               {"policy/shell"},
	"policy/access":        {},
	"policy/approval":      {"policy"},
	"policy/chain":         {},
	"policy/chain/archive": {"policy/chain", "object"},
	"policy/chain/witness": {"policy/chain"},
	"policy/egress":        {"observe/event", "host/netns"},
	"policy/enforce":       {"policy", "host/*"},
	"policy/secret":        {},
	"policy/shell":         {},

	"jail":                        {"observe/event", "observe/syscalls", "jail/init/control", "jail/init/protocol", "jail/fs"},
	"jail/backend/backendtest":    {"jail", "jail/fs", "jail/init/control", "jail/init/protocol", "host/cgroup", "host/claims"},
	"jail/backend/base":           {"jail", "host/*", "jail/init/control"},
	"jail/backend/bwrap":          {"jail", "jail/backend/base", "jail/rootfs", "host/*", "jail/init/control"},
	"jail/backend/microvm":        {"jail", "jail/backend/base", "jail/guest/wire", "jail/rootfs", "host/*"},
	"jail/backend/microvm/fcshim": {"host/disk"}, // a program for tests
	"jail/backend/oci":            {"jail", "jail/backend/base", "jail/rootfs", "host/*", "jail/init/control"},
	"jail/fs":                     {"jail/init/protocol"},
	"jail/guest":                  {"jail", "jail/backend/base", "jail/guest/wire", "host/*", "observe", "observe/guest", "observe/kernel"}, // the machine records its own events
	"jail/guest/wire":             {},
	"jail/init":                   {"jail/init/protocol", "jail/fs"},
	"jail/init/control":           {"jail/init/protocol"},
	"jail/init/protocol":          {},
	"jail/nix":                    {},
	"jail/rootfs":                 {"host/overlay", "jail", "jail/nix"},
	"jail/snapshot":               {"observe/event", "observe/eventlog", "host/overlay", "host/pages", "jail", "observe/report", "jail/snapshot/images"},
	"jail/snapshot/images":        {},
	"jail/snapshot/remote":        {"jail/snapshot", "object"},

	"observe":             {"observe/event", "observe/eventlog"},
	"observe/event":       {},
	"observe/eventlog":    {"observe/event"},
	"observe/guest":       {"observe/event", "observe"},
	"observe/gvisor":      {"observe/event", "observe", "observe/syscalls"},
	"observe/kernel":      {"observe/event", "observe", "observe/syscalls"},
	"observe/network":     {"observe/event", "host/netns", "observe"},
	"observe/observetest": {"observe/event", "observe"},
	"observe/ptrace":      {"observe/event", "observe", "observe/syscalls"},
	"observe/report":      {"observe/event", "observe/eventlog"},
	"observe/syscalls":    {"observe/event"},

	"host/cgroup":   {},
	"host/claims":   {"host/cgroup"},
	"host/criu":     {"host/cgroup", "host/netns", "host/seccomp", "host/pages"},
	"host/disk":     {},
	"host/enter":    {"host/cgroup"},
	"host/netns":    {},
	"host/overlay":  {},
	"host/pages":    {},
	"host/probe":    {"host/*"},
	"host/process":  {},
	"host/qcow2":    {},
	"host/seccomp":  {},
	"host/secretfs": {},

	"packaging/image":          {},
	"packaging/notices":        {},
	"examples/places/upstream": {},

	"fault":                {},
	"id":                   {},
	"internal/atomicfile":  {},
	"internal/bpfstack":    {},
	"internal/dirs":        {},
	"internal/fork":        {},
	"internal/ifhead":      {},
	"internal/killtest":    {},
	"internal/linger":      {},
	"internal/notify":      {},
	"internal/procstat":    {},
	"internal/redact":      {},
	"internal/spare":       {},
	"internal/subscribers": {},
	"internal/testrun":     {},
	"internal/text":        {},
	"internal/thread":      {},
	"internal/undo":        {},
	"internal/webhook":     {},
	"internal/wording":     {},
}

// order lists the top-level directories. A package imports only from its own directory and those
// below it in the list.
var order = []string{
	"cmd", "cli", "daemon", "store", "sdk", "web", "e2b", "api", "agents", "fleet", "govern", "capability",
	"policy", "jail", "observe", "object", "host", "packaging", "examples", "internal", "id", "fault",
}

// mayNot lists packages that must not be linked, with the reason.
var mayNot = []struct{ pkg, dep, why string }{
	{"fault", "glasshouse/", "fault is a leaf: everything returns it"},
	{"cmd/glasshouse-init", "database/sql", "runs inside the jail; keep it small enough to read"},
	{"cmd/glasshouse-init", "net/http", "runs inside the jail; keep it small enough to read"},
	{"internal/text", "glasshouse/", "the init of every jail links it, through jailfs"},
	{"jail", "glasshouse/jail/backend/", "jail knows no backend: the daemon supplies them"},
	{"jail", "database/sql", "jail declares its Store; store implements it"},
	{"observe/event", "encoding/json", "a million records a second go through here; nothing may fall back to reflection"},
	{"api/client", "database/sql", "a client is linked into other people's programs"},
	{"api/client", "glasshouse/jail", "a client is linked into other people's programs"},
}

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Doc        string
	Name       string
}

// list returns the packages of this module. The go command is asked once.
func list(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := listed()
	if err != nil {
		t.Fatal(err)
	}
	return pkgs
}

var listed = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps,Doc,Name", "glasshouse/...")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var pkgs []pkg
	for dec := json.NewDecoder(out); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
	if err := cmd.Wait(); err != nil {
		return nil, err
	}
	return pkgs, nil
})

func rel(path string) string { return strings.TrimPrefix(path, "glasshouse/") }

func TestImportRules(t *testing.T) {
	for _, p := range list(t) {
		name := rel(p.ImportPath)
		allowed, listed := may[name]
		if !listed {
			if strings.Contains(name, "test") {
				continue // tests and their helpers may use what they test
			}
			t.Errorf("package %s is missing from the import rules", name)
			continue
		}
		for _, imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, "glasshouse/")
			if !ours || dep == "fault" || dep == "id" || strings.HasPrefix(dep, "internal/") {
				continue
			}
			if !slices.ContainsFunc(allowed, func(a string) bool {
				prefix, wild := strings.CutSuffix(a, "*")
				return a == dep || wild && strings.HasPrefix(dep, prefix)
			}) {
				t.Errorf("%s must not import %s", name, dep)
			}
		}
	}
}

func TestImportsPointDownwards(t *testing.T) {
	level := func(path string) int {
		top, _, _ := strings.Cut(rel(path), "/")
		return slices.Index(order, top)
	}
	for _, p := range list(t) {
		from := level(p.ImportPath)
		if from < 0 {
			if rel(p.ImportPath) != "test" && !strings.HasPrefix(rel(p.ImportPath), "test/") {
				t.Errorf("the directory of package %s is missing from the order", rel(p.ImportPath))
			}
			continue
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, "glasshouse/") && level(imp) < from {
				t.Errorf("%s imports upwards: %s", rel(p.ImportPath), rel(imp))
			}
		}
	}
}

func TestForbiddenDependencies(t *testing.T) {
	pkgs := map[string]pkg{}
	for _, p := range list(t) {
		pkgs[rel(p.ImportPath)] = p
	}
	for _, rule := range mayNot {
		for _, dep := range pkgs[rule.pkg].Deps {
			if strings.HasPrefix(dep, rule.dep) {
				t.Errorf("%s links %s: %s", rule.pkg, dep, rule.why)
			}
		}
	}
}

func TestPackagesHaveComments(t *testing.T) {
	for _, p := range list(t) {
		if p.Doc == "" && p.Name != "main" && !strings.HasSuffix(p.Name, "_test") {
			t.Errorf("package %s has no package comment", rel(p.ImportPath))
		}
	}
}

func TestPackagePathDepth(t *testing.T) {
	for _, p := range list(t) {
		if n := strings.Count(rel(p.ImportPath), "/"); n > 2 && p.Name != "main" {
			t.Errorf("package %s is %d elements deep; at most three", rel(p.ImportPath), n+1)
		}
	}
}
