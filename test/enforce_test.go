package test_test

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/api/wire"

	"github.com/creack/pty"
)

// permissions is a short policy: the listed actions are allowed or denied, all others require an
// approval.
const permissions = `{
  "permission": {
    "edit": {"*": "allow", "/etc/*": "deny", "etc/*": "deny"},
    "bash": {"sh *": "allow", "ls *": "allow", "touch *": "allow", "cat *": "allow", "cp *": "allow", "rm -rf *": "deny", "*": "ask"},
    "external_directory": "allow"
  }
}`

func TestKernelLevelEnforcement(t *testing.T) {
	h := open(t, tools())
	for _, b := range []wire.CreateJail{{Runtime: "runc"}, {Runtime: "crun"}, {Backend: "bwrap"}} {
		name := strings.TrimSpace(b.Backend + " " + b.Runtime)
		b.Enforce = true
		b.Policy = &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: permissions}}}
		j := h.running(b)

		// Commands of the operator are not checked; their child processes are.
		if got := h.sh(j.ID, "ls / >/dev/null && echo listed; touch /tmp/x && echo touched"); got != "listed\ntouched" {
			t.Errorf("%s: allowed commands printed %q", name, got)
		}
		if got := h.sh(j.ID, "rm -rf /tmp/x || echo refused; ls /tmp/x"); !strings.Contains(got, "refused") || !strings.Contains(got, "/tmp/x") {
			t.Errorf("%s: denied command printed %q", name, got)
		}
		if got := h.sh(j.ID, "echo x > /etc/motd || echo refused; ls /etc/motd"); !strings.Contains(got, "refused") {
			t.Errorf("%s: redirection to a denied file printed %q", name, got)
		}
		// An unknown program, a copy of a denied one, requires an approval.
		x, err := h.Exec(t.Context(), j.ID, wire.ExecRequest{Cmd: "cp /bin/rm /tmp/harmless && /tmp/harmless -rf /tmp/x", Detach: true})
		if err != nil {
			t.Fatal(err)
		}
		if a := h.asked(j); !strings.Contains(a.What, "/tmp/harmless -rf /tmp/x") {
			t.Errorf("%s: approval request for %q", name, a.What)
		} else if _, err := h.Answer(t.Context(), a.ID, wire.AnswerApproval{Answer: "deny"}); err != nil {
			t.Error(err)
		}
		x = h.ended(j, x)
		if x.ExitCode == nil || *x.ExitCode == 0 {
			t.Errorf("%s: the denied command ended with %+v, want failure", name, x)
		}
		if got := h.sh(j.ID, "cat /etc/hostname; true"); got == "" {
			t.Errorf("%s: reading a file printed %q, want its content", name, got)
		}
		if err := h.DeleteJail(t.Context(), j.ID); err != nil {
			t.Error(err)
		}
	}
}

