package govern

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"glasshouse/internal/procstat"
	"glasshouse/policy"
	"glasshouse/policy/chain"
	"glasshouse/policy/enforce"
)

// syscallJudge decides the execs, file writes and connections of a jail's processes, as
// reported by the seccomp listener.
//
// Programs that init itself starts were requested by an operator and are allowed. Programs
// that those start are decided by the policy. Descendants of an allowed program are allowed as
// well, so that approving npm test does not ask about each program that the tests start;
// denials still apply to them. File writes and connections are always decided.
type syscallJudge struct {
	jp   *jailPolicy
	init int
	stop context.CancelFunc

	mu sync.Mutex
	// +checklocks:mu
	allowed map[int]uint64 // start times of the allowed processes, by host pid
}

// watchSyscalls starts deciding the system calls of a jail. It runs until the jail ends or
// gets another instance. The caller holds jp.mu.
func (jp *jailPolicy) watchSyscalls(g Guard) error {
	if jp.syscalls != nil {
		jp.syscalls.stop()
		jp.syscalls = nil
	}
	if g.Rewound {
		jp.k.withdraw(jp.jid, "the jail was rewound")
	}
	if g.Listener == nil {
		return nil
	}
	l, err := g.Listener()
	if errors.Is(err, os.ErrNotExist) && g.Adopted {
		jp.k.cfg.Log.Error("the seccomp listener was lost when the daemon died: calls that need a decision fail", "jail", jp.jid)
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen for the jail's system calls: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &syscallJudge{jp: jp, init: g.Init, stop: stop, allowed: map[int]uint64{}}
	jp.syscalls = c
	subject := policy.Subject{Jail: jp.jid}
	jp.wg.Go(func() {
		defer stop()
		defer l.Close()
		err := enforce.Watch(ctx, enforce.Jail{
			Subject: subject, Init: g.Init, Workspace: g.Workspace, Listener: l, Judge: c,
			OnMismatch: c.recordMismatch, Log: jp.k.cfg.Log,
		})
		if err != nil {
			jp.k.cfg.Log.Error("deciding the system calls of a jail failed: its calls block", "jail", jp.jid, "err", err)
		}
	})
	return nil
}

// Judge implements enforce.Judge.
func (c *syscallJudge) Judge(ctx context.Context, q policy.Question) policy.Decision {
	pid, _ := enforce.Caller(ctx)
	return c.judge(ctx, pid, q)
}

// judge decides a system call of a process.
func (c *syscallJudge) judge(ctx context.Context, pid int, q policy.Question) policy.Decision {
	if q.Action == policy.ActionRun {
		if c.startedByInit(pid) {
			return policy.Decision{Effect: policy.Allow, Reason: "started by init for an operator"}
		}
		if c.isInitProgram(pid, q.Attributes["exe"]) {
			return c.deny(q, "only init may execute the init program: its children are not checked")
		}
		if c.partOfAllowed(pid) {
			if d := c.jp.k.Decide(q); d.Effect != policy.Deny {
				return policy.Decision{Effect: policy.Allow, Rule: d.Rule, Reason: "started by an allowed program"}
			}
		}
	}
	v, err := c.jp.k.Evaluate(ctx, Ask{Question: q})
	if err != nil {
		if ctx.Err() == nil {
			c.jp.k.cfg.Log.Error("could not decide a system call; denied", "jail", c.jp.jid, "action", q.Action, "err", err)
		}
		return policy.Decision{Effect: policy.Deny, Reason: "the decision failed"}
	}
	if !v.Allow || v.Instead != "" { // a system call cannot be replaced by another
		d := v.Decision
		d.Effect = policy.Deny
		return d
	}
	if q.Action == policy.ActionRun {
		c.recordAllowed(pid)
	}
	d := v.Decision
	d.Effect = policy.Allow
	return d
}

// deny denies and records a call that no rule may allow.
func (c *syscallJudge) deny(q policy.Question, why string) policy.Decision {
	d := policy.Decision{Effect: policy.Deny, Final: true, Reason: why,
		Rule: policy.Rule{Action: q.Action, Pattern: "*", Effect: policy.Deny, File: "kernel"}}
	who := policy.Subject{Jail: c.jp.jid}
	c.jp.k.Note(chain.Decided, who, 0, DecisionRecord{
		Action: q.Action, Resource: q.Resource, Attributes: q.Attributes, Effect: policy.Deny, Tag: Denied, Rule: d.Rule, Reason: why,
	}.masked(c.jp.k.mask(context.Background(), who)))
	return d
}

// isInitProgram reports whether a path in the jail names the init program, by any of its
// names.
func (c *syscallJudge) isInitProgram(pid int, exe string) bool {
	if strings.HasPrefix(exe, "/.glasshouse/") {
		return true
	}
	var a, b syscall.Stat_t
	return exe != "" && syscall.Stat(fmt.Sprintf("/proc/%d/root%s", pid, exe), &a) == nil &&
		syscall.Stat(fmt.Sprintf("/proc/%d/exe", c.init), &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// recordMismatch records a system call that differed from the one that was decided.
func (c *syscallJudge) recordMismatch(l enforce.Mismatch) {
	who := policy.Subject{Jail: c.jp.jid}
	c.jp.k.Note(chain.Decided, who, 0, DecisionRecord{
		Action: l.Observed.Action, Resource: l.Observed.Resource, Attributes: l.Observed.Attributes,
		Effect: policy.Deny, Tag: Denied, Rule: policy.Rule{Action: l.Observed.Action, Pattern: "*", Effect: policy.Deny, File: "kernel"},
		Reason: fmt.Sprintf("the process asked for %q and did something else; it was killed", l.Approved.Resource),
	}.masked(c.jp.k.mask(context.Background(), who)))
}

// startedByInit reports whether a process is a direct child of init that still runs the init
// program: init is executing an operator's command. A process that was decided before is not.
func (c *syscallJudge) startedByInit(pid int) bool {
	s, err := procstat.Read(pid)
	if err != nil {
		return false
	}
	c.mu.Lock()
	known, decided := c.allowed[pid]
	c.mu.Unlock()
	if decided && known == s.Start {
		return false
	}
	var a, b syscall.Stat_t
	return syscall.Stat(fmt.Sprintf("/proc/%d/exe", pid), &a) == nil &&
		syscall.Stat(fmt.Sprintf("/proc/%d/exe", c.init), &b) == nil &&
		a.Dev == b.Dev && a.Ino == b.Ino && s.Parent == c.init
}

// maxAncestors is the maximum number of ancestors that partOfAllowed inspects.
const maxAncestors = 64

// partOfAllowed reports whether a process or one of its ancestors was allowed. If the
// ancestors have exited, the result is false, and the process is decided on its own.
func (c *syscallJudge) partOfAllowed(pid int) bool {
	for range maxAncestors {
		if pid <= 1 || pid == c.init {
			return false
		}
		s, err := procstat.Read(pid)
		if err != nil {
			return false
		}
		c.mu.Lock()
		known, ok := c.allowed[pid]
		c.mu.Unlock()
		if ok && known == s.Start {
			return true
		}
		pid = s.Parent
	}
	return false
}

// recordAllowed marks a process as allowed.
func (c *syscallJudge) recordAllowed(pid int) {
	s, err := procstat.Read(pid)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.allowed) > 1024 {
		for p, b := range c.allowed {
			if now, err := procstat.Read(p); err != nil || now.Start != b {
				delete(c.allowed, p)
			}
		}
	}
	c.allowed[pid] = s.Start
}
