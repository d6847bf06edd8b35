package enforce_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/policy"
	"glasshouse/policy/enforce"
)

// snapshot takes a snapshot of the jail, which continues to run.
func (b *harness) snapshot() (images, layer string) {
	t := b.t
	t.Helper()
	cp := b.backend.(jail.Checkpointer)
	images, layer = filepath.Join(b.dir, "images-"+string(b.plan.ID)), filepath.Join(b.dir, "layer-"+string(b.plan.ID))
	must(t, os.Mkdir(images, 0o700))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must(t, cp.Dumpable(ctx, b.plan, b.inst))
	must(t, b.ctl.Park(ctx, 20*time.Second))
	must(t, b.inst.Freeze(ctx))
	must(t, cp.Stabilize(ctx, b.plan, b.inst))
	must(t, cp.Dump(ctx, b.plan, b.inst, images))
	copied, err := cp.BeginCopy(ctx, b.plan, layer)
	must(t, err)
	must(t, copied.Copy(ctx))
	must(t, copied.Close())
	must(t, b.inst.Thaw(ctx))
	b.ctl.Unpark()
	b.returnListener()
	return images, layer
}

// returnListener passes the listener back to init, as jail.Manager does after a snapshot.
func (b *harness) returnListener() {
	b.t.Helper()
	l, err := b.inst.(jail.EnforcedInstance).Listener()
	must(b.t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	must(b.t, l.Control(func(fd int) error { return b.ctl.Keep(ctx, fd) }))
}

// branch restores another jail from a snapshot.
func (b *harness) branch(images, layer string) *harness {
	t := b.t
	t.Helper()
	b.judge.mu.Lock()
	rule := b.judge.rule
	b.judge.mu.Unlock()
	other := &harness{t: t, backend: b.backend, dir: b.dir, prefix: b.prefix, judge: &judge{rule: rule}}
	other.plan = b.newPlan(func(p *jail.Plan) { p.Sealed, p.Runtime = append([]string{layer}, b.plan.Sealed...), b.plan.Runtime })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	inst, err := b.backend.(jail.Checkpointer).Restore(ctx, other.plan, images)
	must(t, err)
	other.inst = inst
	t.Cleanup(func() { inst.Close() })
	other.ctl = control.Dial(inst.Control())
	other.watch()
	t.Cleanup(func() { other.stop() })
	must(t, inst.Thaw(ctx))
	_, err = other.ctl.WaitReady(ctx)
	must(t, err)
	other.returnListener()
	return other
}

func forEachSnapshotted(t *testing.T, scenario func(t *testing.T, b *harness)) {
	for _, name := range []string{"runc", "crun"} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t, name)
			if err := b.backend.(jail.Checkpointer).CanCheckpoint(t.Context()); errors.Is(err, fault.Unsupported) {
				t.Skip(err)
			} else {
				must(t, err)
			}
			scenario(t, b)
		})
	}
}

func TestBranchIsEnforcedLikeItsParent(t *testing.T) {
	forEachSnapshotted(t, func(t *testing.T, b *harness) {
		b.mustRun("mkdir -p /work /kept; echo kept >/kept/file")
		loop := b.background("while ! test -e /work/go; do sleep 0.05; done; cat /etc/issue; echo wrote >/kept/file; echo end")
		images, layer := b.snapshot()
		branch := b.branch(images, layer)
		second := branch.branch(branch.snapshot())
		for what, j := range map[string]*harness{"the parent": b, "the branch": branch, "a branch of the branch": second} {
			j.judge.set(func(q policy.Question) policy.Effect {
				return policy.Stricter(denyCommand("cat")(q), denyEdit("/kept")(q))
			})
			if r := j.sh("cat /etc/issue"); r.code == 0 {
				t.Errorf("%s: a new command: %+v", what, r)
			}
			if r := j.sh("echo wrote >/kept/file"); r.code == 0 {
				t.Errorf("%s: a new file: %+v", what, r)
			}
			if r := j.sh("touch /work/go"); r.code != 0 {
				t.Errorf("%s: %+v", what, r)
			}
			if got := j.result(loop); strings.Count(got.out, "Operation not permitted") != 2 || !strings.Contains(got.out, "end") {
				t.Errorf("%s: a process from before: %+v", what, got)
			}
			j.judge.set(nil)
			if got := j.mustRun("cat /kept/file"); got != "kept" {
				t.Errorf("%s: %q", what, got)
			}
		}
	})
}

func TestPendingCallIsRestoredFromSnapshot(t *testing.T) {
	forEachSnapshotted(t, func(t *testing.T, b *harness) {
		b.judge.set(askCommand("cat"))
		held := b.background("cat /etc/issue; echo then")
		person := b.judge.approver(t, "cat /etc/issue")
		itself := b.background("exec cat /etc/passwd")
		b.judge.approver(t, "cat /etc/passwd")
		images, layer := b.snapshot()
		branch := b.branch(images, layer)
		answer(t, branch.judge.approver(t, "cat /etc/issue"), policy.Deny)
		answer(t, branch.judge.approver(t, "cat /etc/passwd"), policy.Allow)
		answer(t, person, policy.Allow)
		if got := b.result(held); got.out != "a small tree for tests\nthen" {
			t.Errorf("the parent: %+v", got)
		}
		if got := branch.result(held); !strings.Contains(got.out, "Operation not permitted") || !strings.Contains(got.out, "then") {
			t.Errorf("the branch: %+v", got)
		}
		if got := branch.result(itself); !strings.Contains(got.out, "root:") {
			t.Errorf("the branch: %+v", got)
		}
	})
}

// Until the start of a command is approved, its process is a copy of init.
func TestPendingStartIsRestoredFromSnapshot(t *testing.T) {
	forEachSnapshotted(t, func(t *testing.T, b *harness) {
		b.judge.set(askCommand("cat"))
		x := b.start("/bin/cat", "/etc/issue")
		person := b.judge.approver(t, "cat /etc/issue")
		branch := b.branch(b.snapshot())
		answer(t, branch.judge.approver(t, "cat /etc/issue"), policy.Deny)
		answer(t, person, policy.Allow)
		if got := b.result(x); got.out != "a small tree for tests" || got.code != 0 {
			t.Errorf("the parent: %+v", got)
		}
		if got := branch.result(x); got.code == 0 || !strings.Contains(got.out, "was not started") {
			t.Errorf("the branch: %+v", got)
		}
	})
}

func TestBranchSurvivesDaemonRestart(t *testing.T) {
	forEachSnapshotted(t, func(t *testing.T, b *harness) {
		images, layer := b.snapshot()
		branch := b.branch(images, layer)
		for what, j := range map[string]*harness{"the parent": b, "the branch": branch} {
			j.stop()
			must(t, j.inst.Close())
			inst, err := j.backend.Open(t.Context(), j.plan)
			must(t, err)
			j.inst = inst
			t.Cleanup(func() { inst.Close() })
			j.watch()
			t.Cleanup(j.stop)
			j.judge.set(denyCommand("cat"))
			if r := j.sh("cat /etc/issue"); r.code == 0 {
				t.Errorf("%s: %+v", what, r)
			}
		}
	})
}

var _ enforce.Judge = (*judge)(nil)
