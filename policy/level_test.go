package policy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"glasshouse/fault"
	"glasshouse/policy"
)

var questions = []policy.Question{
	{Action: "bash", Resource: "npm test"}, {Action: "bash", Resource: "rm -rf x"}, {Action: "bash", Resource: "sudo id"},
	{Action: "bash", Resource: "ls"}, {Action: "bash", Resource: "git push --force"}, {Action: "bash", Resource: `eval "$X"`},
	{Action: "edit", Resource: "src/a.ts"}, {Action: "write", Resource: "a"}, {Action: "edit", Resource: "package.json"},
	{Action: "edit", Resource: "opencode.json"}, {Action: "edit", Resource: "/etc/x"}, {Action: "read", Resource: ".env"},
	{Action: "read", Resource: "a"}, {Action: "external_directory", Resource: "/etc/x"}, {Action: "webfetch", Resource: "https://x"},
	{Action: "connect", Resource: "x:443"}, {Action: "secret", Resource: "K"}, {Action: "call", Resource: "c"},
	{Action: "coordinate_sibling", Resource: "j"}, {Action: "request_resources", Resource: "memory=1"},
	{Action: "doom_loop", Resource: "bash"}, {Action: "some_tool", Resource: "x"}, {Action: "question", Resource: "x"},
}

func TestLevels(t *testing.T) {
	tests := []struct {
		action, resource string
		want             string // at levels 1, 2 and 3, without any file
	}{
		{"read", "a.ts", "allow allow allow"},
		{"bash", "ls", "ask allow allow"},
		{"bash", "rm -rf x", "deny allow allow"},
		{"bash", "rm -r -f x", "deny allow allow"},
		{"bash", "git push --force", "deny allow allow"},
		{"bash", "sudo ls", "deny allow allow"},
		{"edit", "a.ts", "ask allow allow"},
		{"webfetch", "https://x", "ask allow allow"},
		{"connect", "x:443", "ask allow allow"},
		{"secret", "K", "ask allow allow"},
		{"coordinate_sibling", "j", "ask ask allow"},
		{"request_resources", "memory=1", "ask ask allow"},
		{"external_directory", "/etc/x", "ask ask ask"},
		{"edit", "opencode.json", "ask ask ask"},
	}
	for _, tt := range tests {
		var got []string
		for l := policy.Guided; l <= policy.Full; l++ {
			got = append(got, string(decide(file(t, `{}`, level(l)), "", tt.action, tt.resource).Effect))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s %q = %s, want %s", tt.action, tt.resource, strings.Join(got, " "), tt.want)
		}
	}
}

// This holds for all permission files.
func TestLowerLevelIsNeverWeaker(t *testing.T) {
	for seed := range uint64(100) {
		text := randomFile(rand.New(rand.NewPCG(seed, 1)))
		for _, m := range []policy.Match{policy.Longest, policy.Last} {
			three := file(t, text, match(m), func(c *policy.Config) {
				c.Frameworks = append(c.Frameworks, framework(t, read(t, "testdata/AGENTS.md")))
			})
			for l := policy.Guided; l < policy.Full; l++ {
				low, high := at(t, three, l), at(t, three, l+1)
				for _, q := range questions {
					if a, b := low.Decide(q), high.Decide(q); policy.Stricter(a.Effect, b.Effect) != a.Effect {
						t.Fatalf("%s, match %s: %s %q is %s at %s and %s at %s", text, m, q.Action, q.Resource, a.Effect, l, b.Effect, l+1)
					}
				}
			}
		}
	}
}

