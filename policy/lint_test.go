package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"glasshouse/policy"
)

// brief formats findings as "line kind".
func brief(all []policy.Finding) string {
	var s []string
	for _, f := range all {
		s = append(s, fmt.Sprintf("%d %s", f.Line, f.Kind))
	}
	return strings.Join(s, ", ")
}

// Lint reports every rule of the project's file that current OpenCode would evaluate
// differently, and no other rule of bash.
func TestLintReportsOtherMatchMode(t *testing.T) {
	got := brief(project(t).Lint())
	want := "7 evaded, 7 reading, 8 evaded, 8 reading, 9 reading, 10 reading, 11 reading, 12 reading, 13 reading, 14 reading, 15 reading, 29 reading, 37 reading"
	if got != want {
		t.Errorf("read as it was written:\n%s, want\n%s", got, want)
	}
	got = brief(project(t, match(policy.Last)).Lint())
	want = "7 never, 7 reading, 8 never, 8 reading, 9 never, 9 reading, 10 never, 10 reading, 11 never, 11 reading, 12 never, 12 reading, " +
		"13 never, 13 reading, 14 never, 14 reading, 15 reading, 17 no effect, 29 reading, 29 weak, 37 reading, 37 weak"
	if got != want {
		t.Errorf("read as today:\n%s, want\n%s", got, want)
	}
}

func TestLintNames(t *testing.T) {
	tests := []struct {
		name, file string
		match      policy.Match
		want       string // "line kind", of all findings
		says       string // in one of them
	}{
		{"nothing, where nothing is wrong", "{\"permission\": {\"bash\": {\n\"*\": \"ask\",\n\"git log *\": \"allow\"}}}", policy.Last, "", ""},
		{"a rule after one that matches everything", "{\"permission\": {\"bash\": {\n\"git log *\": \"ask\",\n\"git *\": \"ask\"}}}", policy.Last,
			"2 never", `"git *": ask (opencode.json:3) matches everything that it matches`},
		{"a tool after a rule for all tools", "{\"permission\": {\n\"webfetch\": \"deny\",\n\"*\": \"ask\"}}", policy.Last,
			"2 never, 2 reading", "move it after line 3"},
		{"a key that nobody asks about", "{\"permission\": {\n\"write\": \"deny\"}}", policy.Last, "2 no effect, 2 reading", `write "edit"`},
		{"the same key, honoured", "{\"permission\": {\n\"write\": \"deny\"}}", policy.Longest, "2 reading", "with match: last it would be allow"},
		{"a name that no tool has", "{\"permission\": {\n\"shell\": \"deny\"}}", policy.Last, "2 no effect", `write "bash"`},
		{"a name written large", "{\"permission\": {\n\"Bash\": \"deny\"}}", policy.Last, "2 no effect", `write "bash"`},
		{"a key written twice", "{\"permission\": {\"bash\": {\n\"a\": \"deny\",\n\"b\": \"ask\",\n\"a\": \"ask\"}}}", policy.Last, "2 no effect, 3 evaded, 4 evaded", ""},
		{"patterns where OpenCode accepts one effect", "{\"permission\": {\"webfetch\": {\n\"https://x/*\": \"deny\"}}}", policy.Last, "2 no effect", "rejects"},
		{"options in another order", "{\"permission\": {\"bash\": {\n\"rm -rf *\": \"deny\"}}}", policy.Last, "2 evaded, 2 reading", `"rm -fr x"`},
		{"other programs that do the same", "{\"permission\": {\"bash\": {\n\"rm *\": \"deny\"}}}", policy.Longest, "2 evaded", `"unlink x"`},
		{"no other program, where all is asked", "{\"permission\": {\"bash\": {\n\"*\": \"ask\",\n\"rm *\": \"deny\"}}}", policy.Longest, "", ""},
		{"a path of a program", "{\"permission\": {\"bash\": {\n\"/bin/rm *\": \"deny\"}}}", policy.Last, "2 evaded", `write "rm *"`},
		{"a command without its arguments", "{\"permission\": {\"bash\": {\n\"git push\": \"deny\"}}}", policy.Last, "2 evaded", `"git push x"`},
		{"several commands in one pattern", "{\"permission\": {\"bash\": {\n\"* && rm *\": \"deny\"}}}", policy.Last, "2 never", "are split"},
		{"what runs anything", "{\"permission\": {\"bash\": {\n\"*\": \"ask\",\n\"make *\": \"allow\"}}}", policy.Last, "3 evaded", `"make x"`},
		{"a path that no path is like", "{\"permission\": {\"edit\": {\n\"./src/*\": \"deny\",\n\"lib/\": \"deny\"}}}", policy.Last, "2 never, 3 never", `write "lib/*"`},
		{"a word that lifts a default", "{\"permission\": {\n\"read\": \"allow\"}}", policy.Last, "2 weak", `"*.env": ask`},
		{"an agent's word that cancels denials", "{\"permission\": {\"bash\": {\n\"x\": \"deny\",\n\"x *\": \"deny\"}}, \"agent\": {\"a\": {\n\"permission\": {\"bash\": \"allow\"}}}}", policy.Last,
			"2 never, 3 reading, 4 reading, 4 weak", "for agent a it overrides"},
	}
	for _, tt := range tests {
		all := file(t, tt.file, match(tt.match)).Lint()
		says := slices.ContainsFunc(all, func(f policy.Finding) bool { return strings.Contains(f.String(), tt.says) })
		if got := brief(all); got != tt.want || tt.says != "" && !says {
			t.Errorf("%s: %s, want %s, saying %q; all: %v", tt.name, got, tt.want, tt.says, all)
		}
		for _, f := range all {
			if f.File != "opencode.json" || f.Remedy == "" {
				t.Errorf("%s: no file or no remedy: %s", tt.name, f)
			}
		}
	}
}

