package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/host/criu"
	"glasshouse/host/disk"
	"glasshouse/internal/procstat"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/init/control"
)

// A record describes an init process for a later daemon.
type record struct {
	procstat.Identity
	Restored    uint64 `json:"restored,omitempty"` // clock ticks after boot: processes started until then were restored
	SentryState string `json:"still,omitempty"`    // pause state of gVisor: stilling (pausing), still (paused) or ""
	OwnNet      bool   `json:"own_net,omitempty"`  // the jail uses gVisor's own network stack
}

// memberOf reports whether a process is in the cgroup of the given path, in any
// hierarchy.
func memberOf(pid int, path string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 && jail.Under(parts[2], path) {
			return true
		}
	}
	return false
}

// Open implements jail.Backend.
func (b *Backend) Open(ctx context.Context, p jail.Plan) (jail.Instance, error) {
	const op = "oci.Open"
	if err := base.CheckPaths(p, op); err != nil {
		return nil, err
	}
	l := layout{p.Dir}
	gone := func(why string, args ...any) error {
		return fault.Newf(fault.NotFound, op, string(p.ID), why, args...)
	}
	var r record
	err := base.ReadRecord(l.record(), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, gone("init was not started")
	}
	if err != nil {
		return nil, fmt.Errorf("open jail %s: %w", p.ID, err)
	}
	tree, err := b.tree()
	if err != nil {
		return nil, fmt.Errorf("open jail %s: %w", p.ID, err)
	}
	cg, err := tree.Open(string(p.ID))
	if err != nil {
		return nil, err // fault.NotFound if the jail has ended
	}
	pidfd, err := base.OpenProcess(r.PID)
	if err != nil {
		return nil, gone("init has exited: %w", err)
	}
	// The pidfd is open, so the pid cannot be reused without the checks below noticing it.
	now, err := procstat.Identify(r.PID)
	if err != nil || now != r.Identity || !memberOf(r.PID, cg.Path()) {
		pidfd.Close()
		return nil, gone("init, process %d, has exited", r.PID)
	}
	if err := b.waitForDump(ctx, r.PID); err != nil {
		pidfd.Close()
		return nil, fmt.Errorf("wait for the earlier checkpoint of jail %s: %w", p.ID, err)
	}
	if err := b.repairLink(ctx, p, cg); err != nil {
		pidfd.Close()
		return nil, err
	}
	i := b.newInstance(p, cg, r.PID, pidfd)
	i.sentryPaused.Store(r.SentryState == statePaused)
	if r.SentryState == statePausing {
		err = i.recoverPause(ctx)
	}
	if err == nil {
		err = i.reopenMemory(ctx)
	}
	if err == nil && i.ExitReason() == "" { // otherwise the jail is being killed
		err = i.finishCreate(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return i, nil
}

// waitForDump waits until a dump that an earlier daemon started has ended. CRIU completes the
// dump by itself and leaves the jail frozen as before.
func (b *Backend) waitForDump(ctx context.Context, pid int) error {
	deadline := time.Now().Add(dumpTime)
	var watch *criu.StuckWatcher
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		tracer := statusNumber(pid, "TracerPid")
		if tracer == 0 {
			return nil // not traced, or exited, which the caller detects
		}
		if watch == nil {
			watch = criu.NewWatch(tracer)
		}
		if _, err := watch.KillIfStuck(); err != nil {
			return fmt.Errorf("kill a stuck CRIU: %w", err)
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("init, process %d, is still being traced", pid)
		}
		time.Sleep(wait)
	}
}

// dumpTime limits the wait for a dump of an earlier daemon.
const dumpTime = time.Minute

// finishCreate completes the work of a daemon that died at the end of Create or during a Dump.
// A frozen jail cannot answer. Its Create was complete, so only the effects of a Dump need to
// be undone.
func (i *instance) finishCreate(ctx context.Context) error {
	l := i.layout
	if err := disk.Thaw(l.volume()); err != nil { // a daemon may have died during a clone
		return err
	}
	frozen, err := i.cgroup.Frozen()
	if err != nil {
		return err
	}
	if frozen || i.sentryPaused.Load() {
		return base.SealControl(l.socket(), "oci.Open")
	}
	ctx, cancel := context.WithTimeout(ctx, base.AnswerTime)
	defer cancel()
	if _, err := control.Dial(l.socket()).WaitReady(ctx); err != nil {
		return fmt.Errorf("init in %s does not respond: %w", l.dir, err)
	}
	return errors.Join(unmountStaged(l, l.secrets()), base.SealControl(l.socket(), "oci.Open"))
}
