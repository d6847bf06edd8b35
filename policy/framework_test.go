package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/policy"
)

func TestReadFramework(t *testing.T) {
	tests := []struct {
		heading, item string
		kind          policy.EntryKind
		rules         string // the first of them, or all joined by "; "
	}{
		{"Autonomous Actions (pre-approved)", "Write code in src/ directory", "pre-approved", `edit "src/*": allow`},
		{"Autonomous Actions (pre-approved)", "Run tests with npm test", "pre-approved", `bash "npm test *": allow`},
		{"Autonomous Actions (pre-approved)", "Create tasks via create_task tool", "pre-approved", `create_task "*": allow`},
		{"Autonomous Actions (pre-approved)", "Format code", "pre-approved", `bash "npm run format *": allow`},
		{"Autonomous Actions (pre-approved)", "Deploy to production", "advice", ""},
		{"Autonomous Actions (pre-approved)", "Be kind", "advice", ""},
		{"Autonomous Actions (pre-approved)", "Run `go test ./...`", "pre-approved", `bash "go test ./... *": allow`},
		{"Autonomous Actions (pre-approved)", "Edit `docs/*.md` and README.md", "pre-approved", `edit "docs/*.md": allow; edit "README.md": allow`},
		{"Actions Requiring Approval", "Modify package.json", "needs approval", `edit "package.json": ask; edit "*/package.json": ask`},
		{"Actions Requiring Approval", "Delete files", "needs approval", `bash "rm *": ask`},
		{"Actions Requiring Approval", "Push to git", "needs approval", `bash "git push *": ask`},
		{"Actions Requiring Approval", "External API calls", "needs approval", `webfetch "*": ask`},
		{"Actions Requiring Approval", "Use the deploy_site tool", "needs approval", `deploy_site "*": ask`},
		{"Actions Requiring Approval", "Install new dependencies", "needs approval", `bash "npm install *": ask`},
		{"Actions Requiring Approval", "Run `docker compose up -d`", "needs approval", `bash "docker compose *": ask`},
		{"Actions Requiring Approval", "Read secrets or API keys", "needs approval", `secret "*": ask`},
		{"Actions Requiring Approval", "Anything you are unsure of", "advice", ""},
		{"Never do", "Force push to main", "forbidden", `bash "git push --force *": deny`},
		{"Forbidden", "Edit files under infra/", "forbidden", `edit "infra/*": deny; edit "*/infra/*": deny`},
		{"Allowed without asking", "Run npm test", "pre-approved", `bash "npm test *": allow`},
		{"No approval needed", "Run npm test", "pre-approved", `bash "npm test *": allow`},
		{"Ask first", "Run npm publish", "needs approval", `bash "npm publish *": ask`},
		{"Code style", "Run npm test", "advice", ""},
	}
	for _, tt := range tests {
		f := framework(t, "# Project\n\n## "+tt.heading+"\n- "+tt.item+"\n")
		if len(f.Entries) != 1 {
			t.Errorf("%s: %d entries, want 1", tt.item, len(f.Entries))
			continue
		}
		e := f.Entries[0]
		var rules []string
		for _, r := range e.Rules {
			if r.File != "AGENTS.md" || r.Line != 4 {
				t.Errorf("%s: %s is said to be elsewhere", tt.item, r)
			}
			r.File, r.Line = "", 0
			rules = append(rules, r.String())
		}
		if got := strings.Join(rules, "; "); e.Kind != tt.kind || !strings.HasPrefix(got, tt.rules) || (tt.rules == "") != (got == "") {
			t.Errorf("%s: %s: %s %s, want %s %s", tt.heading, tt.item, e.Kind, got, tt.kind, tt.rules)
		}
	}
}

func TestFrameworkQuestions(t *testing.T) {
	for line, want := range map[string]policy.EntryKind{
		"1. Is this within my authorized tools? → YES: Act autonomously":           policy.Advice, // the permissions define them
		"2. Is this modifying src/ code? → YES: Autonomous":                        policy.PreApproved,
		"3. Is this a destructive operation? → YES: Ask for approval":              policy.NeedsApproval,
		"4. Does this affect project configuration? -> Yes: ask":                   policy.NeedsApproval,
		"- Does it call an external API? If yes, ask for confirmation":             policy.NeedsApproval,
		"- Does it touch infra/ files? YES: Stop":                                  policy.Forbidden,
		"- Is this modifying docs/ files? => YES: Proceed without asking, NO: ask": policy.PreApproved,
		"- Is it late? YES: ask":                                                   policy.Advice,
	} {
		f := framework(t, "## Self-Decision Framework\n\n"+line+"\n")
		if len(f.Entries) != 1 || f.Entries[0].Kind != want {
			t.Errorf("%s: %+v, want %s", line, f.Entries, want)
		}
	}
}

