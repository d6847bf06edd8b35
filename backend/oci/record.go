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
	"glasshouse/jailinit/control"
)

// A record is what a later daemon needs to know an init again: a pid alone may
// have become another process's.
type record struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
	Boot  string `json:"boot"`

	Restored uint64 `json:"restored,omitempty"` // clock ticks after boot: what began until then was made from images
	Still    string `json:"still,omitempty"`    // a jail of gVisor, by its kernel: stilling, still
	OwnNet   bool   `json:"own_net,omitempty"`  // and it has a network of gVisor's
}

// newRecord describes the process pid as it is now.
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

// startTime returns when a process began, in clock ticks after boot.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStart(b)
}

// parseStart finds the 22nd field of a /proc/PID/stat. The second is the
// program's name in parentheses, which may hold anything.
func parseStart(stat []byte) (uint64, error) {
	end := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[end+1:])
	if end < 0 || len(fields) < 20 {
		return 0, fmt.Errorf("%.80q is no /proc/PID/stat", stat)
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
	if err := checkPlace(p, op); err != nil {
		return nil, err
	}
	l := layout{p.Dir}
	gone := func(why string, args ...any) error {
		return fault.Newf(fault.NotFound, op, string(p.ID), why, args...)
	}
	r, err := readRecord(l.record())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, gone("no init was started")
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
		return nil, err // not found, if so
	}
	pidfd, err := openPID(r.PID)
	if err != nil {
		return nil, gone("its init is gone: %w", err)
	}
	// From here on the pid cannot become another's unnoticed.
	now, err := newRecord(r.PID)
	now.Restored, now.Still, now.OwnNet = r.Restored, r.Still, r.OwnNet
	if err != nil || now != r || !memberOf(r.PID, cg.Path()) {
		pidfd.Close()
		return nil, gone("its init, process %d, is gone", r.PID)
	}
	if err := b.letFinish(ctx, r.PID); err != nil {
		pidfd.Close()
		return nil, err
	}
	if err := b.mend(ctx, p, cg); err != nil {
		pidfd.Close()
		return nil, err
	}
	i := b.newInstance(p, cg, r.PID, pidfd)
	i.still.Store(r.Still == still)
	if r.Still == stilling {
		err = i.wasStilled(ctx)
	}
	if err == nil {
		err = i.findMemory(ctx)
	}
	if err == nil && i.Why() == "" { // or else it is about to end
		err = i.settled(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return i, nil
}

// letFinish waits until nobody writes the jail down any more: a CRIU that a daemon
// left behind in the middle of that finishes it, and leaves the jail frozen as it
// found it.
func (b *Backend) letFinish(ctx context.Context, pid int) error {
	deadline := time.Now().Add(dumpTime)
	var watch *criu.Watch
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		tracer := statusOf(pid, "TracerPid")
		if tracer == 0 {
			return nil // or it has ended, which is for others to find
		}
		if watch == nil {
			watch = criu.NewWatch(tracer)
		}
		if _, err := watch.End(); err != nil {
			return fmt.Errorf("end a CRIU that waits for a process that has ended: %w", err)
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("init, process %d, is being traced and does not come free", pid)
		}
		time.Sleep(wait)
	}
}

// dumpTime is how long a dump that nobody waits for any more may take to end.
const dumpTime = time.Minute

// settled finishes what a daemon that died at the end of Create, or in a Dump,
// left to do. A frozen jail could not answer, and has been settled long before
// but for what a Dump undid.
func (i *instance) settled(ctx context.Context) error {
	l := i.layout
	if err := disk.Thaw(l.volume()); err != nil { // a daemon may have died in the middle of a clone
		return err
	}
	frozen, err := i.cgroup.Frozen()
	if err != nil {
		return err
	}
	if frozen || i.still.Load() {
		return sealControl(l)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if _, err := control.Dial(l.socket()).WaitReady(ctx); err != nil {
		return fmt.Errorf("init of %s does not answer: %w", l.dir, err)
	}
	return errors.Join(dropStaged(l, l.secrets()), sealControl(l))
}

// answerTime is how long an init may take to answer: it has to be loaded, and
// the machine may be busy.
const answerTime = 15 * time.Second
