package test_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/jail/backend/backendtest"
)

// talkers starts a daemon whose jails contain an agent that speaks the Agent Client Protocol
// (ACP).
func talkers(t *testing.T) (h *daemonHarness, program string) {
	t.Helper()
	dir := filepath.Join(shortTemp(t), "root")
	if out, err := exec.Command("cp", "-a", backendtest.Rootfs(t), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program = filepath.Join(dir, "bin", "talker")
	build := exec.Command("go", "build", "-o", program, "glasshouse/test/talker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return open(t, "rootfs: {default: {dir: "+dir+"}}\n"), program
}

// asksFirst is a policy that asks a person before anything is removed.
const asksFirst = `{"permission": {"*": "allow", "bash": {"*": "allow", "rm *": "deny", "rmdir *": "ask"}, "read": {"*": "allow", "*secret*": "deny"}}}`

// talk starts a run whose agent executes the given lines.
func (h *daemonHarness) talk(session string, lines ...string) wire.Run {
	h.Helper()
	policy := wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: asksFirst}}, Level: 2, Match: "last"}
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: strings.Join(lines, "\n"), Session: session, Agent: &wire.RunAgent{
		Preset: "shell", Protocol: "acp", Argv: []string{"talker"}, Jail: &wire.CreateJail{Policy: &policy}, Keep: true,
	}})
	if err != nil {
		h.Fatal(err)
	}
	return r
}

// did returns the actions of a run as strings.
func (h *daemonHarness) did(r id.Run) []string {
	h.Helper()
	var all []string
	for a, err := range h.RunActions(h.Context(), r) {
		if err != nil {
			h.Fatal(err)
		}
		all = append(all, a.Kind+" "+a.Name+" "+a.State)
	}
	return all
}