// Children of init's commands are not checked, so no other process may pass as init: not by
// running its program or a copy of it, and not as an orphan adopted by it.
func TestProcessesCannotImpersonateInit(t *testing.T) {
	const permissions = `{"permission": {"edit": "allow", "external_directory": "allow", "bash": {"*": "allow", "touch *": "deny"}}}`
	h := open(t, tools())
	j := h.running(wire.CreateJail{Enforce: true, Policy: &wire.Policy{Level: 3, Files: []wire.PolicyFile{{Name: "opencode.json", Text: permissions}}}})
	for name, line := range map[string]string{
		"by its program":     "/.glasshouse/init asked touch /tmp/made",
		"by its path around": "cd /.glasshouse && ./init asked touch /tmp/made",
		"by a link":          "ln -s /.glasshouse/init /tmp/touch; /tmp/touch asked touch /tmp/made",
		"by a copy":          "cp /.glasshouse/init /tmp/copy; /tmp/copy asked touch /tmp/made",
		"as an orphan":       "(setsid /.glasshouse/init asked touch /tmp/made &) ; sleep 0.5",
		"as a copied orphan": "cp /.glasshouse/init /tmp/copy2; (setsid /tmp/copy2 asked touch /tmp/made &) ; sleep 0.5",
	} {
		if got := h.sh(j.ID, line+"; test -e /tmp/made && echo GOT OUT; rm -f /tmp/made; true"); strings.Contains(got, "GOT OUT") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := h.sh(j.ID, "ls / >/dev/null && echo listed"); got != "listed" {
		t.Errorf("the allowed command printed %q, want listed", got)
	}
}

func TestProcessWaitsForApproval(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Enforce: true, Policy: &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: permissions}}}})
	x, err := h.Exec(t.Context(), j.ID, wire.ExecRequest{Argv: []string{"bash", "-c", "id -u && echo went on"}, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	a := h.asked(j)
	if !strings.Contains(a.What, "id -u") {
		t.Fatalf("approval request for %q, want id -u", a.What)
	}

	// Take a snapshot while the approval is pending. A branch of it requests its own approval.
	s, err := h.TakeSnapshot(t.Context(), j.ID, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := h.BranchSnapshot(t.Context(), s.ID, wire.Branch{Count: 1})
	if err != nil || len(made.Jails) != 1 {
		t.Fatal(made, err)
	}
	b := h.asked(made.Jails[0])
	if !strings.Contains(b.What, "id -u") {
		t.Errorf("the branch requests an approval for %q", b.What)
	}
	if _, err := h.Answer(t.Context(), b.ID, wire.AnswerApproval{Answer: "deny"}); err != nil {
		t.Error(err)
	}

	// Kill and restart the daemon while the approval is pending.
	h.kill()
	h.start()
	a = h.asked(j)
	if _, err := h.Answer(t.Context(), a.ID, wire.AnswerApproval{Answer: "allow"}); err != nil {
		t.Fatal(err)
	}
	x = h.ended(j, x)
	if x.ExitCode == nil || *x.ExitCode != 0 || !strings.Contains(x.Stdout, "went on") {
		t.Errorf("the approved command ended with %+v", x)
	}
}

// startPending starts a command that requires an approval, and returns when it is pending.
func (h *daemonHarness) startPending(j wire.Jail, script string) (wire.Exec, wire.Approval) {
	h.Helper()
	x, err := h.Exec(h.Context(), j.ID, wire.ExecRequest{Argv: []string{"bash", "-c", script}, Detach: true})
	if err != nil {
		h.Fatal(err)
	}
	return x, h.asked(j)
}

func (h *daemonHarness) allows(a wire.Approval) {
	h.Helper()
	if _, err := h.Answer(h.Context(), a.ID, wire.AnswerApproval{Answer: "allow"}); err != nil {
		h.Fatal(err)
	}
}

// withdrawn checks that a request is withdrawn.
func (h *daemonHarness) withdrawn(a wire.Approval) {
	h.Helper()
	now, err := h.Approval(h.Context(), a.ID, 0)
	if err != nil || now.State != "withdrawn" {
		h.Errorf("request is %s: %v, want withdrawn", now.State, err)
	}
}

var enforced = wire.CreateJail{Enforce: true, Policy: &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: permissions}}}}

func TestPausedJailDoesNotDelayShutdown(t *testing.T) {
	h := open(t, tools())
	j := h.running(enforced)
	x, a := h.startPending(j, "id -u && echo went on")
	if _, err := h.PauseJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 { // first the daemon that received the request, then one that finds the jail paused
		if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- h.cmd.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the daemon exited: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the daemon waits for the paused jail to resume")
		}
		h.start()
	}
	if _, err := h.ResumeJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if again := h.asked(j); again.ID != a.ID {
		t.Errorf("the pending request was %s and is now %s", a.ID, again.ID)
	}
	h.allows(a)
	x = h.ended(j, x)
	if x.ExitCode == nil || *x.ExitCode != 0 || !strings.Contains(x.Stdout, "went on") {
		t.Errorf("the approved command ended with %+v", x)
	}
	if got := h.sh(j.ID, "rm -rf /tmp/x || echo refused"); !strings.Contains(got, "refused") {
		t.Errorf("after the resume, the denied command printed %q", got)
	}
}

