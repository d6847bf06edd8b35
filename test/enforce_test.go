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

// permissions are a policy of few words: what is listed is allowed or denied, and
// about the rest somebody is asked.
const permissions = `{
  "permission": {
    "edit": {"*": "allow", "/etc/*": "deny", "etc/*": "deny"},
    "bash": {"sh *": "allow", "ls *": "allow", "touch *": "allow", "cat *": "allow", "cp *": "allow", "rm -rf *": "deny", "*": "ask"},
    "external_directory": "allow"
  }
}`

func TestAPolicyHoldsBelowWhoeverRunsInAJail(t *testing.T) {
	h := open(t, tools())
	for _, b := range []wire.CreateJail{{Runtime: "runc"}, {Runtime: "crun"}, {Backend: "bwrap"}} {
		name := strings.TrimSpace(b.Backend + " " + b.Runtime)
		b.Enforce = true
		b.Policy = &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: permissions}}}
		j := h.running(b)

		// What the operator runs is not asked about; what that runs is decided.
		if got := h.sh(j.ID, "ls / >/dev/null && echo listed; touch /tmp/x && echo touched"); got != "listed\ntouched" {
			t.Errorf("%s: what is allowed says %q", name, got)
		}
		if got := h.sh(j.ID, "rm -rf /tmp/x || echo refused; ls /tmp/x"); !strings.Contains(got, "refused") || !strings.Contains(got, "/tmp/x") {
			t.Errorf("%s: what is denied says %q", name, got)
		}
		if got := h.sh(j.ID, "echo x > /etc/motd || echo refused; ls /etc/motd"); !strings.Contains(got, "refused") {
			t.Errorf("%s: a redirection to what is denied: %q", name, got)
		}
		// A program that nobody knows, though it is one that is denied: a person is asked.
		x, err := h.Exec(t.Context(), j.ID, wire.ExecRequest{Cmd: "cp /bin/rm /tmp/harmless && /tmp/harmless -rf /tmp/x", Detach: true})
		if err != nil {
			t.Fatal(err)
		}
		if a := h.asked(j); !strings.Contains(a.What, "/tmp/harmless -rf /tmp/x") {
			t.Errorf("%s: asked about %q", name, a.What)
		} else if _, err := h.Answer(t.Context(), a.ID, wire.AnswerApproval{Answer: "deny"}); err != nil {
			t.Error(err)
		}
		if x = h.ended(j, x); x.ExitCode == nil || *x.ExitCode == 0 {
			t.Errorf("%s: a person denied it, and it ended with %+v", name, x)
		}
		if got := h.sh(j.ID, "cat /etc/hostname; true"); got == "" {
			t.Errorf("%s: reading is not asked about: %q", name, got)
		}
		if err := h.DeleteJail(t.Context(), j.ID); err != nil {
			t.Error(err)
		}
	}
}

// What init begins is not asked about, so nobody else may be init: not by its
// program, not by a copy of it, not as an orphan that it adopts.
func TestNobodyPlaysInit(t *testing.T) {
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
		t.Errorf("what is allowed says %q", got)
	}
}

func TestAProcessWaitsForAPerson(t *testing.T) {
	h := open(t, tools())
	j := h.running(wire.CreateJail{Enforce: true, Policy: &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: permissions}}}})
	x, err := h.Exec(t.Context(), j.ID, wire.ExecRequest{Argv: []string{"bash", "-c", "id -u && echo went on"}, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	a := h.asked(j)
	if !strings.Contains(a.What, "id -u") {
		t.Fatalf("asked about %q", a.What)
	}

	// Meanwhile a snapshot is taken, and a branch of it asks for itself.
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
		t.Errorf("the branch asks about %q", b.What)
	}
	if _, err := h.Answer(t.Context(), b.ID, wire.AnswerApproval{Answer: "deny"}); err != nil {
		t.Error(err)
	}

	// So does the daemon die and come back.
	h.kill()
	h.start()
	a = h.asked(j)
	if _, err := h.Answer(t.Context(), a.ID, wire.AnswerApproval{Answer: "allow"}); err != nil {
		t.Fatal(err)
	}
	x = h.ended(j, x)
	if x.ExitCode == nil || *x.ExitCode != 0 || !strings.Contains(x.Stdout, "went on") {
		t.Errorf("it was allowed, and ended with %+v", x)
	}
}

// wonders runs a command about which a person is asked, and returns when one is.
func (h *house) wonders(j wire.Jail, script string) (wire.Exec, wire.Approval) {
	h.Helper()
	x, err := h.Exec(h.Context(), j.ID, wire.ExecRequest{Argv: []string{"bash", "-c", script}, Detach: true})
	if err != nil {
		h.Fatal(err)
	}
	return x, h.asked(j)
}