func TestLintReportsDeniedPreApproval(t *testing.T) {
	s := file(t, `{"permission": {"bash": {"*": "ask", "git push *": "deny"}}}`, func(c *policy.Config) {
		c.Frameworks = append(c.Frameworks, framework(t, "## Pre-approved\n- Push to git\n"))
	})
	all := s.Lint()
	if len(all) != 1 || all[0].File != "AGENTS.md" || all[0].Line != 2 || all[0].Kind != policy.Never {
		t.Errorf("Lint = %v, want line 2 of AGENTS.md", all)
	}
}

func TestExplain(t *testing.T) {
	s := project(t)
	q := policy.Question{Subject: policy.Subject{Agent: "worker"}, Action: "bash", Resource: "npm test && rm -rf x > package.json"}
	d, all := s.Explain(q)
	if want := s.Decide(q); d != want {
		t.Errorf("Explain = %+v, Decide = %+v", d, want)
	}
	deciding := map[string]string{}
	for _, c := range all {
		if c.Decides && !c.Matches {
			t.Errorf("%s decides %s and does not match", c.Rule, c.Part)
		}
		if c.Decides {
			deciding[c.Part] = c.Rule.String()
		}
	}
	want := map[string]string{
		"bash: npm test":     `bash "npm *": allow (opencode.json:7)`,
		"bash: rm -rf x":     `bash "rm -rf *": deny (opencode.json:13)`,
		"edit: package.json": `edit "package.json": ask (AGENTS.md:7)`,
	}
	for part, rule := range want {
		if deciding[part] != rule {
			t.Errorf("%s is decided by %q, want %q", part, deciding[part], rule)
		}
	}
	if len(deciding) != len(want) {
		t.Errorf("decided were %v", deciding)
	}
	var sets []string
	for _, c := range all {
		if c.Part == "bash: npm test" && !slices.Contains(sets, c.Set) {
			sets = append(sets, c.Set)
		}
	}
	if got := strings.Join(sets, ", "); got != "decision framework, permissions, OpenCode defaults" {
		t.Errorf("rule sets were looked at in the order %s", got)
	}
}

// Lint also reports that it did not check all rules.
func TestLintIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"permission": {"bash": {"x": "ask"`)
	for i := range 2400 {
		fmt.Fprintf(&b, ",\n\"rm -rf x%d *\": \"deny\"", i)
	}
	b.WriteString(`}`)
	for i := range 2400 {
		fmt.Fprintf(&b, `,"t%d": "allow"`, i)
	}
	b.WriteString(`}, "agent": {"a0": {}`)
	for i := range 90 {
		fmt.Fprintf(&b, `, "a%d": {"permission": {"bash": "allow"}}`, i)
	}
	b.WriteString(`}}`)
	all := file(t, b.String(), match(policy.Last)).Lint()
	if !slices.ContainsFunc(all, func(f policy.Finding) bool { return f.Kind == policy.TooMany }) {
		t.Error("no finding reports that rules were skipped")
	}
	small := thousand(t, policy.Last).Lint()
	if slices.ContainsFunc(small, func(f policy.Finding) bool { return f.Kind == policy.TooMany }) {
		t.Error("a thousand rules were too many")
	}
}

// An arrow that was decoded with a wrong encoding turns a question into advice.
func TestLintReportsWrongEncoding(t *testing.T) {
	const questions = `
1. Is this within my authorized tools? %[1]s YES: Act autonomously
2. Is this modifying src/ code? %[1]s YES: Autonomous
3. Is this a destructive operation? %[1]s YES: Ask for approval
4. Does this affect project configuration? %[1]s YES: Ask for approval
`
	for arrow, want := range map[string]int{"→": 0, "->": 0, "â†’": 4, "\u00e2\u0086\u0092": 4, "\xe2\x86": 4} {
		s, err := policy.Compile(policy.Config{Frameworks: []*policy.Framework{framework(t, "## Self-Decision Framework\n"+fmt.Sprintf(questions, arrow))}})
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, f := range s.Lint() {
			if strings.Contains(f.Message, "wrongly encoded") && f.Remedy != "" {
				got++
			}
		}
		if got != want {
			t.Errorf("lint of questions with %q names %d of them, want %d: %v", arrow, got, want, s.Lint())
		}
	}
}
