package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"glasshouse/policy"
)

// thousand returns a file of 1,000 rules for commands and files.
func thousand(t testing.TB, m policy.Match) *policy.Set {
	var b strings.Builder
	b.WriteString(`{"permission": {"bash": {"*": "ask"`)
	for i := range 500 {
		fmt.Fprintf(&b, `, "npm run task-%d *": %q`, i, []string{"allow", "ask", "deny"}[i%3])
	}
	b.WriteString(`, "git status *": "allow"}, "edit": {"*": "ask"`)
	for i := range 500 {
		fmt.Fprintf(&b, `, "src/part%d/*.ts": %q`, i, []string{"allow", "ask", "deny"}[i%3])
	}
	b.WriteString(`}}}`)
	return compile(t, policy.Config{
		Permissions: []*policy.Permissions{permissions(t, "opencode.json", b.String())},
		Match:       m, Level: policy.Full, Home: "/root", Workspace: "/work",
	})
}

// BenchmarkDecideOptions uses a thousand rules for options of one program.
func BenchmarkDecideOptions(b *testing.B) {
	var text strings.Builder
	text.WriteString(`{"permission": {"bash": {"*": "allow"`)
	for i := range 1000 {
		fmt.Fprintf(&text, `, "rm -rf x%d": "deny"`, i)
	}
	s := file(b, text.String()+"}}}", match(policy.Longest))
	q := policy.Question{Action: "bash", Resource: "rm -r -f x999"}
	if d := s.Decide(q); d.Effect != policy.Deny {
		b.Fatalf("%s = %s", q.Resource, d.Effect)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Decide(q)
	}
}

// BenchmarkDecideNewLine measures lines that are not cached.
func BenchmarkDecideNewLine(b *testing.B) {
	s := thousand(b, policy.Longest)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		s.Decide(policy.Question{Action: "bash", Resource: fmt.Sprintf("npm run task-%d --silent", n)})
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, m := range []policy.Match{policy.Longest, policy.Last} {
		s := thousand(b, m)
		for _, q := range []policy.Question{
			{Action: "edit", Resource: "src/part333/login.ts"},
			{Action: "edit", Resource: "/work/src/part333/deep/er/login.ts"},
			{Action: "webfetch", Resource: "https://example.com/"},
			{Action: "bash", Resource: "git status"},
			{Action: "bash", Resource: "npm run task-498 --silent"},
			{Action: "bash", Resource: "npm run task-498 && git status | cat"},
		} {
			b.Run(fmt.Sprintf("%s/%s/%s", m, q.Action, strings.ReplaceAll(q.Resource, " ", "_")), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.Decide(q)
				}
			})
		}
	}
}
