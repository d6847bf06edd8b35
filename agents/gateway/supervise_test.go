package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy"
	"glasshouse/policy/approval"
)

// printUntil returns a script that prints out and exits with code when done is closed, or when
// it is signalled.
func printUntil(done <-chan struct{}, code int, out string) script {
	return func(p *process) int {
		p.print(protocol.Stdout, out)
		select {
		case <-done:
			return code
		case <-p.ctx.Done():
			return 143
		}
	}
}

// scriptBuiltin sets the script of the reference agent. The script receives its caller.
func (env *testEnv) scriptBuiltin(do func(c Caller, p *process) int) {
	env.jails.script("glasshouse-agent", func(p *process) int {
		c, err := env.g.callerIn(env.Context(), p.jail)
		if env.Context().Err() != nil {
			return 1 // the test ended before this agent began
		}
		if err != nil {
			env.Error(err)
			return 1
		}
		return do(c, p)
	})
}

// call uses a tool and returns its outcome.
func (env *testEnv) call(c Caller, key, tool, input string) ToolOutcome {
	env.Helper()
	u, err := env.g.Call(env.Context(), c, ToolUse{Key: key, Tool: tool, Input: json.RawMessage(input)})
	if err != nil {
		env.Errorf("Call(%s, %s) = %v, want an outcome", tool, input, err)
	}
	return u
}

