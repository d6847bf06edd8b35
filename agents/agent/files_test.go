package agent_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"glasshouse/agents/agent"
	"glasshouse/fault"
	"glasshouse/policy"
)

// read compiles a permission file and an optional framework, as the gateway does.
func read(t *testing.T, permissions, framework []byte, level policy.Level) *policy.Set {
	t.Helper()
	p, err := policy.ReadPermissions("opencode.json", permissions)
	if err != nil {
		t.Fatal(err)
	}
	c := policy.Config{Permissions: []*policy.Permissions{p}, Level: level, Home: home, Workspace: workspace}
	if framework != nil {
		f, err := policy.ReadFramework("AGENTS.md", framework)
		if err != nil {
			t.Fatal(err)
		}
		c.Frameworks = append(c.Frameworks, f)
	}
	set, err := policy.Compile(c)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// content returns the file with the given name for a level.
func content(t *testing.T, level int, name string) []byte {
	t.Helper()
	files, err := agent.OpenCodeFiles(level)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Path == name {
			return f.Data
		}
	}
	t.Fatalf("OpenCodeFiles has no %s", name)
	return nil
}

// With the current semantics of OpenCode the file decides like the guide's file did when the
// longest pattern applied. Stricter decisions are listed.
func TestPermissionFileDecidesLikeTheGuide(t *testing.T) {
	guide, err := os.ReadFile("../../policy/testdata/opencode.json")
	if err != nil {
		t.Fatal(err)
	}
	guideSet := read(t, guide, nil, policy.Full)
	set := read(t, content(t, 2, "opencode.json"), nil, policy.Full)
	guideMatch, _ := guideSet.Match()
	match, _ := set.Match()
	if guideMatch != policy.Longest || match != policy.Last {
		t.Fatalf("match mode of the guide is %s, of the file %s; want longest and last", guideMatch, match)
	}
	stricter := map[string]string{
		"coordinate_sibling reviewer": "allow ask", // at level 2; allowed at level 3
		"request_resources cpu=512":   "allow ask",
		"bash rm -r x":                "ask deny",
	}
	for _, tt := range []struct{ action, resource string }{
		{"bash", "npm test"}, {"bash", "pnpm install"}, {"bash", "git status"}, {"bash", "git diff"}, {"bash", "git add -A"}, {"bash", "git commit -m x"},
		{"bash", "rm -rf x"}, {"bash", "rm -fr x"}, {"bash", "rm -r -f x"}, {"bash", "rm -r x"}, {"bash", "rm x"}, {"bash", "sudo ls"}, {"bash", "npm test && rm -rf x"},
		{"bash", "ls"}, {"bash", "git push"}, {"bash", "curl https://x"}, {"bash", "X=1 rm -rf x"}, {"bash", "/bin/rm -rf x"},
		{"edit", "src/a.ts"}, {"write", "a.ts"}, {"read", "a.ts"}, {"external_directory", "/etc/x"},
		{"coordinate_sibling", "reviewer"}, {"request_resources", "cpu=512"}, {"create_task", "x"},
	} {
		q := policy.Question{Action: tt.action, Resource: tt.resource}
		got := fmt.Sprintf("%s %s", guideSet.Decide(q).Effect, set.Decide(q).Effect)
		want := fmt.Sprintf("%[1]s %[1]s", guideSet.Decide(q).Effect)
		if s, ok := stricter[tt.action+" "+tt.resource]; ok {
			want = s
		}
		if got != want {
			t.Errorf("%s %s: guide and file decide %s, want %s", tt.action, tt.resource, got, want)
		}
	}
}

// TestDecisionsOfEachLevel checks the combination of the permission file, the framework and the
// defaults of each level.
func TestDecisionsOfEachLevel(t *testing.T) {
	tests := []struct{ agent, action, resource, want string }{
		{"", "bash", "npm test", "allow allow allow"},
		{"", "bash", "git commit -m x", "allow allow allow"},
		{"", "bash", "make", "ask ask allow"},
		{"", "bash", "rm -rf x", "deny deny deny"},
		{"", "bash", "git push", "ask ask ask"},
		{"", "edit", "src/a.ts", "allow allow allow"},
		{"", "edit", "lib/a.ts", "ask allow allow"},
		{"", "edit", "package.json", "ask ask ask"},
		{"", "edit", ".opencode/plugin/autonomy-engine.ts", "ask ask ask"},
		{"", "coordinate_sibling", "reviewer", "ask ask allow"},
		{"", "create_task", "x", "allow allow allow"},
		{"reviewer", "edit", "src/a.ts", "deny deny deny"},
		{"reviewer", "bash", "npm test", "deny deny deny"},
		{"reviewer", "read", "src/a.ts", "allow allow allow"},
		{"coordinator", "coordinate_sibling", "reviewer", "ask ask allow"},
		{"coordinator", "bash", "ls", "deny deny deny"},
	}
	for _, tt := range tests {
		var got []string
		for level := 1; level <= 3; level++ {
			set := read(t, content(t, level, "opencode.json"), content(t, level, "AGENTS.md"), policy.Level(level))
			d := set.Decide(policy.Question{Subject: policy.Subject{Agent: tt.agent}, Action: tt.action, Resource: tt.resource})
			got = append(got, string(d.Effect))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("agent %q, %s %s: %s, want %s", tt.agent, tt.action, tt.resource, got, tt.want)
		}
	}
	if _, err := agent.OpenCodeFiles(0); fault.FieldOf(err) != "level" {
		t.Errorf("level 0: got %v, want an error about the field level", err)
	}
}

