package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/host/criu"
	"glasshouse/host/disk"
	"glasshouse/internal/atomicfile"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
)

// A record identifies an init process for a later daemon. A pid alone may have been reused.
type record struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
	Boot  string `json:"boot"`

	Restored    uint64 `json:"restored,omitempty"` // clock ticks after boot: processes started until then were restored
	SentryState string `json:"still,omitempty"`    // pause state of gVisor: stilling (pausing), still (paused) or ""
	OwnNet      bool   `json:"own_net,omitempty"`  // the jail uses gVisor's own network stack
}

// newRecord describes the current process pid.
func newRecord(pid int) (record, error) {
	start, err := startTime(pid)
	if err != nil {
		return record{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return record{}, err
	}
	return record{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

func (r record) write(name string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(name, b, 0o600)
}

func readRecord(name string) (record, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// startTime returns the start time of a process in clock ticks after boot.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStart(b)
}

// parseStart returns the 22nd field of /proc/PID/stat (proc(5)). The second field is the
// program name in parentheses, which may contain any characters.
func parseStart(stat []byte) (uint64, error) {
	end := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[end+1:])
	if end < 0 || len(fields) < 20 {
		return 0, fmt.Errorf("%.80q is not a valid /proc/PID/stat", stat)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
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
	if err := checkPaths(p, op); err != nil {
		return nil, err
	}
	l := layout{p.Dir}
	gone := func(why string, args ...any) error {
		return fault.Newf(fault.NotFound, op, string(p.ID), why, args...)
	}
	r, err := readRecord(l.record())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, gone("init was not started")
	}
	if err != nil {
		return nil, fmt.Errorf("open jail %s: %w", p.ID, err)
	}
	tree, err := b.tree()
	if err != nil {
		return nil, err
	}
	cg, err := tree.Open(string(p.ID))
	if err != nil {
		return nil, err // fault.NotFound if the jail has ended
	}
	pidfd, err := openPID(r.PID)
	if err != nil {
		return nil, gone("init has exited: %w", err)
	}
	// The pidfd is open, so the pid cannot be reused without the checks below noticing it.
	now, err := newRecord(r.PID)
	now.Restored, now.SentryState, now.OwnNet = r.Restored, r.SentryState, r.OwnNet
	if err != nil || now != r || !memberOf(r.PID, cg.Path()) {
		pidfd.Close()
		return nil, gone("init, process %d, has exited", r.PID)
	}
	if err := b.waitForDump(ctx, r.PID); err != nil {
		pidfd.Close()
		return nil, err
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
		return sealControl(l)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if _, err := control.Dial(l.socket()).WaitReady(ctx); err != nil {
		return fmt.Errorf("init of %s does not answer: %w", l.dir, err)
	}
	return errors.Join(unmountStaged(l, l.secrets()), sealControl(l))
}

// answerTime limits the wait for init to answer. Init must be loaded, and the host may be
// busy.
const answerTime = 15 * time.Second
