package gateway

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"glasshouse/agents/agent/acp"
	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/jail"
	"glasshouse/policy"
)

// Each call maps to questions that a policy can decide.
func TestQuestionsOfToolCalls(t *testing.T) {
	for name, tt := range map[string]struct {
		call acp.ToolCall
		want []question
		own  bool
	}{
		"a tool of the gateway":     {acp.ToolCall{Tool: "mcp__glasshouse__create_task"}, nil, true},
		"a command of another kind": {acp.ToolCall{Kind: "read", Command: "rm x"}, []question{{Action: "bash", Resource: "rm x"}}, false},
		"a command that is a title": {acp.ToolCall{Kind: "execute", Command: "rm …", CommandFromTitle: true}, []question{{"bash", "rm …", true}}, false},
		"files":                     {acp.ToolCall{Kind: "edit", Paths: []string{"/a", "/b"}}, []question{{Action: "edit", Resource: "/a"}, {Action: "edit", Resource: "/b"}}, false},
		"a file that is deleted":    {acp.ToolCall{Kind: "delete", Paths: []string{"/a"}}, []question{{Action: "edit", Resource: "/a"}}, false},
		"a page":                    {acp.ToolCall{Kind: "fetch", URL: "https://a.example/"}, []question{{Action: "webfetch", Resource: "https://a.example/"}}, false},
		"a known tool":              {acp.ToolCall{Kind: "other", Tool: "Write", Paths: []string{"/a"}}, []question{{Action: "write", Resource: "/a"}}, false},
		"an unknown tool's input":   {acp.ToolCall{Tool: "deploy", Input: json.RawMessage(`{"name": "web"}`)}, []question{{Action: "deploy", Resource: "web"}}, false},
		"nothing but a title":       {acp.ToolCall{Kind: "think", Title: "Thinking"}, []question{{"think", "Thinking", true}}, false},
		"nothing at all":            {acp.ToolCall{}, []question{{"other", "", true}}, false},
	} {
		got, own := questionsOf(tt.call)
		if diff := cmp.Diff(tt.want, got); diff != "" || own != tt.own {
			t.Errorf("%s: own = %v, want %v (-want +got)\n%s", name, own, tt.own, diff)
		}
	}
}

func TestToolOfMapsHarnessNames(t *testing.T) {
	for in, want := range map[string]string{"Bash": "bash", "run_shell_command": "bash", "MultiEdit": "edit", "Write": "write", "web_fetch": "webfetch", "LS": "list", "deploy": "deploy"} {
		if got, own := ToolOf(in); got != want || own {
			t.Errorf("ToolOf(%s) = %s, %v, want %s", in, got, own, want)
		}
	}
	for _, in := range []string{"mcp__glasshouse__bash", "glasshouse_create_task", "mcp_glasshouse_x", "glasshouse__x"} {
		if _, own := ToolOf(in); !own {
			t.Errorf("ToolOf(%s) is not the gateway's, want a gateway tool", in)
		}
	}
	if !RecordsToolUse("create_task") || !RecordsToolUse("coordinate_sibling") || RecordsToolUse("bash") || RecordsToolUse("write") {
		t.Error("Records names other tools than create_task and coordinate_sibling")
	}
}

func TestSelectLines(t *testing.T) {
	const text = "one\ntwo\nthree"
	for _, tt := range []struct {
		first, limit int
		want         string
	}{{0, 0, text}, {1, 0, text}, {2, 0, "two\nthree"}, {2, 1, "two\n"}, {1, 2, "one\ntwo\n"}, {3, 5, "three"}, {4, 1, ""}, {9, 0, ""}, {-3, 1, "one\n"}} {
		if got := string(selectLines([]byte(text), tt.first, tt.limit)); got != tt.want {
			t.Errorf("selectLines(%d, %d) = %q, want %q", tt.first, tt.limit, got, tt.want)
		}
	}
}

func TestShellQuote(t *testing.T) {
	for want, argv := range map[string][]string{
		"ls -l": {"ls", "-l"}, "echo 'a b'": {"echo", "a b"}, "rm '$HOME'": {"rm", "$HOME"}, "echo ''": {"echo", ""},
	} {
		if got := shellQuote(argv); got != want {
			t.Errorf("shellQuote(%q) = %s, want %s", argv, got, want)
		}
	}
}

