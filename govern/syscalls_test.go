package govern

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"glasshouse/policy"
	"glasshouse/policy/approval"
)

// processTree is a shell, its child shell and a child process of that.
type processTree struct{ first, second, third int }

func newProcessTree(t *testing.T) processTree {
	t.Helper()
	cmd := exec.Command("sh", "-c", `echo $$; sh -c 'echo $$; sleep 1000 & echo $!; wait'; :`)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	var pids []int
	for len(pids) < 3 && lines.Scan() {
		pid, err := strconv.Atoi(lines.Text())
		must(t, err)
		pids = append(pids, pid)
	}
	if len(pids) < 3 {
		t.Fatalf("got pids %v, want 3", pids)
	}
	t.Cleanup(func() {
		for _, pid := range pids[1:] {
			if p, err := os.FindProcess(pid); err == nil {
				p.Kill()
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
	})
	return processTree{pids[0], pids[1], pids[2]}
}

func (h *harness) syscallJudge(permission string) *syscallJudge {
	h.t.Helper()
	return &syscallJudge{jp: h.find(h.jail(permission)), init: os.Getpid(), stop: func() {}, allowed: map[int]uint64{}}
}

func TestChildrenOfAnAllowedProgram(t *testing.T) {
	h, f := newHarness(t), newProcessTree(t)
	c := h.syscallJudge(askPermissions)
	if c.partOfAllowed(f.third) {
		t.Error("partOfAllowed is true before any process was allowed")
	}
	c.recordAllowed(f.second)
	if !c.partOfAllowed(f.second) || !c.partOfAllowed(f.third) {
		t.Error("partOfAllowed is false for the allowed process or its child")
	}
	if c.partOfAllowed(f.first) {
		t.Error("partOfAllowed is true for the parent of the allowed process")
	}

	// A reused pid is another process.
	c.mu.Lock()
	c.allowed[f.second] = 1
	c.mu.Unlock()
	if c.partOfAllowed(f.third) {
		t.Error("partOfAllowed is true for a child of a reused pid")
	}

	// The search for ancestors stops at init.
	c.recordAllowed(f.first)
	c.init = f.second
	if c.partOfAllowed(f.third) {
		t.Error("partOfAllowed looks beyond init")
	}
	if c.partOfAllowed(0) || c.partOfAllowed(1<<30) {
		t.Error("partOfAllowed is true for a process that does not exist")
	}
}

func TestStartedByInit(t *testing.T) {
	h, f := newHarness(t), newProcessTree(t)
	c := h.syscallJudge(askPermissions)
	if c.startedByInit(f.first) { // a child of init that runs another program
		t.Error("startedByInit is true for a shell")
	}
	c.init = f.first // if the shell is init, its child shell is a copy of init
	if !c.startedByInit(f.second) {
		t.Error("startedByInit is false for init's copy")
	}
	if c.startedByInit(f.third) {
		t.Error("startedByInit is true for a grandchild of init")
	}
	if c.startedByInit(1 << 30) {
		t.Error("startedByInit is true for a process that does not exist")
	}
}

// judgeExec decides an exec by a process.
func judgeExec(c *syscallJudge, pid int, line string) policy.Effect {
	return c.judge(context.Background(), pid, policy.Question{
		Subject: policy.Subject{Jail: c.jp.jid}, Action: policy.ActionRun, Resource: line, Attributes: map[string]string{"observed": "true"},
	}).Effect
}

func TestExecIsDecidedByProcess(t *testing.T) {
	h, f := newHarness(t), newProcessTree(t)
	c := h.syscallJudge(askPermissions)
	if got := judgeExec(c, f.third, "rm x"); got != policy.Deny {
		t.Errorf("denied program: got %v", got)
	}
	if got := judgeExec(c, f.second, "ls"); got != policy.Allow {
		t.Errorf("allowed program: got %v", got)
	}
	// The second process has become ls; its children are not asked about.
	if got := judgeExec(c, f.third, "make"); got != policy.Allow {
		t.Errorf("child of an allowed program: got %v", got)
	}
	if got := judgeExec(c, f.third, "rm x"); got != policy.Deny {
		t.Errorf("denied child of an allowed program: got %v", got)
	}

	// An approval of another command denies this one.
	got := make(chan policy.Effect, 1)
	go func() { got <- judgeExec(c, f.first, "make install") }()
	h.answer(h.waitPending(), approval.Answer{Verdict: approval.Modify, Resource: "make check"})
	if e := <-got; e != policy.Deny {
		t.Errorf("substituted command: got %v, want %v", e, policy.Deny)
	}
	if c.partOfAllowed(f.first) {
		t.Error("partOfAllowed is true after a substituted command")
	}
	// An exec that is allowed as a child is not recorded.
	if all := h.decisions(c.jp.jid); len(all) != 4 {
		t.Errorf("got %d recorded decisions, want 4: %+v", len(all), all)
	}
}

func TestExecIsDeniedAfterApprovalTimeout(t *testing.T) {
	h, f := newHarness(t), newProcessTree(t)
	c := h.syscallJudge(askPermissions)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		h.waitPending()
		cancel(context.DeadlineExceeded) // the call times out after the request is open
	}()
	q := policy.Question{Subject: policy.Subject{Jail: c.jp.jid}, Action: policy.ActionRun, Resource: "make"}
	if d := c.judge(ctx, f.third, q); d.Effect != policy.Deny || !strings.Contains(d.Reason, "decision failed") {
		t.Errorf("decision after the timeout = %+v, want %v", d, policy.Deny)
	}
	if len(h.queue.Pending()) != 1 {
		t.Errorf("got %d pending requests, want 1", len(h.queue.Pending()))
	}
}