func TestTextOutsideOfRulesIsAdvice(t *testing.T) {
	f := framework(t, `# My project

Some words, with `+"`npm test`"+` in them,
over two lines.

## Actions Requiring Approval

Before these, ask:

- Push to git
  and nowhere else
- [ ] Delete files

<!--
- Modify src/x.ts
-->

`+"```"+`
- Modify package.json
`+"```"+`

### More
* Use tabs

**Autonomous actions**
1) Run npm test
`)
	var got []string
	for _, e := range f.Entries {
		got = append(got, string(e.Kind)+": "+e.Text)
	}
	want := []string{
		"advice: Some words, with `npm test` in them, over two lines.",
		"advice: Before these, ask:",
		"needs approval: Push to git and nowhere else",
		"needs approval: Delete files",
		"advice: Use tabs",
		"pre-approved: Run npm test",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	s := project(t)
	var advice []string
	for _, a := range s.Advice() {
		advice = append(advice, a.Text)
	}
	if len(advice) != 2 || s.Advice()[1].Line != 4 {
		t.Errorf("advice is %q, want the two sentences without rules", advice)
	}
}

func TestPreApprovalNeverOverridesDenial(t *testing.T) {
	agents := "## Pre-approved\n- Run `make deploy`\n- Run `rm`\n- Edit lib/x.ts\n## Needs approval\n- Edit lib/\n- Run `npm test`\n## Forbidden\n- Run `sudo`\n"
	text := `{"permission": {"bash": {"*": "ask", "rm *": "deny", "npm *": "allow", "sudo *": "allow"}, "edit": "ask"}}`
	with := func(c *policy.Config) { c.Frameworks = append(c.Frameworks, framework(t, agents)) }
	tests := []struct {
		action, resource string
		want             [3]policy.Effect // by level
	}{
		{"bash", "make deploy", [3]policy.Effect{policy.Ask, policy.Allow, policy.Allow}},
		{"bash", "make", [3]policy.Effect{policy.Ask, policy.Ask, policy.Ask}},
		{"bash", "rm x", [3]policy.Effect{policy.Deny, policy.Deny, policy.Deny}},
		{"bash", "npm test", [3]policy.Effect{policy.Ask, policy.Ask, policy.Ask}},
		{"bash", "npm run x", [3]policy.Effect{policy.Allow, policy.Allow, policy.Allow}},
		{"bash", "sudo x", [3]policy.Effect{policy.Deny, policy.Deny, policy.Deny}},
		{"edit", "lib/x.ts", [3]policy.Effect{policy.Ask, policy.Ask, policy.Ask}},
		{"edit", "opencode.json", [3]policy.Effect{policy.Ask, policy.Ask, policy.Ask}},
	}
	for _, tt := range tests {
		for i, want := range tt.want {
			s := file(t, text, with, level(policy.Level(i+1)))
			if d := decide(s, "", tt.action, tt.resource); d.Effect != want || d.Listed && want != policy.Allow {
				t.Errorf("level %d: %s %q = %s: %s, want %s", i+1, tt.action, tt.resource, d.Effect, d.Reason, want)
			}
		}
	}
}

func TestTooLargeFrameworkIsRefused(t *testing.T) {
	if _, err := policy.ReadFramework("AGENTS.md", make([]byte, 2<<20)); err == nil {
		t.Error("it was read")
	}
}

// Files that are designed to be slow to parse or to become large are refused or stay small.
func TestHostileFilesAreCheap(t *testing.T) {
	for what, text := range map[string]string{
		"one paragraph of short lines": strings.Repeat("a\n", 500_000),
		"many comments":                strings.Repeat("<!---->\n", 120_000),
		"many fences":                  strings.Repeat("```\n", 250_000),
	} {
		if f := framework(t, text); len(f.Entries) > 1 {
			t.Errorf("%s became %d entries", what, len(f.Entries))
		}
	}
	for says, text := range map[string]string{
		"a line of":    "## Pre-approved\n- " + strings.Repeat("npm x ", 100_000),
		"an entry of":  "## Ask first\n- settings\n" + strings.Repeat("  a\n", 10_000),
		"rules":        "## Ask first\n" + strings.Repeat("- settings\n", 50_000),
		"AGENTS.md:1:": "# " + strings.Repeat("not approval ", 70_000),
	} {
		if _, err := policy.ReadFramework("AGENTS.md", []byte(text)); err == nil || !strings.Contains(err.Error(), says) || fault.RemedyOf(err) == "" {
			t.Errorf("%v, want %q, with a remedy", err, says)
		}
	}
	var many strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&many, `"%d":"ask",`, i)
	}
	if _, err := policy.ReadPermissions("opencode.json", []byte(`{"permission": {`+many.String()+`}}`)); err == nil || !strings.Contains(err.Error(), "rules") {
		t.Errorf("a file of 20 000 rules: %v", err)
	}
}
