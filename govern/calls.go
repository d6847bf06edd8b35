package govern

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"glasshouse/chain"
	"glasshouse/enforce"
	"glasshouse/policy"
)

// calls decides what a jail's processes do, as the machine's kernel sees it.
//
// What an operator has a jail run is the operator's: a program that init itself
// begins is not asked about. What that program begins is the agent's doing and
// is decided. And what a program begins that was allowed is part of it: nobody
// who allowed npm test wants to be asked about each program that tests need, but
// what is denied stays denied, and files and connections are decided whoever
// asks.
type calls struct {
	w    *ward
	init int
	stop context.CancelFunc

	mu sync.Mutex
	// +checklocks:mu
	allowed map[int]birth // programs that were allowed, by the host's number
}

// birth tells a process from an earlier one of the same number: when it began,
// in ticks since the host did.
type birth string

// watchCalls decides the calls of a jail from now on, until the jail ends or has
// another body. w.mu is held.
func (w *ward) watchCalls(g Guard) error {
	if w.calls != nil {
		w.calls.stop()
		w.calls = nil
	}
	if g.Rewound {
		w.k.withdraw(w.jid, "the jail was rewound")
	}
	if g.Listener == nil {
		return nil
	}
	l, err := g.Listener()
	if errors.Is(err, os.ErrNotExist) && g.Again {
		w.k.cfg.Log.Error("a daemon died at a bad moment: whatever the jail's commands would ask about fails", "jail", w.jid)
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen to the jail's calls: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &calls{w: w, init: g.Init, stop: stop, allowed: map[int]birth{}}
	w.calls = c
	subject := policy.Subject{Jail: w.jid}
	w.wg.Go(func() {
		defer stop()
		defer l.Close()
		err := enforce.Watch(ctx, enforce.Jail{
			Subject: subject, Init: g.Init, Workspace: g.Workspace, Listener: l, Judge: c,
			Lied: c.lied, Log: w.k.cfg.Log,
		})
		if err != nil {
			w.k.cfg.Log.Error("the calls of a jail are not decided any more: they wait", "jail", w.jid, "err", err)
		}
	})
	return nil
}

// Judge implements enforce.Judge.
func (c *calls) Judge(ctx context.Context, q policy.Question) policy.Decision {
	pid, _ := enforce.Caller(ctx)
	return c.judge(ctx, pid, q)
}

// judge decides what a process does.
func (c *calls) judge(ctx context.Context, pid int, q policy.Question) policy.Decision {
	if q.Action == policy.ActionRun {
		if c.byInit(pid) {
			return policy.Decision{Effect: policy.Allow, Reason: "an operator has the jail run it"}
		}
		if c.isInit(pid, q.Attributes["exe"]) {
			return c.refuse(q, "init's program is for init alone: what it begins is not asked about")
		}
		if c.partOf(pid) {
			if d := c.w.k.Decide(q); d.Effect != policy.Deny {
				return policy.Decision{Effect: policy.Allow, Rule: d.Rule, Reason: "it is part of what was allowed"}
			}
		}
	}
	v, err := c.w.k.Judge(ctx, Ask{Question: q})
	if err != nil {
		if ctx.Err() == nil {
			c.w.k.cfg.Log.Error("a call is refused that could not be decided", "jail", c.w.jid, "action", q.Action, "err", err)
		}
		return policy.Decision{Effect: policy.Deny, Reason: "it could not be decided"}
	}
	if !v.Allow || v.Instead != "" { // the call is what it is: nothing else can be made of it
		d := v.Decision
		d.Effect = policy.Deny
		return d
	}
	if q.Action == policy.ActionRun {
		c.remember(pid)
	}
	d := v.Decision
	d.Effect = policy.Allow
	return d
}

// refuse refuses what no rule may allow.
func (c *calls) refuse(q policy.Question, why string) policy.Decision {
	d := policy.Decision{Effect: policy.Deny, Final: true, Reason: why,
		Rule: policy.Rule{Action: q.Action, Pattern: "*", Effect: policy.Deny, File: "kernel"}}
	who := policy.Subject{Jail: c.w.jid}
	c.w.k.Note(chain.Decided, who, 0, Decided{
		Action: q.Action, Resource: q.Resource, Attributes: q.Attributes, Effect: policy.Deny, Tag: Denied, Rule: d.Rule, Reason: why,
	}.masked(c.w.k.mask(context.Background(), who)))
	return d
}

// isInit reports whether a file, by its path in the jail, is init's program,
// by whatever name.
func (c *calls) isInit(pid int, exe string) bool {
	if strings.HasPrefix(exe, "/.glasshouse/") {
		return true
	}
	var a, b syscall.Stat_t
	return exe != "" && syscall.Stat(fmt.Sprintf("/proc/%d/root%s", pid, exe), &a) == nil &&
		syscall.Stat(fmt.Sprintf("/proc/%d/exe", c.init), &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// lied records a call that did something else than what was agreed to.
func (c *calls) lied(l enforce.Lie) {
	who := policy.Subject{Jail: c.w.jid}
	c.w.k.Note(chain.Decided, who, 0, Decided{
		Action: l.Done.Action, Resource: l.Done.Resource, Attributes: l.Done.Attributes,
		Effect: policy.Deny, Tag: Denied, Rule: policy.Rule{Action: l.Done.Action, Pattern: "*", Effect: policy.Deny, File: "kernel"},
		Reason: fmt.Sprintf("it asked for %q and did something else; it was killed", l.Asked.Resource),
	}.masked(c.w.k.mask(context.Background(), who)))
}

// byInit reports whether it is init's own program that begins another: what an
// operator asked init to run. One that was decided about is none of init's.
func (c *calls) byInit(pid int) bool {
	_, born, err := stat(pid)
	if err != nil {
		return false
	}
	c.mu.Lock()
	known, decided := c.allowed[pid]
	c.mu.Unlock()
	if decided && known == born {
		return false
	}
	var a, b syscall.Stat_t
	return syscall.Stat(fmt.Sprintf("/proc/%d/exe", pid), &a) == nil &&
		syscall.Stat(fmt.Sprintf("/proc/%d/exe", c.init), &b) == nil &&
		a.Dev == b.Dev && a.Ino == b.Ino && parentOf(pid) == c.init
}

// maxAncestors bounds how far back it is looked who began a process.
const maxAncestors = 64

// partOf reports whether a process, or one of those it comes from, is a program
// that was allowed. One whose ancestors have ended is not: it is asked about
// rather than let go.
func (c *calls) partOf(pid int) bool {
	for range maxAncestors {
		if pid <= 1 || pid == c.init {
			return false
		}
		parent, born, err := stat(pid)
		if err != nil {
			return false
		}
		c.mu.Lock()
		known, ok := c.allowed[pid]
		c.mu.Unlock()
		if ok && known == born {
			return true
		}
		pid = parent
	}
	return false
}

// remember has what a process becomes count as allowed.
func (c *calls) remember(pid int) {
	_, born, err := stat(pid)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.allowed) > 1024 {
		for p, b := range c.allowed {
			if _, now, err := stat(p); err != nil || now != b {
				delete(c.allowed, p)
			}
		}
	}
	c.allowed[pid] = born
}

func parentOf(pid int) int {
	parent, _, err := stat(pid)
	if err != nil {
		return 0
	}
	return parent
}

// stat returns who began a process, and when.
func stat(pid int) (parent int, born birth, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", err
	}
	// The name, in parentheses, may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 20 {
		return 0, "", fmt.Errorf("read process %d: %d fields", pid, len(fields))
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, birth(fields[19]), err
}
