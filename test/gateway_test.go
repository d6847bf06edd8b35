package test_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/llm/mockllm"
	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// modelThatCounts is a scripted model that writes a file line by line and reads it.
const modelThatCounts = `
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. count, 2. look"}]
  - when: {user: "carry out the plan"}
    turns:
      - calls: [{tool: bash, arguments: {command: "echo one >> count"}}]
      - calls: [{tool: bash, arguments: {command: "echo two >> count"}}]
      - calls: [{tool: bash, arguments: {command: "echo three >> count; sleep 0.2; cat count"}}]
      - text: "counted"
`

// modelThatCleans is a scripted model whose actions require approvals.
const modelThatCleans = `
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. remove it"}]
  - when: {user: "carry out the plan"}
    turns:
      - calls: [{tool: write_file, arguments: {path: locked, text: "kept\none\n"}}]
      - calls: [{tool: edit_file, arguments: {path: locked, old: one, new: two}}]
      - calls: [{tool: bash, arguments: {command: "rm -rf build"}}]
      - text: "cleaned"
`

// modelThatLoops is a scripted model that repeats the same action.
const modelThatLoops = `
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. look"}]
  - when: {user: "carry out the plan"}
    turns:
      - &look {calls: [{tool: bash, arguments: {command: "echo the same"}}]}
      - *look
      - *look
      - *look
      - *look
      - *look
      - *look
      - text: "looked"
`

// models starts a scripted model and returns the daemon configuration for it.
func models(t *testing.T, text string) (config string) {
	t.Helper()
	s, err := mockllm.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(mockllm.New(s, nil))
	t.Cleanup(srv.Close)
	return fmt.Sprintf(`gateway:
  models:
    providers:
      - {name: scripted, api: openai, base_url: %q, models: ["*"]}
`, srv.URL+"/v1")
}

// settled waits until a run is in one of the states, and returns it.
func (h *daemonHarness) settled(r id.Run, states ...string) wire.Run {
	h.Helper()
	var now wire.Run
	if !within(2*time.Minute, func() bool {
		var err error
		now, err = h.Client.Run(context.Background(), r)
		if err != nil {
			return false // the daemon may be down
		}
		for _, s := range states {
			if now.State == s {
				return true
			}
		}
		return false
	}) {
		h.Fatalf("the run is %s %s: %s %s\n%s", now.State, now.Why, now.Reason, now.Error, h.log)
	}
	return now
}

func TestBuiltinAgentPursuesGoal(t *testing.T) {
	h := open(t, models(t, modelThatCounts))
	out, stderr, code := h.glasshouse("", "goal", "count to three", "--session", "sess-count")
	if code != 0 || strings.TrimSpace(out) != "counted" {
		t.Fatalf("goal: %d %q\n%s\n%s", code, out, stderr, h.log)
	}
	runs, err := client.Collect(h.Runs(h.Context(), "sess-count", ""))
	if err != nil || len(runs) != 1 || runs[0].State != "done" || runs[0].Jail == "" {
		t.Fatalf("runs: %+v, %v", runs, err)
	}
	var tools []string
	for a, err := range h.RunActions(h.Context(), runs[0].ID) {
		if err != nil {
			t.Fatal(err)
		}
		if a.Kind == "tool" {
			tools = append(tools, a.State+" "+string(a.Output))
		}
	}
	if len(tools) != 3 || !strings.Contains(tools[2], `one\ntwo\nthree`) {
		t.Errorf("tool outputs = %q", tools)
	}
	// The trail of its jail lists the decisions.
	trail, _, _ := h.glasshouse("", "trail", string(runs[0].Jail))
	if !strings.Contains(trail, "bash: echo one >> count [AUTONOMOUS]") {
		t.Errorf("got trail\n%s", trail)
	}
}