func TestTerminalShowsPendingApproval(t *testing.T) {
	h := open(t, tools())
	j := h.running(enforced)
	for _, line := range [][]string{
		{"jail", "exec", string(j.ID), "--", "sh", "-c", "id -u; true"},
		{"decide", string(j.ID), "bash", "id -u"},
	} {
		ours, theirs, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(h.bin, line...)
		cmd.Env = append(os.Environ(), "GLASSHOUSE_DATA="+h.data)
		cmd.Stderr = theirs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		a := h.asked(j)
		said := ""
		for lines := bufio.NewScanner(ours); !strings.Contains(said, "approve "+string(a.ID)) && lines.Scan(); {
			said += lines.Text() + "\n"
		}
		if !strings.Contains(said, "approval required") || !strings.Contains(said, "id -u") || !strings.Contains(said, "approve "+string(a.ID)) {
			t.Errorf("%s: the terminal shows %q", line[0], said)
		}
		h.allows(a)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", line[0], err)
		}
		ours.Close()
	}
}

func TestApprovalIsWithdrawnWithItsProcess(t *testing.T) {
	h := open(t, tools())
	j := h.running(enforced)
	clean, err := h.TakeSnapshot(t.Context(), j.ID, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	refuses := func() {
		t.Helper()
		if got := h.sh(j.ID, "rm -rf /tmp/x || echo refused; touch /tmp/y && echo touched"); !strings.Contains(got, "refused") || !strings.Contains(got, "touched") {
			t.Errorf("a denied and an allowed command printed %q", got)
		}
	}

	// A rewind to before the request.
	_, a := h.startPending(j, "id -u && echo went on")
	waiting, err := h.TakeSnapshot(t.Context(), j.ID, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	j, err = h.RewindJail(t.Context(), j.ID, clean.ID)
	if err != nil {
		t.Fatal(err)
	}
	h.withdrawn(a)
	refuses()

	// A rewind to the pending request creates a new request.
	j, err = h.RewindJail(t.Context(), j.ID, waiting.ID)
	if err != nil {
		t.Fatal(err)
	}
	again := h.asked(j)
	if again.ID == a.ID || !strings.Contains(again.What, "id -u") {
		t.Errorf("got request %s for %q, want a new one for id -u", again.ID, again.What)
	}
	h.allows(again)
	refuses()

	// A stop and a start.
	_, a = h.startPending(j, "id -un")
	if _, err := h.StopJail(t.Context(), j.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	h.withdrawn(a)
	j, err = h.StartJail(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	refuses()

	// A pause keeps the request.
	x, a := h.startPending(j, "id -u && echo went on")
	if _, err := h.PauseJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	h.allows(a)
	if _, err := h.ResumeJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	x = h.ended(j, x)
	if !strings.Contains(x.Stdout, "went on") {
		t.Errorf("the command approved during the pause ended with %+v", x)
	}

	_, a = h.startPending(j, "id -g")
	if err := h.DeleteJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	h.withdrawn(a)
}

// asked waits until a jail has a pending approval and returns it.
func (h *daemonHarness) asked(j wire.Jail) wire.Approval {
	h.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		list, err := h.Approvals(h.Context(), "", j.ID)
		if err != nil {
			h.Fatal(err)
		}
		if len(list) > 0 {
			return list[0]
		}
	}
	h.Fatalf("%s has no pending approval", j.ID)
	return wire.Approval{}
}

// ended waits until a command has ended.
func (h *daemonHarness) ended(j wire.Jail, x wire.Exec) wire.Exec {
	h.Helper()
	return h.endedWithin(20*time.Second, j, x)
}

func (h *daemonHarness) endedWithin(limit time.Duration, j wire.Jail, x wire.Exec) wire.Exec {
	h.Helper()
	var err error
	for end := time.Now().Add(limit); x.Running; time.Sleep(50 * time.Millisecond) {
		x, err = h.ExecResult(h.Context(), j.ID, x.ID)
		if err != nil {
			h.Fatal(err)
		}
		if time.Now().After(end) {
			h.Fatalf("the command has not ended: %+v", x)
		}
	}
	return x
}