// A command waits while the jail is paused, which is no failure of the command.
func TestCommandWaitsForPausedJail(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	pause := func() {
		t.Helper()
		if _, err := env.jails.Pause(t.Context(), c.Jail); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(tool, input string) <-chan ToolOutcome {
		t.Helper()
		outcome := make(chan ToolOutcome, 1)
		go func() { outcome <- env.call(c, tool+input, tool, input) }()
		select {
		case u := <-outcome:
			t.Fatalf("while the jail is paused, %s ended: %+v", tool, u)
		case <-time.After(2 * pausedInterval):
		}
		return outcome
	}
	for tool, input := range map[string]string{"bash": `{"command": "true"}`, toolTerminal: `{"line": "true", "argv": ["true"]}`} {
		pause()
		waiting := begin(tool, input)
		if _, err := env.jails.Resume(t.Context(), c.Jail); err != nil {
			t.Fatal(err)
		}
		if u := <-waiting; u.State != run.StepDone {
			t.Errorf("%s = %+v, want done", tool, u)
		}
	}
	pause()
	waiting := begin("bash", `{"command": "false"}`)
	if _, err := env.runs.Move(t.Context(), r.ID, run.Move{To: run.Cancelled, By: "ann", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	if u := <-waiting; u.State == run.StepDone {
		t.Errorf("the command of a run that has ended = %+v, want no result", u)
	}
}

// startBuiltin starts a run of the reference agent that does nothing by itself, and returns
// the run and its caller.
func (env *testEnv) startBuiltin(a Agent) (run.Run, Caller) {
	env.Helper()
	callers := make(chan Caller, 8)
	env.scriptBuiltin(func(c Caller, p *process) int {
		callers <- c
		<-p.ctx.Done()
		return 143
	})
	a.Preset = "builtin"
	r := env.order("s", "work", a)
	select {
	case c := <-callers:
		return r, c
	case <-time.After(20 * time.Second):
		env.Fatalf("the agent of %s was not started: %+v", r.ID, env.run(r.ID))
		return r, Caller{}
	}
}

func permissive(t *testing.T) *jail.Spec {
	return &jail.Spec{Policy: policyOf(t, `{"permission": {"*": "allow"}}`, "", policy.Full)}
}

func TestCommandOutputIsRunResult(t *testing.T) {
	env := newTestEnv(t).open()
	env.jails.script("echo hello", func(p *process) int { p.print(protocol.Stdout, "hello\n"); return 0 })
	r := env.awaitState(env.order("s", "echo hello", Agent{Preset: "shell"}).ID, run.Done)
	if string(r.Result) != `"hello"` {
		t.Errorf("result = %s, want hello", r.Result)
	}
	env.await("the jail is stopped", func() bool {
		j, err := env.jails.Get(t.Context(), r.Jail)
		return err == nil && j.State == jail.Stopped
	})
	j, err := env.jails.Get(t.Context(), r.Jail)
	if err != nil || j.Spec.Labels[LabelRun] != string(r.ID) || j.Spec.Labels[LabelSession] != "s" || j.Spec.Cwd != workspace || j.Spec.Creator != "t-ann" {
		t.Errorf("jail = %+v, %v, want a jail of the run and the token t-ann with the directory /workspace", j.Spec, err)
	}
	p := env.jails.processes()[0]
	if p.req.Env["SANDBOX_ID"] != string(r.Jail) || strings.Join(p.req.Argv[1:], " ") != "-c echo hello" {
		t.Errorf("command = %q with SANDBOX_ID %q, want bash -c echo hello in %s", p.req.Argv, p.req.Env["SANDBOX_ID"], r.Jail)
	}
}

// The error quotes standard error as well.
func TestFailedCommandQuotesLastOutput(t *testing.T) {
	for name, tt := range map[string]struct {
		do   script
		want string
	}{
		"on standard error": {func(p *process) int {
			p.print(protocol.Stderr, "bash: line 1: make: command not found\n")
			return 127
		}, "the agent ended with exit code 127: bash: line 1: make: command not found"},
		"on both": {func(p *process) int {
			p.print(protocol.Stdout, "FAIL a_test\n")
			p.print(protocol.Stderr, "make: *** [test] Error 1\n")
			return 2
		}, "the agent ended with exit code 2: FAIL a_test\nmake: *** [test] Error 1"},
		"nothing": {func(*process) int { return 3 }, "the agent ended with exit code 3"},
		"much": {func(p *process) int {
			for range 1000 {
				p.print(protocol.Stdout, "noise ")
			}
			p.print(protocol.Stderr, "the end")
			return 1
		}, "the end"},
	} {
		t.Run(name, func(t *testing.T) {
			env := newTestEnv(t).open()
			env.jails.script("make test", tt.do)
			r := env.awaitState(env.order("s", "make test", Agent{Preset: "shell"}).ID, run.Failed)
			if !strings.HasSuffix(r.Error, tt.want) || !strings.HasPrefix(r.Error, "the agent ended with exit code") || len(r.Error) > 1700 {
				t.Errorf("error = %q, want %q", r.Error, tt.want)
			}
			if r.Restarts != 0 {
				t.Errorf("restarts = %d, want 0: commands are not restarted", r.Restarts)
			}
		})
	}
}

func TestPermanentErrorIsNotRetried(t *testing.T) {
	for _, kind := range []fault.Kind{fault.Invalid, fault.Unsupported, fault.NotFound, fault.Denied} {
		env := newTestEnv(t)
		env.jails.failWith("Create", &fault.Error{Op: "jail.Create", Kind: kind, Err: errors.New("no such root filesystem"), Remedy: "pull it first"})
		env.open()
		r := env.awaitState(env.order("s", "true", Agent{Preset: "shell"}).ID, run.Failed)
		if !strings.Contains(r.Error, "no such root filesystem; pull it first") || r.Restarts != 0 {
			t.Errorf("%s: error = %q after %d restarts, want the cause with its remedy after 0 restarts", kind, r.Error, r.Restarts)
		}
	}
}

func TestAgentThatEndsEarlyIsRestarted(t *testing.T) {
	env := newTestEnv(t)
	var starts []id.Exec
	env.scriptBuiltin(func(c Caller, p *process) int {
		starts = append(starts, p.req.ID)
		if len(starts) == 1 {
			return 1
		}
		if _, err := env.g.Finish(t.Context(), c, json.RawMessage(`"done"`)); err != nil {
			t.Errorf("Finish = %v, want nil", err)
		}
		return 0
	})
	env.open()
	r := env.awaitState(env.order("s", "work", Agent{Preset: "builtin"}).ID, run.Done)
	if len(starts) != 2 || starts[0] == starts[1] || r.Restarts != 1 {
		t.Errorf("starts = %v and %d restarts, want 2 different process ids and 1 restart", starts, r.Restarts)
	}
	if len(env.jails.order) != 1 {
		t.Errorf("jails = %v, want one", env.jails.order)
	}
}

func TestRunFailsAfterMaxRestarts(t *testing.T) {
	env := newTestEnv(t)
	env.scriptBuiltin(func(Caller, *process) int { return 1 })
	env.open()
	env.jails.failWith("Create", fault.Newf(fault.Invalid, "", "", "not yet"))
	r := env.order("s", "work", Agent{Preset: "builtin"})
	env.awaitState(r.ID, run.Failed)

	env.jails.failWith("Create", nil)
	r, err := env.runs.Create(t.Context(), run.Request{Session: "s", Goal: "work", Agent: mustJSON(t, Agent{Preset: "builtin"})})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.runs.Update(t.Context(), r.ID, func(d *run.Details) { d.Restarts = maxRestarts }); err != nil {
		t.Fatal(err)
	}
	env.g.Wake()
	if got := env.awaitState(r.ID, run.Failed); !strings.Contains(got.Error, "the agent ended with exit code 1") {
		t.Errorf("error = %q, want the exit code of the agent", got.Error)
	}
}

func TestCancelStopsAgentAndJail(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{})
	if _, err := env.g.Cancel(t.Context(), r.ID, "ann", "not needed"); err != nil {
		t.Fatal(err)
	}
	env.await("the jail is stopped", func() bool {
		j, err := env.jails.Get(t.Context(), c.Jail)
		return err == nil && j.State == jail.Stopped
	})
	p := env.jails.processes()[0]
	if got := p.now(); len(p.signals) == 0 || p.signals[0] != "TERM" || got.Ended == nil {
		t.Errorf("agent received %q and ended at %v, want TERM and an end time", p.signals, got.Ended)
	}
	if got := env.run(r.ID); got.State != run.Cancelled || got.Reason != "not needed" {
		t.Errorf("run = %s %q, want cancelled, not needed", got.State, got.Reason)
	}
	if _, err := env.g.Cancel(t.Context(), r.ID, "ann", ""); !errors.Is(err, fault.Conflict) {
		t.Errorf("Cancel again = %v, want a conflict", err)
	}
}

func TestPauseAndResumeKeepAgent(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{})
	if _, err := env.g.Pause(t.Context(), r.ID, "ann", "lunch"); err != nil {
		t.Fatal(err)
	}
	state := func() jail.State {
		j, err := env.jails.Get(t.Context(), c.Jail)
		if err != nil {
			t.Fatal(err)
		}
		return j.State
	}
	env.await("the jail is paused", func() bool { return state() == jail.Paused })
	if got := env.run(r.ID); got.State != run.Paused || got.Why != run.ByOperator {
		t.Errorf("run = %s %s, want paused by an operator", got.State, got.Why)
	}
	if _, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{By: "ann"}, 0); err != nil {
		t.Fatal(err)
	}
	env.await("the jail runs", func() bool { return state() == jail.Running })
	if got := env.jails.processes(); len(got) != 1 {
		t.Errorf("processes = %d, want only the paused one", len(got))
	}
}