func TestScheduleExampleOfGuide(t *testing.T) {
	h := open(t, models(t, modelThatCounts))
	// As documented, but every second.
	var req wire.StartRun
	text := `{"goal": "count to three", "schedule": "* * * * * *", "meta": {"session_id": "sess-autonomy-demo"}}`
	if err := json.Unmarshal([]byte(text), &req); err != nil {
		t.Fatal(err)
	}
	r, err := h.StartRun(h.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if r.State != "scheduled" || r.NextRunAt == nil || r.Session != "sess-autonomy-demo" || r.Schedule == "" {
		t.Fatalf("run is not scheduled: %+v", r)
	}
	var made wire.Run
	if !within(time.Minute, func() bool {
		for one, err := range h.Runs(h.Context(), "sess-autonomy-demo", "") {
			if err == nil && one.ID != r.ID {
				made = one
			}
		}
		return made.ID != ""
	}) {
		t.Fatalf("the schedule started no run\n%s", h.log)
	}
	if got := h.settled(made.ID, "done", "failed"); got.Result != "counted" {
		t.Errorf("%+v", got)
	}
	s, err := h.Schedule(h.Context(), r.Schedule)
	if err != nil || len(s.Next) != 10 || s.Fired == 0 {
		t.Errorf("schedule = %+v, %v", s, err)
	}
	if _, err := h.CancelRun(h.Context(), r.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Schedule(h.Context(), r.Schedule); err == nil {
		t.Error("the schedule still exists after its run was cancelled")
	}
	for one, err := range h.Runs(h.Context(), "sess-autonomy-demo", "active") {
		if err == nil {
			h.settled(one.ID, "done", "failed", "cancelled")
		}
	}
}

func TestEditSchedule(t *testing.T) {
	h := open(t, models(t, modelThatCounts))
	out, stderr, code := h.glasshouse("", "schedule", "times", "30 9 * * *", "--tz", "Europe/Berlin", "--json")
	var times []time.Time
	if code != 0 || json.Unmarshal([]byte(out), &times) != nil || len(times) != 10 || times[9].Sub(times[8]) < 23*time.Hour {
		t.Fatalf("schedule times: exit code %d, %q\n%s", code, out, stderr)
	}
	if _, err := h.ScheduleTimes(h.Context(), "0 0 30 2 *", ""); !errors.Is(err, fault.Invalid) {
		t.Errorf("times of a schedule that is never due = %v, want invalid", err)
	}
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "count to three", Schedule: "@yearly", Session: "sess-later"})
	if err != nil {
		t.Fatal(err)
	}
	before, err := h.Schedule(h.Context(), r.Schedule)
	if err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := h.glasshouse("", "schedule", "edit", string(r.Schedule), "--when", "@monthly", "--missed", "skip"); code != 0 {
		t.Fatalf("schedule edit: exit code %d, %s", code, stderr)
	}
	after, err := h.Schedule(h.Context(), r.Schedule)
	if err != nil || after.Cron != "@monthly" || after.Missed != "skip" || after.Overlap != before.Overlap || after.NextRunAt.After(*before.NextRunAt) {
		t.Errorf("schedule before: %+v\nafter: %+v, %v", before, after, err)
	}
	// The waiting run of the schedule shows the new time.
	now, err := h.Client.Run(h.Context(), r.ID)
	if err != nil || now.State != "scheduled" || !now.NextRunAt.Equal(*after.NextRunAt) {
		t.Errorf("waiting run: %+v, %v; want next at %v", now, err, after.NextRunAt)
	}
	if _, err := h.EditSchedule(h.Context(), r.Schedule, wire.EditSchedule{Cron: new("every now and then")}); !errors.Is(err, fault.Invalid) {
		t.Errorf("malformed schedule = %v, want invalid", err)
	}
	if still, err := h.Schedule(h.Context(), r.Schedule); err != nil || still.Cron != "@monthly" {
		t.Errorf("a rejected edit changed the schedule: %+v, %v", still, err)
	}
}

func TestRunResumesAfterDaemonKill(t *testing.T) {
	h := open(t, models(t, modelThatCounts))
	for round := range 3 {
		r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "count to three"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(150+350*round) * time.Millisecond)
		h.kill()
		h.start()
		got := h.settled(r.ID, "done", "failed")
		if got.State != "done" || got.Result != "counted" {
			t.Fatalf("round %d: %+v\n%s", round, got, h.log)
		}
		var last string
		n := 0
		for a, err := range h.RunActions(h.Context(), r.ID) {
			if err != nil {
				t.Fatal(err)
			}
			if a.Kind == "tool" {
				last = string(a.Output)
				n++
			}
		}
		if n != 3 || strings.Count(last, "one") != 1 || strings.Count(last, "two") != 1 || strings.Count(last, "three") != 1 {
			t.Errorf("round %d: got %d tool calls and file content %s", round, n, last)
		}
	}
}