func at(t *testing.T, s *policy.Set, l policy.Level) *policy.Set {
	t.Helper()
	s, err := s.At(l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var (
	someTools    = []string{"bash", "edit", "write", "read", "*", "b*", "webfetch", "external_directory", "coordinate_sibling", "some_tool"}
	somePatterns = []string{"*", "npm *", "rm *", "rm -rf *", "src/*", "*.env", "git push *", "a", "?", "*x*", "package.json", "/etc/*", "s*"}
	someEffects  = []string{"allow", "ask", "deny"}
)

func pick(r *rand.Rand, from []string) string { return from[r.IntN(len(from))] }

// randomFile returns a random permission file.
func randomFile(r *rand.Rand) string {
	block := func() string {
		var tools []string
		for range r.IntN(4) {
			tool := pick(r, someTools)
			if r.IntN(3) == 0 {
				tools = append(tools, fmt.Sprintf("%q: %q", tool, pick(r, someEffects)))
				continue
			}
			var patterns []string
			for range r.IntN(5) {
				patterns = append(patterns, fmt.Sprintf("%q: %q", pick(r, somePatterns), pick(r, someEffects)))
			}
			tools = append(tools, fmt.Sprintf("%q: {%s}", tool, strings.Join(patterns, ", ")))
		}
		return "{" + strings.Join(tools, ", ") + "}"
	}
	text := `{"permission": ` + block()
	if r.IntN(2) == 0 {
		text += fmt.Sprintf(`, "tools": {%q: %t}`, pick(r, someTools), r.IntN(2) == 0)
	}
	if r.IntN(2) == 0 {
		text += `, "agent": {"build": {"permission": ` + block() + `}}`
	}
	return text + "}"
}

// This holds in match mode Longest.
func TestAddedDenialNeverWeakens(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		text := randomFile(r)
		tool, pattern := pick(r, someTools), pick(r, somePatterns)
		more := fmt.Sprintf(`{"permission": {%q: {%q: "deny"}}}`, tool, pattern)
		if strings.Contains(text, fmt.Sprintf("%q: \"", tool)) {
			continue // a single effect, which an object would replace
		}
		l := policy.Level(1 + r.IntN(3))
		before := file(t, text, match(policy.Longest), level(l))
		after := file(t, text, match(policy.Longest), level(l), func(c *policy.Config) {
			c.Permissions = append(c.Permissions, permissions(t, "more.json", more))
		})
		for _, q := range questions {
			if a, b := before.Decide(q), after.Decide(q); policy.Stricter(a.Effect, b.Effect) != b.Effect {
				t.Fatalf("%s\nand %s: %s %q was %s by %s, is %s by %s", text, more, q.Action, q.Resource, a.Effect, a.Rule, b.Effect, b.Rule)
			}
		}
	}
}

func TestStricterIsALattice(t *testing.T) {
	all := []policy.Effect{policy.Allow, policy.Ask, policy.Deny}
	for _, a := range all {
		for _, b := range all {
			if policy.Stricter(a, b) != policy.Stricter(b, a) {
				t.Errorf("Stricter(%s, %s) depends on the order", a, b)
			}
			for _, c := range all {
				if policy.Stricter(a, policy.Stricter(b, c)) != policy.Stricter(policy.Stricter(a, b), c) {
					t.Errorf("Stricter of %s, %s, %s depends on what is taken first", a, b, c)
				}
			}
		}
		if policy.Stricter(a, a) != a || policy.Stricter(a, policy.Allow) != a || policy.Stricter(a, policy.Deny) != policy.Deny {
			t.Errorf("%s has not its place between allow and deny", a)
		}
	}
	if policy.Stricter(policy.Deny, "?") != policy.Deny && policy.Stricter("?", policy.Ask) != "?" {
		t.Error("what is no effect is not as strict as a denial")
	}
}

func TestRememberedAnswerNeverOverridesDenial(t *testing.T) {
	s := project(t)
	allow := func(action, pattern string) policy.Rule {
		return policy.Rule{Action: action, Pattern: pattern, Effect: policy.Allow}
	}
	s = s.Remember(allow("bash", "*")).Remember(allow("*", "*"))
	tests := []struct {
		agent, action, resource string
		want                    policy.Effect
		final                   bool
	}{
		{"worker", "bash", "echo hi", policy.Allow, false},
		{"worker", "bash", "git push", policy.Allow, false}, // a person has allowed it
		{"worker", "edit", "package.json", policy.Allow, false},
		{"worker", "bash", "rm -rf x", policy.Deny, true},
		{"worker", "bash", "echo hi && sudo id", policy.Deny, true},
		{"reviewer", "bash", "echo hi", policy.Deny, true},
		{"worker", "external_directory", "/etc/x", policy.Deny, true},
		{"worker", "edit", "opencode.json", policy.Ask, true},
		{"worker", "edit", ".opencode/plugin/x.ts", policy.Ask, true},
		{"worker", "edit", "/.glasshouse/init.sock", policy.Deny, true},
		{"worker", "edit", "/run/secrets/KEY", policy.Deny, true},
		{"worker", "read", "/proc/7/root/run/secrets/KEY", policy.Deny, true},
		{"worker", "bash", `eval "$X"`, policy.Ask, false}, // the pattern "*" must not allow a command line that cannot be parsed
	}
	for _, tt := range tests {
		if d := decide(s, tt.agent, tt.action, tt.resource); d.Effect != tt.want || d.Final != tt.final {
			t.Errorf("%s: %s %q = %s final %t: %s, want %s final %t", tt.agent, tt.action, tt.resource, d.Effect, d.Final, d.Reason, tt.want, tt.final)
		}
	}
	s = s.Remember(allow("bash", `eval "$X"`))
	if d := decide(s, "worker", "bash", `eval "$X"`); d.Effect != policy.Allow {
		t.Errorf("a line that was allowed for always is %s: %s", d.Effect, d.Reason)
	}
	if d := decide(s, "worker", "bash", `eval "$X" `); d.Effect != policy.Ask {
		t.Errorf("another line is %s", d.Effect)
	}
	if len(s.Remembered()) != 3 {
		t.Errorf("remembered are %v", s.Remembered())
	}
	s = s.Remember(policy.Rule{Action: "bash", Pattern: "git push *", Effect: policy.Deny})
	if d := decide(s, "worker", "bash", "git push"); d.Effect != policy.Deny || !d.Final {
		t.Errorf("git push, denied for always, is %s", d.Effect)
	}
}

// An approved access to a file outside the workspace does not need a second approval for being
// outside.
func TestRememberedAnswerCoversAllParts(t *testing.T) {
	for _, q := range []policy.Question{
		{Action: "edit", Resource: "/srv/x"},
		{Action: "bash", Resource: "cat /srv/x && eval \"$X\""},
		{Action: "bash", Resource: "ls *.go > $OUT"},
	} {
		s := file(t, `{"permission": {"bash": {"*": "ask"}}}`)
		if d := s.Decide(q); d.Effect != policy.Ask {
			t.Errorf("%s = %s, want ask", q.Resource, d.Effect)
		}
		s = s.Remember(policy.Rule{Action: q.Action, Pattern: q.Resource, Effect: policy.Allow})
		if d := s.Decide(q); d.Effect != policy.Allow || d.Listed {
			t.Errorf("%s, allowed for always, = %s: %s", q.Resource, d.Effect, d.Reason)
		}
		q.Resource += "y"
		if d := s.Decide(q); d.Effect != policy.Ask {
			t.Errorf("%s, which is another, = %s: %s", q.Resource, d.Effect, d.Reason)
		}
	}
}

func TestRememberedAnswerCoversOnlyItsCommand(t *testing.T) {
	s := project(t).Remember(policy.Rule{Action: "bash", Pattern: "git push *", Effect: policy.Allow})
	for line, want := range map[string]policy.Effect{
		"git push":                    policy.Allow,
		"git push && npm test":        policy.Allow,
		"git push && echo hi":         policy.Ask,
		"git push; rm -rf x":          policy.Deny,
		"/tmp/git push":               policy.Ask,
		"git push > package.json":     policy.Ask,
		"git pull":                    policy.Ask,
		`git push origin "$BRANCH"`:   policy.Allow,
		`git push origin $(cat list)`: policy.Ask, // cat needs approval
	} {
		if d := decide(s, "worker", "bash", line); d.Effect != want {
			t.Errorf("%q = %s: %s, want %s", line, d.Effect, d.Reason, want)
		}
	}
}

func hold(t *testing.T, s *policy.Set, ceiling policy.Level) *policy.Holder {
	t.Helper()
	h, err := policy.NewHolder(s, ceiling)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestAgentCannotRaiseLevel(t *testing.T) {
	h := hold(t, file(t, `{}`, level(policy.Full)), policy.Intelligent)
	ls := policy.Question{Action: "bash", Resource: "ls"}
	if l := h.Set().Level(); l != policy.Intelligent {
		t.Errorf("the level is %s, want the ceiling", l)
	}
	if err := h.Tighten(policy.Guided); err != nil {
		t.Fatal(err)
	}
	if d := h.Decide(ls); d.Effect != policy.Ask {
		t.Errorf("ls = %s right after level 1, want ask", d.Effect)
	}
	refused := map[string]error{
		"an agent raises":                h.Raise(policy.Intelligent, policy.Agent),
		"a role nobody has":              h.Raise(policy.Intelligent, 7),
		"an operator above the ceiling":  h.Raise(policy.Full, policy.Operator),
		"a tightening to a higher level": h.Tighten(policy.Intelligent),
		"a tightening that allows":       h.Tighten(policy.Guided, policy.Rule{Action: "*", Pattern: "*", Effect: policy.Allow}),
		"a tightening with no effect":    h.Tighten(policy.Guided, policy.Rule{Action: "*", Pattern: "*"}),
		"a higher ceiling":               h.Lower(policy.Full),
		"other rules from an agent":      h.Replace(file(t, `{}`, level(policy.Guided)), policy.Agent),
		"other rules above the ceiling":  h.Replace(file(t, `{}`, level(policy.Full)), policy.Operator),
	}
	for what, err := range refused {
		if !errors.Is(err, fault.Denied) {
			t.Errorf("%s: %v, want denied", what, err)
		}
	}
	if l := h.Set().Level(); l != policy.Guided {
		t.Errorf("the level is %s after what was refused", l)
	}
	if err := h.Raise(policy.Intelligent, policy.Operator); err != nil {
		t.Error(err)
	}
	if d := h.Decide(ls); d.Effect != policy.Allow {
		t.Errorf("ls = %s after an operator raised the level, want allow", d.Effect)
	}
	if err := h.Lower(policy.Guided); err != nil || h.Set().Level() != policy.Guided || h.Ceiling() != policy.Guided {
		t.Errorf("lowering the ceiling: %v, level %s, ceiling %s", err, h.Set().Level(), h.Ceiling())
	}
	if err := h.Raise(policy.Intelligent, policy.Operator); !errors.Is(err, fault.Denied) {
		t.Errorf("an operator above the lowered ceiling: %v, want denied", err)
	}
}

// Tightening takes precedence over files, remembered answers and a raised level.
func TestTighteningTakesPrecedence(t *testing.T) {
	h := hold(t, file(t, `{"permission": "allow"}`), policy.Full)
	h.Remember(policy.Rule{Action: "*", Pattern: "*", Effect: policy.Allow})
	if err := h.Tighten(policy.Full,
		policy.Rule{Action: "bash", Pattern: "curl *", Effect: policy.Ask},
		policy.Rule{Action: "write", Pattern: "lib/*", Effect: policy.Deny}); err != nil {
		t.Fatal(err)
	}
	h.Remember(policy.Rule{Action: "bash", Pattern: "curl *", Effect: policy.Allow})
	if err := h.Raise(policy.Full, policy.Operator); err != nil {
		t.Fatal(err)
	}
	if d := h.Decide(policy.Question{Action: "bash", Resource: "curl x"}); d.Effect != policy.Ask || !d.Final {
		t.Errorf("curl = %s by %s, want ask, whatever was remembered", d.Effect, d.Rule)
	}
	if d := h.Decide(policy.Question{Action: "edit", Resource: "lib/a"}); d.Effect != policy.Deny {
		t.Errorf("lib/a = %s by %s, want deny", d.Effect, d.Rule)
	}
	if d := h.Decide(policy.Question{Action: "bash", Resource: "ls"}); d.Effect != policy.Allow {
		t.Errorf("ls = %s, want allow", d.Effect)
	}
}

// No later decision uses the older rules.
func TestTighteningIsImmediate(t *testing.T) {
	h := hold(t, file(t, `{"permission": "allow"}`), policy.Full)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			q := policy.Question{Action: "bash", Resource: fmt.Sprintf("tool-%d x", i)}
			for range 50 {
				if d := h.Decide(q); d.Effect != policy.Allow {
					t.Errorf("%s = %s before it is denied", q.Resource, d.Effect)
				}
			}
			if err := h.Tighten(policy.Full, policy.Rule{Action: "bash", Pattern: fmt.Sprintf("tool-%d *", i), Effect: policy.Deny}); err != nil {
				t.Error(err)
			}
			for range 50 {
				if d := h.Decide(q); d.Effect != policy.Deny {
					t.Errorf("%s = %s after it was denied", q.Resource, d.Effect)
				}
			}
		})
	}
	wg.Wait()
}