// The daemon may be killed at any time.
func TestNewGatewayAdoptsRunningAgent(t *testing.T) {
	env := newTestEnv(t)
	done := make(chan struct{})
	env.jails.script("make all", printUntil(done, 0, "built"))
	env.open()
	r := env.order("s", "make all", Agent{Preset: "shell"})
	env.await("the command runs", func() bool { return len(env.jails.processes()) == 1 && env.run(r.ID).Exec != "" })
	if err := env.g.Close(); err != nil {
		t.Fatal(err)
	}
	env.open()
	env.await("the run is supervised again", func() bool { return env.g.supervisions.of(r.ID) != nil })
	close(done)
	if got := env.awaitState(r.ID, run.Done); string(got.Result) != `"built"` {
		t.Errorf("result = %s, want built", got.Result)
	}
	if got := env.jails.processes(); len(got) != 1 {
		t.Errorf("processes = %d, want only the first one", len(got))
	}
}

func TestToolRunsOncePerKey(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	env.jails.script("make test", func(p *process) int {
		p.print(protocol.Stdout, "ok\n")
		p.print(protocol.Stderr, "warning\n")
		return 4
	})
	for range 2 {
		u := env.call(c, "k", "bash", `{"command": "make test"}`)
		var out commandOutput
		if err := json.Unmarshal(u.Output, &out); err != nil || u.State != run.StepDone || out.ExitCode != 4 || out.Stdout != "ok\n" || out.Stderr != "warning\n" {
			t.Errorf("bash = %s %s, %v, want exit code 4 and both outputs", u.State, u.Output, err)
		}
	}
	if got := env.jails.processes(); len(got) != 2 { // the agent, and the command
		t.Errorf("processes = %d, want 2: the same key is one command", len(got))
	}
	if _, err := env.g.Call(t.Context(), c, ToolUse{Key: "k", Tool: "bash", Input: json.RawMessage(`{"command": "rm -rf /"}`)}); err == nil {
		t.Error("different input with the same key = nil, want an error")
	}
	steps, err := env.runs.Steps(t.Context(), run.StepFilter{Run: r.ID})
	if err != nil || len(steps) != 1 || steps[0].Ref == "" {
		t.Errorf("steps = %+v, %v, want one step with the id of the command", steps, err)
	}
}