// said returns the messages of the agents of a session.
func (h *daemonHarness) said(session string) []string {
	h.Helper()
	var all []string
	for m, err := range h.Messages(h.Context(), session, "out") {
		if err != nil {
			h.Fatal(err)
		}
		all = append(all, m.Text)
	}
	return all
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestACPAgentIsGovernedAndRecorded(t *testing.T) {
	h, _ := talkers(t)
	r := h.talk("sess-acp",
		"think about it", "plan to do it",
		"run echo one > /workspace/one; cat /workspace/one",
		`write /workspace/two a\nb\nc`, "read /workspace/two", "read /workspace/secret",
		"terminal echo in $PWD; exit 3",
		"sneak echo unasked",
		"say it is done",
		"run rm /workspace/one",
	)
	got := h.settled(r.ID, "done", "failed", "paused")
	if got.State != "done" {
		t.Fatalf("run is %s %s: %s %s, want done\n%s", got.State, got.Why, got.Reason, got.Error, h.log)
	}
	same(t, "it did", h.did(r.ID),
		"message thought done", "message plan done",
		"decision bash done", "tool bash done",
		"tool write_file done", "tool fs/read_text_file done", "tool fs/read_text_file refused",
		"tool terminal/create done", "tool bash done",
		"decision bash refused", "tool bash refused",
	)
	said := strings.Join(h.said("sess-acp"), "\n")
	for _, want := range []string{"b\n\nfailed: ", "in /workspace exit 3", "it is done"} {
		if !strings.Contains(said, want) {
			t.Errorf("agent messages %q lack %q", said, want)
		}
	}
	if strings.Contains(said, "always") {
		t.Error("the agent was offered a permanent approval")
	}
	trail, _, _ := h.glasshouse("", "trail", string(got.Jail))
	if !strings.Contains(trail, "bash: echo one > /workspace/one") || !strings.Contains(trail, "rm /workspace/one") {
		t.Errorf("got trail\n%s\nwant the command and its denial", trail)
	}
}

// output returns the output of the last action with the given name.
func (h *daemonHarness) output(r id.Run, name string) string {
	h.Helper()
	var last string
	for a, err := range h.RunActions(h.Context(), r) {
		if err != nil {
			h.Fatal(err)
		}
		if a.Name == name {
			last = string(a.Output)
		}
	}
	return last
}

// until waits until f returns true, and fails the test otherwise.
func (h *daemonHarness) until(what string, f func() bool) {
	h.Helper()
	if !within(time.Minute, f) {
		h.Fatalf("timed out waiting: %s\n%s", what, h.log)
	}
}

// jailOf returns the jail of a run, as soon as it exists and contains the file.
func (h *daemonHarness) jailOf(r id.Run, file string) id.Jail {
	h.Helper()
	var j id.Jail
	h.until("there is "+file, func() bool {
		now, err := h.Client.Run(context.Background(), r)
		if err != nil || now.Jail == "" {
			return false
		}
		j = now.Jail
		if now.State != "active" {
			return false
		}
		_, err = h.Stat(h.Context(), j, file)
		return err == nil
	})
	return j
}

// prompts prints how many prompts the agent got, and in how many sessions.
const prompts = "run cat /workspace/log; cat /home/agent/.talker/s-* | wc -l; ls /home/agent/.talker | grep -c ^s-"

func TestACPSessionResumesAfterDaemonKill(t *testing.T) {
	h, _ := talkers(t)
	// Kill the daemon in the middle of a prompt, more than once.
	r := h.talk("sess-kill", "say begun", "run echo a >> /workspace/log; echo > /workspace/a", "await /workspace/b", "run echo b >> /workspace/log", "await /workspace/c", prompts)
	j := h.jailOf(r.ID, "/workspace/a")
	h.kill()
	h.start()
	h.sh(j, "echo > /workspace/b")
	h.kill()
	h.start()
	h.sh(j, "echo > /workspace/c")
	if got := h.settled(r.ID, "done", "failed", "paused"); got.State != "done" {
		t.Fatalf("run is %s: %s %s, want done\n%s", got.State, got.Reason, got.Error, h.log)
	}
	if out := h.output(r.ID, "bash"); !strings.Contains(out, `"a\nb\n1\n1\n"`) {
		t.Errorf("got output, prompts and sessions %s, want each line, prompt and session once", out)
	}
	same(t, "it did", h.did(r.ID), "decision bash done", "tool bash done", "decision bash done", "tool bash done", "decision bash done", "tool bash done")
	same(t, "it said", h.said("sess-kill"), "begun")

	// Kill the daemon while an approval is pending.
	r = h.talk("sess-ask", "run mkdir /workspace/d", "run rmdir /workspace/d && echo gone >> /workspace/log", prompts)
	if got := h.settled(r.ID, "paused", "done", "failed"); got.Why != "approval" {
		t.Fatalf("no approval is pending: %+v\n%s", got, h.log)
	}
	var waiting []wire.Approval
	var err error
	h.until("one is asked", func() bool {
		waiting, err = h.Approvals(h.Context(), "", "")
		return err == nil && len(waiting) == 1
	})
	h.kill()
	h.start()
	if _, stderr, code := h.glasshouse("", "approve", string(waiting[0].ID)); code != 0 {
		t.Fatal(stderr)
	}
	if got := h.settled(r.ID, "done", "failed"); got.State != "done" {
		t.Fatalf("%+v\n%s", got, h.log)
	}
	if out := h.output(r.ID, "bash"); !strings.Contains(out, `"gone\n1\n1\n"`) {
		t.Errorf("got output, prompts and sessions %s, want each line, prompt and session once", out)
	}
	same(t, "it did", h.did(r.ID), "decision bash done", "tool bash done", "decision bash done", "tool bash done", "decision bash done", "tool bash done")
}

func TestFailedACPAgentResumesSession(t *testing.T) {
	h, program := talkers(t)
	for _, how := range []string{"die", "garbage"} {
		r := h.talk("sess-"+how, "say before", how, "say after")
		if got := h.settled(r.ID, "done", "failed", "paused"); got.State != "done" || got.Result != "going on" {
			t.Fatalf("%s: %+v\n%s", how, got, h.log)
		}
		same(t, "it said", h.said("sess-"+how), "before", "going on")
	}
	// The run reports the agent's stop reason.
	for reason, want := range map[string]string{"refusal": "refused", "max_tokens": "output token limit"} {
		r := h.talk("sess-"+reason, "stop "+reason)
		if got := h.settled(r.ID, "done", "failed", "paused"); got.State != "failed" || !strings.Contains(got.Error, want) {
			t.Errorf("%s: %+v", reason, got)
		}
	}
	// Without a jail.
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "say outside", Agent: &wire.RunAgent{Preset: "shell", Protocol: "acp", Spawner: "process", Argv: []string{program}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.settled(r.ID, "done", "failed", "paused"); got.State != "done" || got.Result != "outside" {
		t.Errorf("outside: %+v\n%s", got, h.log)
	}
	// An agent program that does not speak ACP is not restarted repeatedly.
	if _, err := h.StartRun(h.Context(), wire.StartRun{Goal: "x", Agent: &wire.RunAgent{Preset: "builtin", Protocol: "acp"}}); err == nil {
		t.Error("the built-in agent was accepted with protocol acp, which it does not speak")
	}
}

func TestACPAgentMessagesPauseAndCancel(t *testing.T) {
	h, _ := talkers(t)
	for name, sid := range map[string]string{"worker": "sess-w", "reviewer": "sess-r"} {
		if _, err := h.OpenSession(h.Context(), wire.OpenSession{ID: sid, Name: name, Group: "crew"}); err != nil {
			t.Fatal(err)
		}
	}
	// Messages that arrive during a prompt become the next prompt. The agent's output answers a
	// sibling's request.
	reviewer := h.talk("sess-r", "run echo > /workspace/a", "await /workspace/b")
	j := h.jailOf(reviewer.ID, "/workspace/a")
	if _, err := h.Send(h.Context(), wire.SendMessage{Session: "sess-r", Text: "say told"}); err != nil {
		t.Fatal(err)
	}
	worker := h.talk("sess-w", "ask reviewer say looks good")
	h.until("the request is delivered", func() bool {
		n := 0
		for _, err := range h.Messages(h.Context(), "sess-r", "in") {
			if err == nil {
				n++
			}
		}
		return n == 2
	})
	h.sh(j, "echo > /workspace/b")
	for _, r := range []wire.Run{worker, reviewer} {
		if got := h.settled(r.ID, "done", "failed", "paused"); got.State != "done" {
			t.Fatalf("%+v\n%s", got, h.log)
		}
	}
	same(t, "the reviewer said", h.said("sess-r"), "told", "looks good")
	same(t, "the worker said", h.said("sess-w"), "answered: looks good")

	// A paused run freezes the agent. A cancelled run sends it a cancel notification.
	r := h.talk("sess-hang", "run echo > /workspace/a", "hang")
	j = h.jailOf(r.ID, "/workspace/a")
	if _, err := h.PauseRun(h.Context(), r.ID); err != nil {
		t.Fatal(err)
	}
	h.until("its jail is frozen", func() bool {
		now, err := h.Client.Jail(h.Context(), j)
		return err == nil && now.State == "paused"
	})
	if _, err := h.ResumeRun(h.Context(), r.ID, wire.ResumeRun{}); err != nil {
		t.Fatal(err)
	}
	h.until("the run continues", func() bool {
		now, err := h.Client.Jail(h.Context(), j)
		return err == nil && now.State == "running"
	})
	if _, err := h.CancelRun(h.Context(), r.ID); err != nil {
		t.Fatal(err)
	}
	h.until("the agent got the cancel notification", func() bool { return h.sh(j, "cat /home/agent/.talker/cancelled 2>/dev/null || true") == "yes" })
	same(t, "it did", h.did(r.ID), "decision bash done", "tool bash done")
}

func TestACPSessionCheckpointAndBranch(t *testing.T) {
	h, _ := talkers(t)
	r := h.talk("sess-branch", "run echo a >> /workspace/log; echo > /workspace/a", "await /workspace/b", prompts)
	j := h.jailOf(r.ID, "/workspace/a")
	p, err := h.CheckpointRun(h.Context(), r.ID, wire.TakeCheckpoint{Pause: true})
	if err != nil || p.Snapshot == "" {
		t.Fatalf("%+v, %v\n%s", p, err, h.log)
	}
	branches, err := h.ResumeRun(h.Context(), r.ID, wire.ResumeRun{Checkpoint: p.ID, Branch: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.ResumeRun(h.Context(), r.ID, wire.ResumeRun{Checkpoint: p.ID}); err != nil {
		t.Fatal(err)
	}
	for _, j := range []id.Jail{j, branches[0].Jail} {
		h.until("its jail runs", func() bool {
			now, err := h.Client.Jail(h.Context(), j)
			return err == nil && now.State == "running"
		})
		h.sh(j, "echo > /workspace/b")
	}
	for _, one := range append(branches, r) {
		if got := h.settled(one.ID, "done", "failed"); got.State != "done" {
			t.Errorf("%+v\n%s", got, h.log)
		}
		if out := h.output(one.ID, "bash"); !strings.Contains(out, `"a\n1\n1\n"`) {
			t.Errorf("got output, prompts and sessions %s, want each line, prompt and session once", out)
		}
	}
}