func TestCheckpointRewindAndBranch(t *testing.T) {
	// The model's delay after the first step leaves time for the checkpoint.
	slow := strings.Replace(modelThatCounts, `- calls: [{tool: bash, arguments: {command: "echo two`, `- delay: 3s
        calls: [{tool: bash, arguments: {command: "echo two`, 1)
	h := open(t, models(t, slow))
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "count to three"})
	if err != nil {
		t.Fatal(err)
	}
	if !within(time.Minute, func() bool {
		now, err := h.Client.Run(h.Context(), r.ID)
		return err == nil && now.Steps >= 3
	}) {
		t.Fatalf("the run made no step\n%s", h.log)
	}
	p, err := h.CheckpointRun(h.Context(), r.ID, wire.TakeCheckpoint{Pause: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, h.log)
	}
	if p.Snapshot == "" || p.Entry == 0 {
		t.Errorf("the checkpoint has no snapshot or no audit log entry: %+v", p)
	}
	if got := h.settled(r.ID, "paused", "done"); got.State != "paused" || got.Why != "checkpoint" {
		t.Fatalf("run is %s %s, want paused for a checkpoint", got.State, got.Why)
	}
	branches, err := h.ResumeRun(h.Context(), r.ID, wire.ResumeRun{Checkpoint: p.ID, Branch: 2})
	if err != nil || len(branches) != 2 {
		t.Fatalf("branches: %v, %v\n%s", branches, err, h.log)
	}
	if _, err := h.ResumeRun(h.Context(), r.ID, wire.ResumeRun{Checkpoint: p.ID}); err != nil {
		t.Fatalf("rewind: %v\n%s", err, h.log)
	}
	for _, one := range append(branches, r) {
		if got := h.settled(one.ID, "done", "failed"); got.Result != "counted" {
			t.Errorf("%s: %+v\n%s", one.ID, got, h.log)
		}
	}
}

func TestAgentWaitsForApproval(t *testing.T) {
	h := open(t, models(t, modelThatCleans))
	policy := wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission": {"bash": {"*": "allow", "rm -rf *": "ask"}, "edit": {"*": "allow", "*locked": "ask"}, "read": "allow"}}`}}, Level: 2, Match: "last"}
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "clean up", Agent: &wire.RunAgent{Jail: &wire.CreateJail{Policy: &policy}}})
	if err != nil {
		t.Fatal(err)
	}
	asked := func(action string) wire.Approval {
		t.Helper()
		var waiting []wire.Approval
		if !within(30*time.Second, func() bool {
			waiting, err = h.Approvals(h.Context(), "", "")
			return err == nil && len(waiting) == 1 && waiting[0].Question.Action == action
		}) {
			got, _ := h.Client.Run(h.Context(), r.ID)
			t.Fatalf("no approval is pending for %s: %v %v %+v\n%s", action, waiting, err, got, h.log)
		}
		return waiting[0]
	}
	for _, want := range []string{"@@ -0,0 +1,2 @@\n+kept\n+one\n", "@@ -1,2 +1,2 @@\n kept\n-one\n+two\n"} {
		edit := asked("edit")
		if !strings.HasSuffix(edit.Diff, want) || !strings.Contains(edit.Diff, "/locked\n") {
			t.Errorf("preview of the change = %q (%s), want %q", edit.Diff, edit.NoDiff, want)
		}
		if _, stderr, code := h.glasshouse("", "approve", string(edit.ID)); code != 0 {
			t.Fatal(stderr)
		}
	}
	remove := asked("bash")
	if remove.Diff != "" || remove.NoDiff == "" {
		t.Errorf("preview of a command = %q, want none and a reason", remove.Diff)
	}
	if got := h.settled(r.ID, "paused", "done", "failed"); got.Why != "approval" {
		t.Fatalf("run does not wait for an approval: %+v\n%s", got, h.log)
	}
	h.kill() // the answer arrives after the restart
	h.start()
	if _, stderr, code := h.glasshouse("", "approve", string(remove.ID)); code != 0 {
		t.Fatal(stderr)
	}
	if got := h.settled(r.ID, "done", "failed"); got.Result != "cleaned" {
		t.Errorf("%+v\n%s", got, h.log)
	}
}