func TestFileTools(t *testing.T) {
	env := newTestEnv(t)
	_, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	for _, tt := range []struct {
		tool, input string
		state       run.StepState
		want        string
	}{
		{"write_file", `{"path": "a.txt", "text": "one two two"}`, run.StepDone, `{"path":"/workspace/a.txt","bytes":11}`},
		{"read_file", `{"path": "a.txt"}`, run.StepDone, `{"text":"one two two","size":11}`},
		{"read_file", `{"path": "a.txt", "offset": 4, "limit": 3}`, run.StepDone, `{"text":"two","size":11,"more":true}`},
		{"read_file", `{"path": "missing"}`, run.StepFailed, "no such file"},
		{"read_file", `{"path": "a\u0000b"}`, run.StepFailed, "NUL"},
		{"edit_file", `{"path": "a.txt", "old": "one", "new": "three"}`, run.StepDone, `{"path":"/workspace/a.txt","bytes":13}`},
		{"edit_file", `{"path": "a.txt", "old": "two", "new": "2"}`, run.StepFailed, "2 times"},
		{"edit_file", `{"path": "a.txt", "old": "two", "new": "2", "all": true}`, run.StepDone, `{"path":"/workspace/a.txt","bytes":9}`},
		{"edit_file", `{"path": "a.txt", "old": "two", "new": "2"}`, run.StepFailed, "already contains the new text"},
		{"edit_file", `{"path": "a.txt", "old": "", "new": "2"}`, run.StepFailed, "use write_file"},
		{"list_files", `{}`, run.StepDone, `{"entries":[{"name":"a.txt","type":"file","size":9}]}`},
		{"write_file", `{"pth": "a"}`, run.StepFailed, "unknown field"},
		{"bash", `{"command": "  "}`, run.StepFailed, "empty"},
		{"no.such", `{}`, run.StepFailed, ""},
	} {
		u := env.call(c, string(id.NewCall()), tt.tool, tt.input)
		got := string(u.Output)
		if u.Error != nil {
			got = u.Error.Message
		}
		if u.State != tt.state || !strings.Contains(got, tt.want) {
			t.Errorf("%s %s = %s %s, want %s %s", tt.tool, tt.input, u.State, got, tt.state, tt.want)
		}
	}
	if text, _ := env.jails.file(c.Jail, "/workspace/a.txt"); text != "three 2 2" {
		t.Errorf("a.txt = %q, want three 2 2", text)
	}
}

func TestDeniedToolHasNoEffect(t *testing.T) {
	env := newTestEnv(t)
	spec := jail.Spec{Policy: policyOf(t, `{"permission": {"edit": {"*": "deny", "src/*": "allow"}, "bash": {"*": "allow", "sudo *": "deny"}, "read": "allow"}}`, "", policy.Intelligent)}
	_, c := env.open().startBuiltin(Agent{Jail: &spec})
	for _, tt := range []struct {
		tool, input string
		want        run.StepState
	}{
		{"write_file", `{"path": "etc/passwd", "text": "x"}`, run.StepRefused},
		{"write_file", `{"path": "src/a", "text": "x"}`, run.StepDone},
		{"edit_file", `{"path": "/workspace/README", "old": "a", "new": "b"}`, run.StepRefused},
		{"bash", `{"command": "sudo rm x"}`, run.StepRefused},
		{"bash", `{"command": "ls"}`, run.StepDone},
	} {
		u := env.call(c, string(id.NewCall()), tt.tool, tt.input)
		if u.State != tt.want || tt.want == run.StepRefused && (u.Error == nil || u.Error.Kind != string(fault.Denied)) {
			t.Errorf("%s %s = %s %+v, want %s", tt.tool, tt.input, u.State, u.Error, tt.want)
		}
	}
	if _, written := env.jails.file(c.Jail, "/workspace/etc/passwd"); written {
		t.Error("a denied file was written")
	}
	for _, p := range env.jails.processes() {
		if strings.Contains(p.req.Cmd, "sudo") {
			t.Errorf("%q was started, want it refused", p.req.Cmd)
		}
	}
}

