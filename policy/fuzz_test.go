package policy_test

import (
	"testing"

	"glasshouse/policy"
)

// FuzzReadPermissions checks that every file is an error with a remedy, or has rules with line
// numbers that decide in both match modes.
func FuzzReadPermissions(f *testing.F) {
	f.Add([]byte(read(f, "testdata/opencode.json")), "rm -rf x")
	f.Add([]byte(`{"permission": "ask", "mode": {"a": {"disable": true}},}`), "a && b")
	f.Add([]byte("// x\n{\"permission\": {\"b*\": {\"~/x\": \"deny\", \"1\": \"ask\"}}, \"tools\": {\"write\": false}}"), "$X > y")
	f.Fuzz(func(t *testing.T, data []byte, line string) {
		p, err := policy.ReadPermissions("f", data)
		if err != nil {
			return
		}
		for _, m := range []policy.Match{"", policy.Longest, policy.Last} {
			s, err := policy.Compile(policy.Config{Permissions: []*policy.Permissions{p}, Match: m, Home: "/root", Workspace: "/work"})
			if err != nil {
				t.Fatal(err)
			}
			for _, action := range []string{"bash", "write", "read", "x"} {
				d := decide(s, "a", action, line)
				if d.Effect != policy.Allow && d.Effect != policy.Ask && d.Effect != policy.Deny {
					t.Errorf("%s %q is decided as %q", action, line, d.Effect)
				}
				if d.Rule.File == "f" && d.Rule.Line == 0 {
					t.Errorf("%s has no line", d.Rule)
				}
				if d.Effect == policy.Deny && !d.Final {
					t.Errorf("%s %q is denied, but not finally", action, line)
				}
			}
			for _, finding := range s.Lint() {
				if finding.File != "f" || finding.Line == 0 || finding.Message == "" {
					t.Errorf("a finding with no place or message: %+v", finding)
				}
			}
		}
	})
}

// FuzzReadFramework checks that entries have line numbers, and that only lists of rules have
// rules.
func FuzzReadFramework(f *testing.F) {
	f.Add([]byte(read(f, "testdata/AGENTS.md")))
	f.Add([]byte("## Never\n- Run `rm -rf /`\n```\n- x\n~~~\n```\n<!-- - a --> - b\n**Ask first**\n1. Is it src/? → YES: stop"))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, err := policy.ReadFramework("AGENTS.md", data)
		if err != nil {
			return
		}
		want := map[policy.EntryKind]policy.Effect{policy.PreApproved: policy.Allow, policy.NeedsApproval: policy.Ask, policy.Forbidden: policy.Deny}
		last := 0
		for _, e := range w.Entries {
			if e.Line <= last || e.File != "AGENTS.md" {
				t.Errorf("entry at %s:%d behind line %d", e.File, e.Line, last)
			}
			last = e.Line
			if (e.Kind == policy.Advice) != (len(e.Rules) == 0) {
				t.Errorf("%s with %d rules: %q", e.Kind, len(e.Rules), e.Text)
			}
			for _, r := range e.Rules {
				if r.Effect != want[e.Kind] || r.Line != e.Line || r.Pattern == "" || r.Action == "" {
					t.Errorf("%q: %s of %s", e.Text, r, e.Kind)
				}
			}
		}
	})
}