func TestTruncatedOutputKeepsBothEnds(t *testing.T) {
	var c truncatedOutput
	for range 40 {
		if n, err := c.Write([]byte(strings.Repeat("x", 4096))); n != 4096 || err != nil {
			t.Fatalf("Write = %d, %v, want 4096", n, err)
		}
	}
	c.Write([]byte("the end"))
	text, lost := c.text(0)
	if !lost || !strings.HasSuffix(text, "the end") || !strings.HasPrefix(text, "xxxx") || len(text) > maxToolText+100 {
		t.Errorf("text of %d bytes, lost %v, want the beginning and the end", len(text), lost)
	}
	var short truncatedOutput
	short.Write([]byte("a\xff"))
	if text, lost := short.text(2); text != "a\uFFFD" || lost {
		t.Errorf("text = %q, lost %v, want the complete text with the byte replaced", text, lost)
	}
	if text, lost := short.text(100); !lost || !strings.Contains(text, "98 bytes left out") {
		t.Errorf("text = %q, lost %v, want a note of 98 missing bytes", text, lost)
	}
}

func TestAgentOutputKeepsLastBytes(t *testing.T) {
	var o agentOutput
	o.add(1, []byte(strings.Repeat("a", maxLast)))
	o.add(2, []byte(" error\n"))
	if got := o.lastOutput(); len(got) > maxLast || !strings.HasSuffix(got, "a error") {
		t.Errorf("last output = %d bytes ending in %q, want the error", len(got), got[max(0, len(got)-10):])
	}
	if len(o.stdout) != maxLast {
		t.Errorf("standard output = %d bytes, want %d", len(o.stdout), maxLast)
	}
}

func TestInputRejectsUnknownFields(t *testing.T) {
	if in, err := inputOf[commandInput](nil); err != nil || *in != (commandInput{}) {
		t.Errorf("inputOf(nil) = %+v, %v, want an empty input", in, err)
	}
	for _, raw := range []string{`{"comand": "ls"}`, `[]`, `{"command": 5}`, `{`} {
		if _, err := inputOf[commandInput](json.RawMessage(raw)); !errors.Is(err, fault.Invalid) {
			t.Errorf("inputOf(%s) = %v, want invalid", raw, err)
		}
	}
}

func TestAgentWithDefaults(t *testing.T) {
	def := Agent{Preset: "opencode", Model: "m", Spawner: InJail, Level: 2, Env: map[string]string{"A": "1", "B": "2"}, Skills: []string{"x"}, Argv: []string{"-v"}, Jail: &jail.Spec{Name: "d"}, Trusted: true}
	got := Agent{Env: map[string]string{"B": "3"}, PolicyAgent: "reviewer"}.withDefaults(def)
	want := def
	want.Env, want.Protocol, want.PolicyAgent = map[string]string{"A": "1", "B": "3"}, "run", "reviewer"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("agent with defaults (-want +got)\n%s", diff)
	}
	got = Agent{Preset: "shell", Skills: []string{}, Jail: &jail.Spec{Name: "mine"}}.withDefaults(def)
	if got.Argv != nil || len(got.Skills) != 0 || got.Trusted || got.Jail.Name != "mine" {
		t.Errorf("another preset = %+v, want none of the default's arguments, skills or trust", got)
	}
	if env := got.environment(); len(env) != 2 || env[0] != "A=1" {
		t.Errorf("environment = %q, want it sorted", env)
	}
}