// answer answers the next approval request.
func (env *testEnv) answer(v approval.Verdict, resource string) approval.Request {
	env.Helper()
	var r approval.Request
	env.await("an approval is requested", func() bool {
		all := env.approvals.Pending()
		if len(all) == 0 {
			return false
		}
		r = all[0]
		return true
	})
	a := approval.Answer{Verdict: v, Resource: resource, Channel: "api", Reason: "because", By: approval.Person{ID: "t-1", Name: "ann", Role: "operator"}}
	if _, err := env.approvals.Answer(env.Context(), r.ID, a); err != nil {
		env.Fatalf("Answer(%s) = %v, want nil", v, err)
	}
	return r
}

func TestRunPausesForApproval(t *testing.T) {
	for _, tt := range []struct {
		verdict approval.Verdict
		want    run.StepState
		written bool
	}{{approval.Allow, run.StepDone, true}, {approval.Deny, run.StepRefused, false}} {
		t.Run(string(tt.verdict), func(t *testing.T) {
			env := newTestEnv(t)
			spec := jail.Spec{Policy: policyOf(t, `{"permission": {"edit": "ask"}}`, "", policy.Intelligent)}
			r, c := env.open().startBuiltin(Agent{Jail: &spec})
			used := make(chan ToolOutcome, 1)
			go func() { used <- env.call(c, "k", "write_file", `{"path": "a.txt", "text": "hello\n"}`) }()
			env.awaitState(r.ID, run.Paused)
			if got := env.run(r.ID); got.Why != run.ForApproval || got.Checkpoint == "" {
				t.Errorf("run waits for %s with checkpoint %q, want an approval and a checkpoint", got.Why, got.Checkpoint)
			}
			asked := env.answer(tt.verdict, "")
			if asked.Question.Action != "edit" || !strings.Contains(string(asked.Context), "+hello") {
				t.Errorf("approval request = %+v with %s, want an edit with its diff", asked.Question, asked.Context)
			}
			if u := <-used; u.State != tt.want {
				t.Errorf("write_file = %s %+v, want %s", u.State, u.Error, tt.want)
			}
			if _, written := env.jails.file(c.Jail, "/workspace/a.txt"); written != tt.written {
				t.Errorf("written = %v, want %v", written, tt.written)
			}
			env.awaitState(r.ID, run.Active)
		})
	}
}

func TestWarningIsAddedToNextResult(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	if err := env.g.watcher.warn(t.Context(), r.ID, "idle", "hurry up"); err != nil {
		t.Fatal(err)
	}
	u := env.call(c, "1", "bash", `{"command": "ls"}`)
	if !strings.Contains(string(u.Output), `"notice":"hurry up"`) {
		t.Errorf("output = %s, want the notice in it", u.Output)
	}
	u = env.call(c, "2", "bash", `{"command": "ls -l"}`)
	if strings.Contains(string(u.Output), "notice") {
		t.Errorf("output = %s, want no notice: it was delivered before", u.Output)
	}
}

// At level 3 no approval is requested.
func TestLoopIsWarnedThenStopped(t *testing.T) {
	env := newTestEnv(t)
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t), Level: 3})
	var last ToolOutcome
	warned := false
	for n := range 12 {
		last = env.call(c, string(rune('a'+n)), "bash", `{"command": "ls"}`)
		warned = warned || strings.Contains(string(last.Output), "notice")
		if last.State == run.StepRefused {
			break
		}
	}
	if !warned || last.State != run.StepRefused {
		t.Errorf("warned = %v and the last call = %s, want a warning and refused", warned, last.State)
	}
	if got := env.awaitState(r.ID, run.Paused); got.Why != run.ByWatchdog {
		t.Errorf("run is paused by %s, want the watchdog", got.Why)
	}
}