func (h *house) allows(a wire.Approval) {
	h.Helper()
	if _, err := h.Answer(h.Context(), a.ID, wire.AnswerApproval{Answer: "allow"}); err != nil {
		h.Fatal(err)
	}
}

// withdrawn checks that nobody is asked any more.
func (h *house) withdrawn(a wire.Approval) {
	h.Helper()
	now, err := h.Approval(h.Context(), a.ID, 0)
	if err != nil || now.State != "withdrawn" {
		h.Errorf("what nobody waits for is %s: %v", now.State, err)
	}
}

var enforced = wire.CreateJail{Enforce: true, Policy: &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: permissions}}}}

func TestAJailThatIsPausedHoldsNoDaemonUp(t *testing.T) {
	h := open(t, tools())
	j := h.running(enforced)
	x, a := h.wonders(j, "id -u && echo went on")
	if _, err := h.PauseJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the one that asked, and one that found it paused
		if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- h.cmd.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the daemon ends with %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the daemon waits until the jail goes on")
		}
		h.start()
	}
	if _, err := h.ResumeJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if again := h.asked(j); again.ID != a.ID {
		t.Errorf("asked was %s, and now %s", a.ID, again.ID)
	}
	h.allows(a)
	if x = h.ended(j, x); x.ExitCode == nil || *x.ExitCode != 0 || !strings.Contains(x.Stdout, "went on") {
		t.Errorf("it was allowed, and ended with %+v", x)
	}
	if got := h.sh(j.ID, "rm -rf /tmp/x || echo refused"); !strings.Contains(got, "refused") {
		t.Errorf("then what is denied says %q", got)
	}
}

func TestATerminalSaysWhatACommandWaitsFor(t *testing.T) {
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
		if !strings.Contains(said, "a person is asked") || !strings.Contains(said, "id -u") || !strings.Contains(said, "approve "+string(a.ID)) {
			t.Errorf("%s: the terminal says %q", line[0], said)
		}
		h.allows(a)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", line[0], err)
		}
		ours.Close()
	}
}

func TestWhatIsAskedEndsWithWhoAsks(t *testing.T) {
	h := open(t, tools())
	j := h.running(enforced)
	clean, err := h.TakeSnapshot(t.Context(), j.ID, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	refuses := func() {
		t.Helper()
		if got := h.sh(j.ID, "rm -rf /tmp/x || echo refused; touch /tmp/y && echo touched"); !strings.Contains(got, "refused") || !strings.Contains(got, "touched") {
			t.Errorf("what is denied, and what is allowed: %q", got)
		}
	}

	// A rewind to before it was asked.
	_, a := h.wonders(j, "id -u && echo went on")
	waiting, err := h.TakeSnapshot(t.Context(), j.ID, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	if j, err = h.RewindJail(t.Context(), j.ID, clean.ID); err != nil {
		t.Fatal(err)
	}
	h.withdrawn(a)
	refuses()

	// One to where it was asked: it is asked anew.
	if j, err = h.RewindJail(t.Context(), j.ID, waiting.ID); err != nil {
		t.Fatal(err)
	}
	again := h.asked(j)
	if again.ID == a.ID || !strings.Contains(again.What, "id -u") {
		t.Errorf("asked is %s, %q", again.ID, again.What)
	}
	h.allows(again)
	refuses()

	// A stop, and a start.
	_, a = h.wonders(j, "id -un")
	if _, err := h.StopJail(t.Context(), j.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	h.withdrawn(a)
	if j, err = h.StartJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	refuses()

	// A pause keeps it.
	x, a := h.wonders(j, "id -u && echo went on")
	if _, err := h.PauseJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	h.allows(a)
	if _, err := h.ResumeJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if x = h.ended(j, x); !strings.Contains(x.Stdout, "went on") {
		t.Errorf("it was allowed while it was paused, and ended with %+v", x)
	}

	_, a = h.wonders(j, "id -g")
	if err := h.DeleteJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	h.withdrawn(a)
}

// asked waits until something that a jail wants waits for a person.
func (h *house) asked(j wire.Jail) wire.Approval {
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
	h.Fatalf("nobody was asked about %s", j.ID)
	return wire.Approval{}
}

// ended waits until a command has ended.
func (h *house) ended(j wire.Jail, x wire.Exec) wire.Exec {
	h.Helper()
	return h.endedWithin(20*time.Second, j, x)
}

func (h *house) endedWithin(limit time.Duration, j wire.Jail, x wire.Exec) wire.Exec {
	h.Helper()
	var err error
	for end := time.Now().Add(limit); x.Running; time.Sleep(50 * time.Millisecond) {
		if x, err = h.ExecResult(h.Context(), j.ID, x.ID); err != nil {
			h.Fatal(err)
		}
		if time.Now().After(end) {
			h.Fatalf("it waits: %+v", x)
		}
	}
	return x
}