func TestDefaultPolicy(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	env.caps.skills["ship"] = []string{"ship.it"}
	for name, tt := range map[string]struct {
		spawner string
		edit    policy.Effect
	}{"in a jail": {InJail, policy.Allow}, "as a process of the host": {InProcess, policy.Ask}} {
		raw, err := env.g.policySpec(Agent{Spawner: tt.spawner, Skills: []string{"ship"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := env.kernel.GovernRun(t.Context(), "r-1", raw, workspace); err != nil {
			t.Fatal(err)
		}
		for _, q := range []struct {
			action, resource string
			want             policy.Effect
		}{
			{"edit", "src/a", tt.edit}, {"bash", "make", tt.edit}, {"bash", "sudo make", policy.Deny}, {"call", "ship.it", policy.Allow}, {"call", "other", policy.Ask},
			{"call", "memory.get", policy.Allow}, {"secret", "KEY", policy.Ask}, {"request_resources", "cpu=9", policy.Ask}, {"create_task", "x", policy.Allow},
		} {
			got := env.kernel.Decide(policy.Question{Subject: policy.Subject{Run: "r-1"}, Action: q.action, Resource: q.resource})
			if got.Effect != q.want {
				t.Errorf("%s: %s %s = %s (%s), want %s", name, q.action, q.resource, got.Effect, got.Reason, q.want)
			}
		}
	}
	if _, err := env.g.policySpec(Agent{Skills: []string{"nothing"}}); !errors.Is(err, fault.NotFound) {
		t.Errorf("policy with an unknown skill = %v, want not found", err)
	}
}

func TestResourceNameIsRelativeToWorkspace(t *testing.T) {
	c := Caller{Workspace: "/work/"}
	for _, tt := range []struct{ action, in, want string }{
		{"edit", "/work/src/a", "src/a"}, {"edit", "/work/../etc/passwd", "/work/../etc/passwd"}, {"edit", "/work/x/../a", "a"}, {"edit", "src/a", "src/a"},
		{"edit", "/workshop/a", "/workshop/a"}, {"bash", "/work/run.sh", "/work/run.sh"},
	} {
		if got := c.resourceName(policy.Question{Action: tt.action, Resource: tt.in}); got != tt.want {
			t.Errorf("%s %s = %s, want %s", tt.action, tt.in, got, tt.want)
		}
	}
	if got := (Caller{}).resourceName(policy.Question{Action: "edit", Resource: "/a"}); got != "/a" {
		t.Errorf("without a workspace: %s, want /a", got)
	}
}

func TestDenialError(t *testing.T) {
	q := policy.Question{Action: "bash", Resource: "rm x"}
	if err := denialError(q, govern.Verdict{Allow: true}); err != nil {
		t.Errorf("error of an allowed action = %v, want nil", err)
	}
	err := denialError(q, govern.Verdict{Decision: policy.Decision{Reason: "rule 3", Remedy: "ask"}})
	if !errors.Is(err, fault.Denied) || fault.RemedyOf(err) != "ask" || !strings.Contains(err.Error(), "rule 3") {
		t.Errorf("error of a denied action = %v, want the reason and the remedy", err)
	}
	if err := denialError(q, govern.Verdict{Allow: true, Instead: "rm y"}); !errors.Is(err, fault.Denied) || !strings.Contains(err.Error(), "rm y") {
		t.Errorf("error after the approval of a different action = %v, want denied with that action", err)
	}
}

func TestUsedOfEndedStep(t *testing.T) {
	done := usedOf(run.Step{State: run.StepDone, Output: json.RawMessage(`{"a":1}`)})
	if done.Error != nil || string(done.Output) != `{"a":1}` {
		t.Errorf("done step = %+v, want its output", done)
	}
	failed := usedOf(run.Step{State: run.StepFailed, Output: problemJSON(fault.Newf(fault.NotFound, "op", "x", "no such file"))})
	if failed.Output != nil || failed.Error.Kind != "not found" && failed.Error.Kind != string(fault.NotFound) || !strings.Contains(failed.Error.Message, "no such file") {
		t.Errorf("failed step = %+v, want its error", failed.Error)
	}
	if odd := usedOf(run.Step{State: run.StepRefused, Output: json.RawMessage(`"why"`)}); odd.Error.Message != `"why"` || odd.Error.Kind != "failed" {
		t.Errorf("step with a plain output = %+v, want the output as the message", odd.Error)
	}
	var p Problem
	if err := json.Unmarshal(problemJSON(errors.New("plain")), &p); err != nil || p.Kind != "failed" {
		t.Errorf("a plain error = %+v, %v, want the kind failed", p, err)
	}
}

func TestSharesOfMilliCPU(t *testing.T) {
	j := &jail.Jail{Spec: jail.Spec{Limits: jail.Limits{CPUShares: 257}}}
	for milli, want := range map[int64]int64{1000: 1024, 2000: 2048, 500: 512, 1: 2, milliCPU(257): 257} {
		if got := sharesOf(milli, j); got != want {
			t.Errorf("shares of %d thousandths = %d, want %d", milli, got, want)
		}
	}
}

func TestStepReservation(t *testing.T) {
	if got := reservation(run.Capability); got == nil || len(got) != 0 {
		t.Errorf("reservation of a capability = %v, want nothing reserved", got)
	}
	if got := reservation(run.Tool); got != nil {
		t.Errorf("reservation of a tool = %v, want the default", got)
	}
	_ = budget.Amounts{}
}

func TestClipAndTail(t *testing.T) {
	for _, tt := range []struct {
		in   string
		most int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"aäb", 2, "a…"}, {"\xff", 5, "\uFFFD"}} {
		if got := clip(tt.in, tt.most); got != tt.want {
			t.Errorf("clip(%q, %d) = %q, want %q", tt.in, tt.most, got, tt.want)
		}
	}
	if got := tail([]byte(strings.Repeat("a", maxResult) + "end")); len(got) != maxResult || !strings.HasSuffix(got, "end") {
		t.Errorf("tail = %d bytes, want the last %d", len(got), maxResult)
	}
}

func TestConversationError(t *testing.T) {
	if err := conversationError(fault.Cannot("acp", "no such protocol", ""), "noise"); !errors.Is(err, fault.Unsupported) {
		t.Errorf("permanent error = %v, want it unchanged, so that it is not retried", err)
	}
	err := conversationError(errors.New("the agent ended"), "  panic: x\n")
	if _, again := errors.AsType[errEnded](err); !again || !strings.Contains(err.Error(), "stderr: panic: x") {
		t.Errorf("error of an ended agent = %v, want errEnded with its standard error", err)
	}
}

func TestDenialPromptListsReasons(t *testing.T) {
	text := denialPrompt(acp.Turn{Refused: []acp.Refusal{{Call: acp.ToolCall{Command: "rm x"}, Reason: "a rule"}, {Call: acp.ToolCall{Title: "Edit b"}, Reason: "ann said no"}}})
	for _, want := range []string{"rm x: a rule", "Edit b: ann said no", "Do not try it in another way"} {
		if !strings.Contains(text, want) {
			t.Errorf("prompt = %q, want %q in it", text, want)
		}
	}
}

func TestActivityOfSupervisedRun(t *testing.T) {
	su := New(Config{}).supervisions
	act := su.activityOf("r-unknown")
	act.begin("bash", false)
	steps := func(act *activity) (n int, last time.Time) {
		act.mu.Lock()
		defer act.mu.Unlock()
		return len(act.operations), act.lastAction
	}
	if n, _ := steps(su.activityOf("r-unknown")); n != 0 {
		t.Errorf("activity of an unsupervised run has %d operations, want 0", n)
	}
	sup, _ := su.begin("r-1")
	end := su.activityOf("r-1").begin("bash", false)
	if n, _ := steps(sup.activity); n != 1 {
		t.Errorf("operations in progress = %d, want 1", n)
	}
	end()
	if n, last := steps(sup.activity); n != 0 || last.IsZero() {
		t.Errorf("operations in progress = %d, last action at %s, want 0 and a time", n, last)
	}
	news := sup.stateChange()
	sup.notifyStateChange()
	select {
	case <-news:
	case <-time.After(30 * time.Second):
		t.Error("the channel of stateChange was not closed after a state change")
	}
}

func TestLastOutputStartsAtCharacter(t *testing.T) {
	var o agentOutput
	for range maxLast {
		o.add(1, []byte("€"))
	}
	o.add(1, []byte(".")) // moves the cut into the middle of a character
	if got := o.lastOutput(); strings.Trim(got, "€") != "." || len(got) > maxLast || len(got) <= maxLast-utf8.UTFMax {
		t.Errorf("last output = %d bytes: %.12q, want at most %d and no partial character", len(got), got, maxLast)
	}
}