func TestToolsListsAvailableTools(t *testing.T) {
	env := newTestEnv(t)
	_, c := env.open().startBuiltin(Agent{Jail: permissive(t)})
	names := func(c Caller) []string {
		t.Helper()
		all, err := env.g.Tools(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, tool := range all {
			if !json.Valid(tool.InputSchema) {
				t.Errorf("schema of %s = %s, want JSON", tool.Name, tool.InputSchema)
			}
			list = append(list, tool.Name)
		}
		return list
	}
	got := names(c)
	for _, want := range []string{"bash", "read_file", "write_file", "edit_file", "list_files", "coordinate_sibling", "create_task", "request_resources", "wait_for_event"} {
		if !slices.Contains(got, want) {
			t.Errorf("tools = %q, want %s among them", got, want)
		}
	}
	if slices.Contains(got, toolTerminal) {
		t.Errorf("tools = %q, want no Agent Client Protocol tools", got)
	}
	outside := c
	outside.Jail = ""
	if got := names(outside); slices.Contains(got, "bash") || slices.Contains(got, "read_file") || !slices.Contains(got, "wait_for_event") {
		t.Errorf("tools outside of a jail = %q, want none that need a jail", got)
	}
	if _, err := env.g.Call(t.Context(), outside, ToolUse{Key: "x", Tool: "bash", Input: json.RawMessage(`{"command":"ls"}`)}); !errors.Is(err, fault.Unsupported) {
		t.Errorf("bash outside of a jail = %v, want unsupported", err)
	}
	env.g.services.Broker, env.g.cfg.Tasks, env.g.services.Resources = nil, nil, nil
	if got := names(c); slices.Contains(got, "coordinate_sibling") || slices.Contains(got, "create_task") || slices.Contains(got, "request_resources") {
		t.Errorf("tools = %q, want none whose component is missing", got)
	}
}

func TestTaskReturnsGoalSkillsAndState(t *testing.T) {
	env := newTestEnv(t)
	env.caps.skills["deploy"] = []string{"ship.it"}
	r, c := env.open().startBuiltin(Agent{Jail: permissive(t), Skills: []string{"deploy"}})
	if _, err := env.g.SaveState(t.Context(), c, "so far", json.RawMessage(`{"inbox_after": 3, "plan": "x"}`)); err != nil {
		t.Fatal(err)
	}
	task, err := env.g.Task(t.Context(), c)
	if err != nil || task.Goal != "work" || task.Run.ID != r.ID || task.Skills != "How to deploy." || task.Inbox != 3 || string(task.Checkpoint.State) != `{"inbox_after": 3, "plan": "x"}` {
		t.Errorf("Task = %+v, %v, want its goal, skill and state", task, err)
	}
	now, stop, err := env.g.Beat(t.Context(), c)
	if err != nil || stop || now.State != run.Active {
		t.Errorf("Beat = %s, %v, %v, want active and no stop", now.State, stop, err)
	}
	if _, err := env.g.Fail(t.Context(), c, "cannot be done"); err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.Fail(t.Context(), c, "cannot be done"); err != nil {
		t.Errorf("Fail again = %v, want nil", err)
	}
	if got := env.run(r.ID); got.State != run.Failed || got.Error != "cannot be done" {
		t.Errorf("run = %s %q, want failed, cannot be done", got.State, got.Error)
	}
}

func TestBeatOfEndedRunReportsStop(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	r := env.order("s", "x", Agent{Preset: "builtin"})
	c := Caller{Session: "s", Run: r.ID}
	if _, err := env.g.Finish(t.Context(), c, json.RawMessage(`1`)); err != nil {
		t.Fatal(err)
	}
	if _, err := env.g.Finish(t.Context(), c, json.RawMessage(`1`)); err != nil {
		t.Errorf("Finish again = %v, want nil", err)
	}
	if _, stop, err := env.g.Beat(t.Context(), c); !stop {
		t.Errorf("Beat of a run that is done = %v, %v, want stop", stop, err)
	}
}

func TestRunWithUnmetConditionWaits(t *testing.T) {
	env := newTestEnv(t)
	env.jails.script("true", func(*process) int { return 0 })
	env.open()
	u, err := run.ParseUntil([]byte(`"manual"`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := env.g.CreateRun(t.Context(), RunOrder{Request: run.Request{Session: "s", Goal: "true", Agent: mustJSON(t, Agent{Preset: "shell"}), Until: u}})
	if err != nil {
		t.Fatal(err)
	}
	if got := env.awaitState(r.ID, run.Paused); got.Why != run.ForEvent {
		t.Errorf("run waits for %s, want an event", got.Why)
	}
	if _, err := env.g.Move(t.Context(), r.ID, run.Move{To: run.Active, By: "ann"}); err != nil {
		t.Fatal(err)
	}
	if got, err := env.g.Move(t.Context(), r.ID, run.Move{To: run.Done, By: "ann", Result: json.RawMessage(`"fine"`)}); err != nil || got.State != run.Done {
		t.Errorf("Move to done = %s, %v, want done on an operator's request", got.State, err)
	}
}

func TestPruneKeepsNewestJails(t *testing.T) {
	env := newTestEnv(t)
	env.cfg.Keep = 2
	env.jails.script("true", func(*process) int { return 0 })
	env.open()
	var runs []run.Run
	for range 4 {
		r := env.awaitState(env.order("s", "true", Agent{Preset: "shell"}).ID, run.Done)
		env.await("the jail is stopped", func() bool {
			j, err := env.jails.Get(t.Context(), r.Jail)
			return err != nil || j.State == jail.Stopped
		})
		runs = append(runs, r)
	}
	env.await("two jails are left", func() bool {
		all, err := env.jails.List(t.Context(), jail.ListOptions{})
		return err == nil && len(all) == 2
	})
	for i, r := range runs {
		if _, err := env.jails.Get(t.Context(), r.Jail); (err == nil) != (i >= 2) {
			t.Errorf("jail of run %d: %v, want it kept: %v", i, err, i >= 2)
		}
	}
	kept := env.awaitState(env.order("s", "true", Agent{Preset: "shell", Keep: true}).ID, run.Done)
	time.Sleep(50 * time.Millisecond)
	if j, err := env.jails.Get(t.Context(), kept.Jail); err != nil || j.State != jail.Running {
		t.Errorf("jail of a run with Keep = %s, %v, want running", j.State, err)
	}
}

// The event log of a run is deleted with its jail, so a recent jail is kept even if the number of
// jails exceeds the limit.
func TestPruneKeepsRecentJails(t *testing.T) {
	env := newTestEnv(t)
	env.cfg.Keep, env.cfg.KeepAge = 1, time.Hour
	env.jails.script("true", func(*process) int { return 0 })
	env.open()
	for range 3 {
		r := env.awaitState(env.order("s", "true", Agent{Preset: "shell"}).ID, run.Done)
		env.await("the jail is stopped", func() bool {
			j, err := env.jails.Get(t.Context(), r.Jail)
			return err == nil && j.State == jail.Stopped
		})
	}
	env.g.supervisor.pruneJails(t.Context())
	all, err := env.jails.List(t.Context(), jail.ListOptions{})
	if err != nil || len(all) != 3 {
		t.Errorf("%d jails are left, %v, want 3", len(all), err)
	}
}

func TestSweepStopsJailsOfEndedRuns(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	newJail := func(r id.Run, origin *jail.Origin, age time.Duration) id.Jail {
		t.Helper()
		j, err := env.jails.Create(t.Context(), jail.Spec{Start: true, Labels: map[string]string{LabelSession: "s", LabelRun: string(r)}})
		if err != nil {
			t.Fatal(err)
		}
		env.jails.mu.Lock()
		env.jails.all[j.ID].Origin, env.jails.all[j.ID].Created = origin, time.Now().Add(-age)
		env.jails.mu.Unlock()
		return j.ID
	}
	done, active, paused, moved := env.order("s", "a", Agent{}), env.order("s", "b", Agent{}), env.order("s", "c", Agent{}), env.order("s", "d", Agent{})
	jails := map[string]id.Jail{
		"of a run that is done": newJail(done.ID, nil, 0), "of an active run": newJail(active.ID, nil, 0), "of a paused run": newJail(paused.ID, nil, 0),
		"of a moved run": newJail(moved.ID, nil, 0), "of a branch that was never made": newJail("r-none", &jail.Origin{}, time.Hour),
		"of a branch that may be made": newJail("r-soon", &jail.Origin{}, 0),
	}
	for name, r := range map[string]id.Run{"of a run that is done": done.ID, "of an active run": active.ID, "of a paused run": paused.ID} {
		if _, err := env.runs.Update(t.Context(), r, func(d *run.Details) { d.Jail = jails[name] }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := env.runs.Update(t.Context(), moved.ID, func(d *run.Details) { d.Jail = "j-elsewhere" }); err != nil {
		t.Fatal(err)
	}
	if _, err := env.runs.Finish(t.Context(), done.ID, run.Finish{By: "agent"}); err != nil {
		t.Fatal(err)
	}
	if _, err := env.runs.Move(t.Context(), paused.ID, run.Move{To: run.Paused, Why: run.ByOperator, By: "ann"}); err != nil {
		t.Fatal(err)
	}
	if err := env.g.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]jail.State{
		"of a run that is done": jail.Stopped, "of an active run": jail.Running, "of a paused run": jail.Paused, "of a moved run": jail.Stopped,
		"of a branch that was never made": "", "of a branch that may be made": jail.Running,
	} {
		j, err := env.jails.Get(t.Context(), jails[name])
		if j.State != want || (err != nil) != (want == "") {
			t.Errorf("jail %s = %q, %v, want %q", name, j.State, err, want)
		}
	}
}

func TestRunIsChargedForJailUsage(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	r := env.order("s", "x", Agent{})
	j, err := env.jails.Create(t.Context(), jail.Spec{Start: true, Labels: map[string]string{LabelRun: string(r.ID)}})
	if err != nil {
		t.Fatal(err)
	}
	r, err = env.runs.Update(t.Context(), r.ID, func(d *run.Details) { d.Jail = j.ID })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.runs.Claim(t.Context(), r.ID); err != nil {
		t.Fatal(err)
	}
	for _, cpu := range []time.Duration{2 * time.Second, 2 * time.Second, 5 * time.Second} { // equal readings are charged once
		env.jails.mu.Lock()
		env.jails.stats[j.ID] = jail.Stats{CPU: cpu, RxBytes: 100, TxBytes: 50, DiskBytes: 4096}
		env.jails.mu.Unlock()
		env.g.measure(t.Context(), r.ID)
	}
	got := env.run(r.ID).Budget.Consumed
	if got[budget.CPU] != 5000 || got[budget.Network] != 150 || got[budget.Storage] != 4096 {
		t.Errorf("consumed = %v, want 5000 ms, 150 bytes and 4096 bytes", got)
	}
}

func TestNextReadingOfLimitedRun(t *testing.T) {
	for name, tt := range map[string]struct {
		limits, consumed budget.Amounts
		want             time.Duration
	}{
		"nothing":              {nil, nil, meterInterval},
		"steps":                {budget.Amounts{budget.Steps: 3}, nil, meterInterval},
		"processors":           {budget.Amounts{budget.CPU: 3}, nil, limitedMeterInterval},
		"wall time, 1 s left":  {budget.Amounts{budget.Wall: 5000}, budget.Amounts{budget.Wall: 4000}, 1001 * time.Millisecond},
		"wall time, exceeded":  {budget.Amounts{budget.Wall: 5000}, budget.Amounts{budget.Wall: 9000}, limitedMeterInterval / 20},
		"wall time, much left": {budget.Amounts{budget.Wall: 1 << 30}, nil, meterInterval},
	} {
		r := run.Run{Budget: budget.State{Limits: tt.limits, Consumed: tt.consumed}}
		if got := nextReading(r); got != tt.want {
			t.Errorf("limit %s: next reading in %s, want %s", name, got, tt.want)
		}
	}
}

// The first run of an agent on a host downloads its programs, which can take minutes.
func TestInstallationOfAgentIsReported(t *testing.T) {
	npm := t.TempDir()
	if err := os.WriteFile(filepath.Join(npm, "npm"), []byte(`#!/bin/sh
for arch in x64 arm64; do
	mkdir -p node_modules/opencode-linux-$arch/bin && echo > node_modules/opencode-linux-$arch/bin/opencode
done
`), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", npm+":"+os.Getenv("PATH"))
	env := newTestEnv(t)
	env.cfg.Layers = t.TempDir()
	env.cfg.Root = func(context.Context, jail.Rootfs) (fs.FS, error) { return fstest.MapFS{}, nil }
	env.open()
	for _, c := range []struct {
		session string
		want    int
	}{
		{"s-1", 1},
		{"s-2", 0}, // installed
	} {
		r := env.order(c.session, "fix it", Agent{Preset: "opencode", Model: "m", Spawner: InJail})
		env.await("the run has a jail", func() bool { return env.run(r.ID).Jail != "" })
		events, err := env.runs.Events(t.Context(), c.session, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range events {
			if e.Kind == run.RunInstalling && e.Run == r.ID {
				got = append(got, string(e.Body))
			}
		}
		if len(got) != c.want || len(got) > 0 && !strings.Contains(got[0], `"installing npm opencode-linux-`) {
			t.Errorf("%s: the events about an installation are %q, want %d", c.session, got, c.want)
		}
	}
}
