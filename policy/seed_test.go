package policy_test

import (
	"os"
	"strings"
	"testing"

	"glasshouse/policy"
)

// project returns a set of the two files of an example project for autonomous agents.
func project(t testing.TB, change ...func(*policy.Config)) *policy.Set {
	t.Helper()
	c := policy.Config{
		Permissions: []*policy.Permissions{permissions(t, "opencode.json", read(t, "testdata/opencode.json"))},
		Frameworks:  []*policy.Framework{framework(t, read(t, "testdata/AGENTS.md"))},
		Level:       policy.Intelligent,
		Home:        "/root",
		Workspace:   "/work",
	}
	for _, f := range change {
		f(&c)
	}
	return compile(t, c)
}

func read(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func permissions(t testing.TB, name, text string) *policy.Permissions {
	t.Helper()
	p, err := policy.ReadPermissions(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func framework(t testing.TB, text string) *policy.Framework {
	t.Helper()
	f, err := policy.ReadFramework("AGENTS.md", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func compile(t testing.TB, c policy.Config) *policy.Set {
	t.Helper()
	s, err := policy.Compile(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// decide decides a question of an agent; "" is the default agent.
func decide(s *policy.Set, agent, action, resource string) policy.Decision {
	return s.Decide(policy.Question{Subject: policy.Subject{Agent: agent}, Action: action, Resource: resource})
}

func level(l policy.Level) func(*policy.Config) {
	return func(c *policy.Config) { c.Level = l }
}

func match(m policy.Match) func(*policy.Config) {
	return func(c *policy.Config) { c.Match = m }
}

// The example workflow: allowed and denied actions, and whether they are pre-approved.
func TestExampleProject(t *testing.T) {
	tests := []struct {
		agent, action, resource string
		want                    policy.Effect
		listed                  bool
	}{
		{"worker", "write", "auth/login.ts", policy.Allow, false},
		{"worker", "edit", "auth/login.ts", policy.Allow, false},
		{"worker", "bash", "npm test", policy.Allow, true},
		{"worker", "coordinate_sibling", "reviewer", policy.Allow, false},
		{"worker", "bash", "git commit -m x", policy.Allow, false},
		{"worker", "bash", "git commit -m 'add login'", policy.Allow, false},
		{"worker", "bash", "git push", policy.Ask, false},
		{"worker", "bash", "git push origin main", policy.Ask, false},
		{"worker", "edit", "package.json", policy.Ask, false},
		{"worker", "write", "package.json", policy.Ask, false},
		{"worker", "edit", "packages/a/package.json", policy.Ask, false},
		{"worker", "bash", "rm -rf x", policy.Deny, false},
		{"worker", "bash", "rm -fr x", policy.Deny, false},
		{"worker", "bash", "rm -r -f x", policy.Deny, false},
		{"worker", "bash", "rm --recursive --force x", policy.Deny, false},
		{"worker", "bash", "rm x", policy.Ask, false},
		{"worker", "bash", "sudo true", policy.Deny, false},
		{"worker", "bash", "echo hi", policy.Ask, false},
		{"worker", "bash", "npm --version", policy.Allow, false},
		{"worker", "bash", "npm", policy.Allow, false},
		{"worker", "bash", "pnpm run build", policy.Allow, false},
		{"worker", "bash", "git status", policy.Allow, false},
		{"worker", "bash", "git diff", policy.Allow, false},
		{"worker", "bash", "git add .", policy.Allow, false},
		{"worker", "bash", "cd src && npm test", policy.Allow, true},
		{"worker", "bash", "npm test 2>/dev/null", policy.Allow, true},
		{"worker", "bash", "npm test && git status", policy.Allow, false},
		{"worker", "bash", "npm test && git push", policy.Ask, false},
		{"worker", "bash", "npm test; rm -rf /", policy.Deny, false},
		{"worker", "bash", "npm test > out.txt", policy.Allow, true},
		{"worker", "bash", "npm test > package.json", policy.Ask, false},
		{"worker", "bash", "npm test > ../other/x", policy.Deny, false},
		{"worker", "read", "src/a.ts", policy.Allow, false},
		{"worker", "external_directory", "/etc/*", policy.Deny, false},
		{"worker", "edit", "/etc/passwd", policy.Deny, false},
		{"worker", "edit", "/work/src/a.ts", policy.Allow, true},
		{"worker", "edit", "src/a.ts", policy.Allow, true},
		{"worker", "edit", "src/../package.json", policy.Ask, false},
		{"worker", "create_task", "x", policy.Allow, true},
		{"worker", "request_resources", "memory=4096", policy.Allow, false},
		{"worker", "webfetch", "https://api.example.com", policy.Ask, false},
		{"worker", "connect", "api.example.com:443", policy.Ask, false},
		{"worker", "bash", "unlink x", policy.Ask, false},
		{"worker", "doom_loop", "bash", policy.Ask, false},
		{"", "bash", "rm -rf x", policy.Deny, false},
		{"", "bash", "npm test", policy.Allow, true},
		{"reviewer", "read", "src/a.ts", policy.Allow, false},
		{"reviewer", "grep", "x", policy.Allow, false},
		{"reviewer", "edit", "src/a.ts", policy.Deny, false},
		{"reviewer", "write", "src/a.ts", policy.Deny, false},
		{"reviewer", "bash", "npm test", policy.Deny, false},
		{"reviewer", "bash", "git status", policy.Deny, false},
		{"coordinator", "coordinate_sibling", "worker", policy.Allow, false},
	}
	s := project(t)
	for _, tt := range tests {
		d := decide(s, tt.agent, tt.action, tt.resource)
		if d.Effect != tt.want || d.Listed != tt.listed {
			t.Errorf("%s: %s %q = %s listed %t (%s), want %s listed %t",
				tt.agent, tt.action, tt.resource, d.Effect, d.Listed, d.Reason, tt.want, tt.listed)
		}
	}
	if m, why := s.Match(); m != policy.Longest || !strings.Contains(why, `"*" after other patterns of "bash" (opencode.json:15)`) {
		t.Errorf("Match = %s, %q; want longest, for the pattern in line 15", m, why)
	}
	if n, ok := s.Steps("worker"); n != 5 || !ok {
		t.Errorf("Steps(worker) = %d, %t; want 5", n, ok)
	}
}