// The plugin imports only types, which are erased, and the lock file marks them as installed.
func TestPluginHasNoRuntimeImports(t *testing.T) {
	plugin := string(content(t, 2, ".opencode/plugin/autonomy-engine.ts"))
	for _, line := range regexp.MustCompile(`(?m)^import.*$`).FindAllString(plugin, -1) {
		if !strings.HasPrefix(line, "import type ") {
			t.Errorf("runtime import: %s", line)
		}
	}
	var lock struct {
		Packages map[string]struct {
			Dependencies map[string]string `json:"dependencies"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(content(t, 2, ".opencode/package-lock.json"), &lock); err != nil || lock.Packages[""].Dependencies["@opencode-ai/plugin"] == "" {
		t.Errorf("package-lock.json = %+v, %v", lock, err)
	}
	content(t, 2, ".opencode/node_modules/.keep")
}

// A gateway is a fake gateway for hooks.
type gateway struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
}

func newGateway(t *testing.T, answers map[string]string) *gateway {
	g := &gateway{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.bodies = append(g.bodies, r.URL.Path+" "+string(body))
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
			answer = `{"title": "unavailable", "detail": "the chain cannot be written"}`
		}
		io.WriteString(w, answer)
	}))
	t.Cleanup(g.Close)
	return g
}

// A call is allowed only if the gateway allows it and records it. The test runs the command line
// that agents are configured with.
func TestHookFailsClosed(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	const (
		ls        = `{"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "c1"}`
		decisions = "/sandbox/j-1/decisions"
	)
	yes := `{"effect": "allow"}`
	tests := []struct {
		name, phase, stdin string
		answers            map[string]string // responses by path; nil: no gateway
		code               int
		stderr             string
	}{
		{"allowed", "before", ls, map[string]string{"/decide": yes, decisions: "{}"}, 0, ""},
		{"denied", "before", ls, map[string]string{"/decide": `{"effect": "deny", "reason": "not here", "rule": "bash *", "remedy": "ask"}`}, 2, "refused: not here [bash *] ask"},
		{"unknown effect", "before", ls, map[string]string{"/decide": `{"effect": "ALLOW"}`}, 2, "refused: not allowed"},
		{"malformed response", "before", ls, map[string]string{"/decide": `["allow"]`}, 2, "cannot request a decision"},
		{"allowed but not recorded", "before", ls, map[string]string{"/decide": yes}, 2, "the chain cannot be written"},
		{"no gateway", "before", ls, nil, 2, "does not respond"},
		{"input is not JSON", "before", "ls", map[string]string{"/decide": yes, decisions: "{}"}, 2, "cannot request a decision"},
		{"done but not recorded", "after", ls, map[string]string{}, 2, "the chain cannot be written"},
	}
	l, err := find(t, "claude").Launch(agent.Request{Goal: "x"})
	if err != nil {
		t.Fatal(err)
	}
	hook := filepath.Join(t.TempDir(), "hook.py")
	if err := os.WriteFile(hook, []byte(file(l, "/home/agent/.glasshouse/hook.py")), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			endpoint := "http://127.0.0.1:1"
			if tt.answers != nil {
				endpoint = newGateway(t, tt.answers).URL
			}
			cmd := exec.Command("sh", "-c", "python3 -I -S '"+hook+"' "+tt.phase+" || exit 2")
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GLASSHOUSE_DOOR=" + endpoint, "SANDBOX_ID=j-1", "http_proxy=http://127.0.0.1:1", "PYTHONPATH=/nowhere"}
			cmd.Stdin = strings.NewReader(tt.stdin)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != tt.code || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("exit code %d, want %d; standard error %q, want %q", code, tt.code, stderr.String(), tt.stderr)
			}
		})
	}

	// The requests of a hook.
	g := newGateway(t, map[string]string{"/decide": yes, "/whoami": `{"jail": "j-2"}`, "/sandbox/j-2/decisions": "{}"})
	cmd := exec.Command("python3", "-I", "-S", hook, "before")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GLASSHOUSE_DOOR=" + g.URL + "/"}
	long := strings.Repeat("x", 40_000)
	cmd.Stdin = strings.NewReader(`{"tool_name": "Write", "tool_input": {"file_path": "/a", "content": "` + long + `", "command": "` + long + `"}}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(g.bodies) != 3 || !strings.HasPrefix(g.bodies[0], `/decide {"tool": "Write"`) || !strings.HasPrefix(g.bodies[2], "/sandbox/j-2/decisions ") {
		t.Errorf("requests %.80q", g.bodies)
	}
	if n := strings.Count(g.bodies[0], "x"); n < 70_000 || n > 75_000 {
		t.Errorf("%d letters in the request, want a complete command and truncated content", n)
	}
}

// TestLayerIsBuiltOnceAndAtomically uses a shell script as npm. It checks the packages that are
// requested and what happens to their files.
func TestLayerIsBuiltOnceAndAtomically(t *testing.T) {
	l := agent.Layer{Name: "x", Packages: []agent.Package{{Name: "x-{arch}", Version: "1.2.3"}}, Links: []agent.Link{{Program: "x", Target: "node_modules/x/bin/x"}}}
	tools, cache := t.TempDir(), filepath.Join(t.TempDir(), "layers")
	npm := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tools, "npm"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", tools+":/usr/bin:/bin")
	entries := func() (names []string) {
		list, _ := os.ReadDir(cache)
		for _, e := range list {
			names = append(names, e.Name())
		}
		return names
	}

	npm("echo 'npm error 404 x is not there' >&2; exit 1\n")
	if _, err := l.Build(t.Context(), cache); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "404") || len(entries()) != 0 {
		t.Errorf("npm fails: %v; cache has %v", err, entries())
	}
	npm("mkdir -p node_modules/x\n")
	if _, err := l.Build(t.Context(), cache); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "node_modules/x/bin/x") || len(entries()) != 0 {
		t.Errorf("package without its program: %v; cache has %v", err, entries())
	}

	npm("echo \"$@\" > args; test -f package.json && mkdir -p node_modules/x/bin && echo hi > node_modules/x/bin/x\n")
	dirs := make([]string, 4)
	var wg sync.WaitGroup
	for i := range dirs {
		wg.Go(func() {
			var err error
			if dirs[i], err = l.Build(t.Context(), cache); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if built := slices.Compact(dirs); len(built) != 1 || built[0] != l.Dir(cache) || len(entries()) != 1 {
		t.Errorf("built %q; cache has %v", built, entries())
	}
	if info, err := os.Stat(filepath.Join(l.Dir(cache), "bin", "x")); err != nil || info.Mode()&0o111 != 0o111 {
		t.Errorf("program: %v, %v; want an executable", info, err)
	}
	args, err := os.ReadFile(filepath.Join(l.Dir(cache), "args"))
	if err != nil || !strings.Contains(string(args), "--ignore-scripts") || !regexp.MustCompile(`x-\w+@1\.2\.3`).Match(args) {
		t.Errorf("npm arguments %s: %v", args, err)
	}
	npm("exit 1\n")
	if dir, err := l.Build(t.Context(), cache); err != nil || dir != l.Dir(cache) {
		t.Errorf("an existing layer is built again: %v", err)
	}

	other := l
	other.Packages = []agent.Package{{Name: "x-{arch}", Version: "1.2.4"}}
	if other.Digest() == l.Digest() {
		t.Error("two versions have the same digest")
	}
	t.Setenv("PATH", "/nonexistent")
	if _, err := other.Build(t.Context(), cache); fault.KindOf(err) != fault.Unsupported || fault.RemedyOf(err) == "" {
		t.Errorf("without npm: got %v, want unsupported with a remedy", err)
	}
	if _, err := (agent.Layer{}).Build(t.Context(), cache); fault.KindOf(err) != fault.Invalid {
		t.Errorf("zero layer: got %v, want invalid", err)
	}
}

// No package uses a version range.
func TestLayersPinTheirVersions(t *testing.T) {
	version := regexp.MustCompile(`^\d+\.\d+\.\d+(-linux-\{arch\})?$`)
	for _, p := range agent.Presets() {
		for _, pkg := range p.Layer.Packages {
			if !version.MatchString(pkg.Version) {
				t.Errorf("%s: version of %s@%s is not pinned", p.Name, pkg.Name, pkg.Version)
			}
		}
		if (p.Layer.Name == "") != (len(p.Layer.Links) == 0) {
			t.Errorf("%s: layer %+v", p.Name, p.Layer)
		}
	}
}