func TestDoomLoopIsWarnedAndStopped(t *testing.T) {
	h := open(t, models(t, modelThatLoops))
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "look"})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.settled(r.ID, "paused", "done", "failed"); got.Why != "approval" || !strings.Contains(got.Reason, "doom_loop") {
		t.Fatalf("run does not wait for an approval of doom_loop: %+v\n%s", got, h.log)
	}
	var outputs []string
	for a, err := range h.RunActions(h.Context(), r.ID) {
		if err != nil {
			t.Fatal(err)
		}
		if a.Kind == "tool" {
			outputs = append(outputs, string(a.Output))
		}
	}
	// The run has level 2: the third repetition causes a warning, and the fifth waits for an
	// approval, without an output.
	if len(outputs) != 5 {
		t.Fatalf("outputs = %q, want 5", outputs)
	}
	for n, output := range outputs {
		if got, want := strings.Contains(output, "notice"), n == 2; got != want {
			t.Errorf("output %d = %s, with a notice: %v, want %v", n+1, output, got, want)
		}
	}
	if outputs[3] == "" || outputs[4] != "" {
		t.Errorf("outputs 4 and 5 = %q, want only the fifth pending", outputs[3:])
	}
	var waiting []wire.Approval
	if !within(30*time.Second, func() bool {
		waiting, err = h.Approvals(h.Context(), "", "")
		return err == nil && len(waiting) == 1
	}) {
		t.Fatalf("%v %v", waiting, err)
	}
	if _, stderr, code := h.glasshouse("", "deny", string(waiting[0].ID)); code != 0 {
		t.Fatal(stderr)
	}
	var got wire.Run
	if !within(30*time.Second, func() bool {
		got, err = h.Client.Run(h.Context(), r.ID)
		return err == nil && got.Why == "watchdog"
	}) {
		t.Errorf("%+v, %v\n%s", got, err, h.log)
	}
}

// An agent without a jail is subject to the policy of its run, including approvals.
func TestAgentWithoutJail(t *testing.T) {
	h := open(t, models(t, `
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. think"}]
  - when: {user: "carry out the plan"}
    turns:
      - calls: [{tool: memory__put, arguments: {key: "thought", value: "deep"}}]
      - calls: [{tool: math__double, arguments: {x: 21}}]
      - calls: [{tool: math__double, arguments: {x: 4}}]
      - calls: [{tool: bash, arguments: {command: "touch /tmp/it-has-no-jail"}}]
      - text: "thought"
`))
	if _, stderr, code := h.glasshouse(shop(t), "capability", "register", "m.rtfs"); code != 0 {
		t.Fatal(stderr)
	}
	for _, spawner := range []string{"bwrap", "process"} {
		r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "think", Agent: &wire.RunAgent{Spawner: spawner}})
		if err != nil {
			t.Errorf("%s: %v", spawner, err)
			continue
		}
		for _, answer := range []string{"allow", "deny"} {
			var asked []wire.Approval
			if !within(time.Minute, func() bool {
				asked, err = h.Approvals(h.Context(), "pending", "")
				asked = slices.DeleteFunc(asked, func(a wire.Approval) bool { return !strings.Contains(a.What, "math.double") })
				return err == nil && len(asked) == 1
			}) {
				t.Fatalf("%s: no approval is pending: %v\n%s", spawner, err, h.log)
			}
			if _, err := h.Answer(h.Context(), asked[0].ID, wire.AnswerApproval{Answer: answer}); err != nil {
				t.Fatal(err)
			}
		}
		if got := h.settled(r.ID, "done", "failed"); got.Result != "thought" || got.Jail != "" {
			t.Errorf("%s: %+v\n%s", spawner, got, h.log)
		}
		var tools []string
		for a, err := range h.RunActions(h.Context(), r.ID) {
			if err != nil {
				t.Fatal(err)
			}
			if a.Kind != "model" {
				tools = append(tools, a.Name+" "+a.State)
			}
		}
		if got := strings.Join(tools, ", "); got != "memory.put done, math.double done, math.double refused" {
			t.Errorf("%s: %s\n%s", spawner, got, h.log)
		}
		if _, err := os.Stat("/tmp/it-has-no-jail"); err == nil {
			t.Errorf("%s: a tool worked on the host", spawner)
		}
	}
}

