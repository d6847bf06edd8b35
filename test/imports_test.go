package test_test

import (
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// may lists, for each package, the packages of this module that it may import besides fault, id
// and internal/*, which are always allowed. "*" allows all packages. An unlisted package fails
// the test: decide first which packages it may import.
var may = map[string][]string{
	"cmd/glasshouse":      {"cli", "backend/bwrap"},
	"cmd/glasshouse-init": {"jailinit", "host/pages"},
	"cli":                 {"llm/mockllm", "agent", "api/client", "api/wire", "bundle", "chain", "daemon", "engine/wasi", "engine/wasm", "event", "host/probe", "manifest", "market", "mcp", "observe/syscalls", "otel", "rtfs", "rtfs/form", "rtfs/lib", "schema", "skill", "store"}, // store: audit verify --offline reads the database without a daemon
	"daemon":              {"*"},

	"api":        {"autonomy", "connector", "gateway", "llm", "run", "schedule", "api/wire", "budget", "bundle", "market", "mcp", "skill", "engine", "manifest", "registry", "api/replay", "access", "approval", "chain", "egress", "govern", "policy", "secret", "event", "eventlog", "jail", "jailinit/control", "jailinit/protocol", "report", "rootfs", "snapshot"},
	"api/replay": {},
	"api/wire":   {},
	"api/client": {"api/wire"},
	"otel":       {"api/client", "api/wire", "event"}, // a reader like any other, with what the API tells
	"sdk/gen":    {"api"},

	"packaging/image":   {},
	"packaging/notices": {},

	"web":    {},
	"access": {},

	"e2b":             {"access", "jailinit/control", "e2b/envd", "e2b/interpreter", "egress", "host/disk", "jail", "jailfs", "jailinit/protocol", "secret", "snapshot"},
	"e2b/envd":        {"jail", "jailinit/control", "jailinit/protocol", "e2b/envdpb", "e2b/interpreter"},
	"e2b/interpreter": {"jail", "jailinit/control", "jailinit/protocol"},
	"e2b/envdpb":      {},
	"e2b/authority":   {},
	"e2b/template":    {"access", "e2b", "e2b/envd", "egress", "jail", "jailinit/control", "jailinit/protocol", "snapshot"},

	"jail":                {"event", "observe/syscalls", "jailinit/control", "jailinit/protocol", "jailfs"},
	"jailinit":            {"jailinit/protocol", "jailfs"},
	"jailinit/control":    {"jailinit/protocol"},
	"jailinit/protocol":   {},
	"jailfs":              {"jailinit/protocol"},
	"backend/oci":         {"jail", "rootfs", "host/*", "jailinit/control"},
	"backend/bwrap":       {"jail", "rootfs", "host/*", "jailinit/control"},
	"backend/backendtest": {"jail", "jailinit/control", "jailinit/protocol", "host/cgroup", "host/claims"},
	"rootfs":              {"jail", "nix"},
	"nix":                 {},
	"host/cgroup":         {},
	"host/claims":         {"host/cgroup"},
	"host/criu":           {"host/cgroup", "host/netns", "host/seccomp", "host/pages"},
	"host/disk":           {},
	"host/netns":          {},
	"host/process":        {},
	"host/overlay":        {},
	"host/pages":          {},
	"host/probe":          {"host/*"},
	"host/seccomp":        {},
	"host/secretfs":       {},

	"event":               {},
	"eventlog":            {"event"},
	"report":              {"event", "eventlog"},
	"observe":             {"event", "eventlog"},
	"observe/syscalls":    {"event"},
	"observe/kernel":      {"event", "observe", "observe/syscalls"},
	"observe/network":     {"event", "host/netns", "observe"},
	"observe/gvisor":      {"event", "observe", "observe/syscalls"},
	"observe/ptrace":      {"event", "observe", "observe/syscalls"},
	"observe/observetest": {"event", "observe"},

	"snapshot/images": {},

	"snapshot": {"event", "eventlog", "host/pages", "jail", "report", "snapshot/images"},

	"policy":       {"policy/shell"},
	"policy/shell": {},
	"approval":     {"policy"},
	"secret":       {},
	"egress":       {"event"},
	"chain":        {},
	"enforce":      {"policy", "host/*"},
	"govern":       {"policy", "approval", "secret", "egress", "chain", "enforce", "budget", "engine", "manifest", "schema", "rtfs/form"},
	"registry":     {"approval", "bundle", "engine", "manifest", "policy", "skill"},

	"rtfs/form":         {},
	"rtfs":              {"rtfs/form", "rtfs/lib"},
	"rtfs/lib":          {"rtfs/form"},
	"schema":            {"rtfs/form"},
	"manifest":          {"rtfs/form", "schema"},
	"engine":            {"rtfs/form", "manifest"},
	"engine/enginetest": {"engine", "rtfs/form", "schema", "manifest"},
	"engine/builtin":    {"engine", "rtfs/form", "manifest"},
	"engine/pure":       {"engine", "engine/builtin", "rtfs", "rtfs/form", "schema", "manifest"},
	"engine/wasi":       {},
	"engine/wasm":       {"engine", "engine/wasi", "rtfs/form", "schema", "manifest"},
	"engine/jailed":     {"engine", "rtfs/form", "schema", "manifest", "clients", "jail", "jailinit/control", "jailinit/protocol", "host/disk"},
	"engine/native":     {"engine", "rtfs/form", "schema", "manifest", "host/cgroup"},
	"clients":           {},
	"clients/go":        {},
	"budget":            {"rtfs/form"},
	"mcp":               {"engine", "rtfs/form", "schema", "manifest", "skill"},
	"skill":             {"manifest", "schema", "rtfs/form"},
	"bundle":            {"chain", "manifest", "skill"},
	"market":            {"bundle", "manifest"},

	"run":                  {"budget", "chain", "manifest", "rtfs", "rtfs/form", "rtfs/lib", "schema"},
	"connector":            {"budget", "manifest", "run"},
	"schedule":             {},
	"memory":               {"engine", "manifest", "rtfs/form", "schema"},
	"llm":                  {"budget", "chain"},
	"llm/mockllm":          {"llm"},
	"autonomy":             {"approval", "budget", "chain", "policy"},
	"agent":                {"agent/acp"},
	"agent/acp":            {},
	"agent/builtin":        {},
	"agent/spawn":          {"host/*"},
	"gateway":              {"agent", "agent/acp", "agent/spawn", "approval", "autonomy", "budget", "chain", "engine", "govern", "jail", "jailinit/control", "jailinit/protocol", "llm", "manifest", "mcp", "memory", "policy", "run", "schedule", "skill", "snapshot"},
	"cmd/glasshouse-agent": {"agent/builtin"},

	"store": {"e2b", "e2b/template", "run", "schedule", "memory", "autonomy", "jail", "access", "api/replay", "snapshot", "approval", "secret", "chain", "registry"},

	"examples/places/upstream": {},

	"fault":               {},
	"id":                  {},
	"internal/atomicfile": {},
	"internal/dirs":       {},
	"internal/fork":       {},
	"internal/linger":     {},
	"internal/bpfstack":   {},
	"internal/notify":     {},
	"internal/ifhead":     {},
	"internal/wording":    {},
	"internal/problem":    {"rtfs/form"},
	"internal/redact":     {},
	"internal/text":       {},
	"internal/testrun":    {},
	"internal/undo":       {},
	"internal/webhook":    {},
	"internal/spare":      {},
	"internal/thread":     {},
}

// mayNot lists packages that must not be linked, with the reason.
var mayNot = []struct{ pkg, dep, why string }{
	{"fault", "glasshouse/", "fault is a leaf: everything returns it"},
	{"cmd/glasshouse-init", "database/sql", "runs inside the jail; keep it small enough to read"},
	{"cmd/glasshouse-init", "net/http", "runs inside the jail; keep it small enough to read"},
	{"internal/text", "glasshouse/", "the init of every jail links it, through jailfs"},
	{"jail", "glasshouse/backend/", "jail knows no backend: the daemon supplies them"},
	{"jail", "database/sql", "jail declares its Store; store implements it"},
	{"event", "encoding/json", "a million records a second go through here; nothing may fall back to reflection"},
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

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps,Doc,Name", "glasshouse/...")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(out); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return pkgs
}

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
		if n := strings.Count(rel(p.ImportPath), "/"); n > 1 && p.Name != "main" {
			t.Errorf("package %s is %d elements deep; at most two", rel(p.ImportPath), n+1)
		}
	}
}
