package govern

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"glasshouse/approval"
	"glasshouse/policy"
)

// family is a shell, a shell that it began, and a program that that one began.
type family struct{ first, second, third int }

func newFamily(t *testing.T) family {
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
		t.Fatalf("there are %v", pids)
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
	return family{pids[0], pids[1], pids[2]}
}

func (h *house) calls(permission string) *calls {
	h.t.Helper()
	return &calls{w: h.find(h.jail(permission)), init: os.Getpid(), stop: func() {}, allowed: map[int]birth{}}
}

func TestWhatAnAllowedProgramBeginsIsPartOfIt(t *testing.T) {
	h, f := newHouse(t), newFamily(t)
	c := h.calls(someAsked)
	if c.partOf(f.third) {
		t.Error("nothing was allowed, and it is part of it")
	}
	c.remember(f.second)
	if !c.partOf(f.second) || !c.partOf(f.third) {
		t.Error("what it began is no part of it")
	}
	if c.partOf(f.first) {
		t.Error("who began it is part of it")
	}

	// Another process of the same number is another process.
	c.mu.Lock()
	c.allowed[f.second] = "1"
	c.mu.Unlock()
	if c.partOf(f.third) {
		t.Error("it is part of a process that was before it")
	}

	// Nobody is part of init, or of what is above it.
	c.remember(f.first)
	c.init = f.second
	if c.partOf(f.third) {
		t.Error("init is not the end of it")
	}
	if c.partOf(0) || c.partOf(1<<30) {
		t.Error("nobody is part of it")
	}
}

func TestOnlyInitsOwnProgramSpeaksForAnOperator(t *testing.T) {
	h, f := newHouse(t), newFamily(t)
	c := h.calls(someAsked)
	if c.byInit(f.first) { // init's child, and another program already
		t.Error("a shell speaks for the operator")
	}
	c.init = f.first // the shell is init: a shell that it begins is init still
	if !c.byInit(f.second) {
		t.Error("init's copy does not speak for the operator")
	}
	if c.byInit(f.third) {
		t.Error("its grandchild does")
	}
	if c.byInit(1 << 30) {
		t.Error("nobody does")
	}
}

// asks is a call about a program, made by a process.
func asks(c *calls, pid int, line string) policy.Effect {
	return c.judge(context.Background(), pid, policy.Question{
		Subject: policy.Subject{Jail: c.w.jid}, Action: policy.ActionRun, Resource: line, Attributes: map[string]string{"observed": "true"},
	}).Effect
}

func TestCallsAreDecidedByWhoMakesThem(t *testing.T) {
	h, f := newHouse(t), newFamily(t)
	c := h.calls(someAsked)
	if got := asks(c, f.third, "rm x"); got != policy.Deny {
		t.Errorf("what is denied is %v", got)
	}
	if got := asks(c, f.second, "ls"); got != policy.Allow {
		t.Errorf("what is allowed is %v", got)
	}
	// ls is what the second has become: what that begins nobody is asked about.
	if got := asks(c, f.third, "make"); got != policy.Allow {
		t.Errorf("a part of it is %v", got)
	}
	if got := asks(c, f.third, "rm x"); got != policy.Deny {
		t.Errorf("a part of it that is denied is %v", got)
	}

	// A person who wants something else done cannot have this call do it.
	got := make(chan policy.Effect, 1)
	go func() { got <- asks(c, f.first, "make install") }()
	h.answers(h.pending(), approval.Answer{Verdict: approval.Modify, Resource: "make check"})
	if e := <-got; e != policy.Deny {
		t.Errorf("what was changed is %v", e)
	}
	if c.partOf(f.first) {
		t.Error("and it counts as allowed")
	}
	// Of what is part of something nothing is recorded but that.
	if all := h.recorded(c.w.jid); len(all) != 4 {
		t.Errorf("recorded are %d: %+v", len(all), all)
	}
}

func TestACallThatNobodyWaitsForIsRefused(t *testing.T) {
	h, f := newHouse(t), newFamily(t)
	c := h.calls(someAsked)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		h.pending()
		cancel(context.DeadlineExceeded) // the call's time is over once the request is open
	}()
	q := policy.Question{Subject: policy.Subject{Jail: c.w.jid}, Action: policy.ActionRun, Resource: "make"}
	if d := c.judge(ctx, f.third, q); d.Effect != policy.Deny || !strings.Contains(d.Reason, "could not") {
		t.Errorf("it is %+v", d)
	}
	if len(h.queue.Pending()) != 1 {
		t.Error("whoever asks again does not find the request")
	}
}