func TestAgentEndpoint(t *testing.T) {
	h := open(t, models(t, modelThatCounts)+fmt.Sprintf("rootfs: {default: {dir: %q}}\n", rootfsWith(t, "curl")))
	if _, err := h.OpenSession(h.Context(), wire.OpenSession{ID: "sess-w", Name: "worker", Group: "crew"}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.OpenSession(h.Context(), wire.OpenSession{ID: "sess-r", Name: "reviewer", Group: "crew"}); err != nil {
		t.Fatal(err)
	}
	policy := &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission": {"*": "allow", "bash": {"*": "allow", "rm *": "deny"}}}`}}, Level: 3, Match: "last"}
	j := h.running(wire.CreateJail{Session: "sess-w", Policy: policy})
	alone := h.running(wire.CreateJail{})
	var out string
	if !within(30*time.Second, func() bool {
		out = h.sh(j.ID, "curl -s -m 5 http://localhost:4097/whoami")
		return strings.Contains(out, "sess-w")
	}) {
		t.Fatalf("the agent endpoint does not respond: %q\n%s", out, h.log)
	}
	if !strings.Contains(out, `"name":"reviewer"`) {
		t.Errorf("the list of siblings lacks reviewer: %s", out)
	}
	post := func(path, body string) string {
		return h.sh(j.ID, fmt.Sprintf("curl -s -m 20 -X POST -H 'Content-Type: application/json' -d '%s' http://localhost:4097%s", body, path))
	}
	// As the plugin in the guide does it.
	got := post(fmt.Sprintf("/sandbox/%s/decisions", j.ID), `{"tool":"write","args":{"filePath":"auth/login.ts"},"timestamp":"2026-01-01T00:00:00Z"}`)
	if !strings.Contains(got, `"recorded":true`) {
		t.Errorf("decision: got %s", got)
	}
	got = post("/decide", `{"tool":"bash","args":{"command":"rm -rf /"}}`)
	if !strings.Contains(got, `"deny"`) {
		t.Errorf("denied tool: got %s", got)
	}
	got = post(fmt.Sprintf("/sandbox/%s/tasks", j.ID), `{"title":"Mend the login","description":"It is broken.\nSince today."}`)
	if !strings.Contains(got, `"created":true`) {
		t.Errorf("task: got %s", got)
	}
	if text := h.sh(j.ID, "cat .tasks/*.md /.tasks/*.md 2>/dev/null; true"); !strings.Contains(text, "Mend the login") || !strings.Contains(text, "Since today.") {
		t.Errorf("task file: got %q", text)
	}
	got = post("/sandbox/reviewer/coordinate", `{"action":"review","context":"auth/login.ts","fromSandboxId":"j-somebodyelse","reply_timeout_ms":0}`)
	if !strings.Contains(got, `"queued"`) && !strings.Contains(got, `"delivered"`) {
		t.Errorf("request to a sibling: got %s", got)
	}
	if !within(20*time.Second, func() bool {
		for m, err := range h.Messages(h.Context(), "sess-r", "in") {
			if err == nil && strings.Contains(m.Text, "auth/login.ts") && m.From == "worker" {
				return true
			}
		}
		return false
	}) {
		t.Errorf("the sibling received no request\n%s", h.log)
	}
	// The name of another jail is rejected, and jails without a session have no endpoint.
	got = post(fmt.Sprintf("/sandbox/%s/tasks", alone.ID), `{"title":"x"}`)
	if !strings.Contains(got, "own jail") {
		t.Errorf("task in another jail: got %s", got)
	}
	got = post("/sandbox/nobody/coordinate", `{"action":"review","reply_timeout_ms":0}`)
	if !strings.Contains(got, `"refused"`) {
		t.Errorf("request to an unknown sibling: got %s", got)
	}
	if out := h.sh(alone.ID, "curl -s -m 2 http://localhost:4097/whoami || echo closed"); !strings.Contains(out, "closed") {
		t.Errorf("a jail without a session has an agent endpoint: %s", out)
	}
	trail, _, _ := h.glasshouse("", "trail", string(j.ID))
	if !strings.Contains(trail, "write: auth/login.ts [AUTONOMOUS]") || !strings.Contains(trail, "coordinate_sibling: reviewer [AUTONOMOUS]") {
		t.Errorf("got trail\n%s", trail)
	}
	if bytes.Contains(h.log.Bytes(), []byte("internal error")) {
		t.Errorf("the daemon logged an internal error:\n%s", h.log)
	}
}
