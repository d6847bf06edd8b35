package test_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/id"
	"glasshouse/observe/event"
)

// openOnDisk starts a daemon whose data directory is a file system of mb megabytes.
func openOnDisk(t *testing.T, mb int64, config string) *daemonHarness {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a filesystem needs root")
	}
	dir := shortTemp(t)
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := disk.Make(t.Context(), filepath.Join(dir, "disk.img"), data, mb, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Unmount(data); err != nil {
			t.Error(err)
		}
	})
	return openAt(t, data, config)
}

// leave fills the data directory's disk except for some bytes, until free is called.
func (h *daemonHarness) leave(bytes int64) (free func()) {
	h.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(h.data, &st); err != nil {
		h.Fatal(err)
	}
	filler := filepath.Join(h.data, "filler")
	f, err := os.Create(filler)
	if err != nil {
		h.Fatal(err)
	}
	defer f.Close()
	// The file system needs additional blocks for the metadata of the file.
	for n := int64(st.Bavail)*st.Bsize - bytes; n > 0; n -= 64 << 10 {
		err = unix.Fallocate(int(f.Fd()), 0, 0, n)
		if !errors.Is(err, unix.ENOSPC) {
			break
		}
		if err := f.Truncate(0); err != nil { // fallocate keeps the blocks that it allocated before it failed
			h.Fatal(err)
		}
	}
	if err != nil {
		h.Fatal(err)
	}
	return func() {
		h.Helper()
		if err := os.Remove(filler); err != nil {
			h.Error(err)
		}
	}
}

// repaired restarts a jail whose disk has become read-only.
func (h *daemonHarness) repaired(j id.Jail) {
	h.Helper()
	got, err := h.Jail(h.Context(), j)
	if err != nil {
		h.Fatal(err)
	}
	if len(got.Conditions) == 0 {
		return
	}
	if c := got.Conditions[0]; c.Type != "disk_read_only" || c.Remedy == "" {
		h.Errorf("jail conditions = %+v, want at most disk_read_only", got.Conditions)
	}
	if _, err := h.StopJail(h.Context(), j, 0); err != nil {
		h.Fatal(err)
	}
	if _, err := h.StartJail(h.Context(), j); err != nil {
		h.Fatal(err)
	}
}

// Each request that needs space succeeds, or fails with a problem that names the disk and a
// remedy. Decisions made in the meantime are in the audit log.
func TestRequestsOnFullDisk(t *testing.T) {
	h := openOnDisk(t, 768, tools()+"pool: {size: 0}\n")
	ctx := t.Context()
	// With on_overload count, a jail is not frozen while its events cannot be written.
	j := h.running(wire.CreateJail{Policy: worker(t, 2), Observe: wire.Observe{OnOverload: "count"}}).ID
	h.sh(j, "echo kept > /root/note; dd if=/dev/urandom of=/root/f bs=64k count=32 2>/dev/null; sync")
	kept, err := h.TakeSnapshot(ctx, j, wire.TakeSnapshot{})
	if err != nil && !errors.Is(err, fault.Unsupported) {
		t.Fatal(err)
	}
	requests := []struct {
		what string
		do   func() error
	}{
		{"create", func() error {
			made, err := h.CreateJail(ctx, wire.CreateJail{})
			if err != nil {
				return err
			}
			_, err = h.StartJail(ctx, made.ID)
			return errors.Join(err, h.DeleteJail(ctx, made.ID))
		}},
		{"snapshot", func() error {
			s, err := h.TakeSnapshot(ctx, j, wire.TakeSnapshot{Layering: "copied"})
			if err != nil {
				return err
			}
			return h.DeleteSnapshot(ctx, s.ID)
		}},
		{"stacked snapshot", func() error {
			s, err := h.TakeSnapshot(ctx, j, wire.TakeSnapshot{Layering: "stacked"})
			if err != nil {
				return err
			}
			return h.DeleteSnapshot(ctx, s.ID)
		}},
		{"branch", func() error {
			made, err := h.BranchSnapshot(ctx, kept.ID, wire.Branch{Count: 1})
			if err != nil {
				return err
			}
			return h.DeleteJail(ctx, made.Jails[0].ID)
		}},
		{"branch of a jail", func() error {
			made, err := h.BranchJail(ctx, j, wire.Branch{Count: 1})
			if err != nil {
				return err
			}
			return h.DeleteJailAndSnapshots(ctx, made.Jails[0].ID)
		}},
		{"write a file", func() error {
			_, err := h.WriteFile(ctx, j, "/dev/shm/f", strings.NewReader(strings.Repeat("x", 1<<20)), client.WriteOptions{})
			return err
		}},
		{"exec", func() error {
			_, err := h.Client.Exec(ctx, j, wire.ExecRequest{Cmd: "true"})
			return err
		}},
		{"pause", func() error {
			_, err := h.PauseJail(ctx, j)
			if err != nil {
				return err
			}
			_, err = h.ResumeJail(ctx, j)
			return err
		}},
		{"secret", func() error {
			value := "value"
			return h.PutSecret(ctx, "S", wire.PutSecret{Value: &value})
		}},
		{"token", func() error {
			token, err := h.CreateToken(ctx, wire.CreateToken{Name: "n", Role: "viewer"})
			if err != nil {
				return err
			}
			return h.RevokeToken(ctx, token.ID)
		}},
		{"session", func() error {
			_, err := h.OpenSession(ctx, wire.OpenSession{Name: "talk"})
			return err
		}},
	}
	failed, done := 0, 0
	for _, left := range []int64{0, 4 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20} {
		free := h.leave(left)
		for _, r := range requests {
			if kept.ID == "" && strings.Contains(r.what, "branch") {
				continue
			}
			err := r.do()
			if err == nil {
				done++
				continue
			}
			failed++
			if kind := fault.KindOf(err); kind != fault.NoSpace && kind != fault.Conflict || !strings.Contains(fault.RemedyOf(err), "disk") {
				t.Errorf("%s with %d bytes left = %v (%s, %q), want a full-disk error with a remedy", r.what, left, err, kind, fault.RemedyOf(err))
				t.Log(h.log.tail(1000))
			}
		}
		if left == 0 {
			full := func() bool {
				err := h.Ready(ctx)
				return fault.KindOf(err) == fault.Unavailable && strings.Contains(fmt.Sprint(err), "disk is full")
			}
			if !within(3*time.Second, full) { // the health check is cached for a second
				t.Errorf("Ready = %v, want a full-disk error", h.Ready(ctx))
			}
		}
		h.checkCauses(h.decide(j, "bash", "git status"), "AUTONOMOUS") // checks that it is in the audit log
		free()
		h.repaired(j)
	}
	t.Logf("%d requests failed, %d did not", failed, done)
	if failed == 0 || done == 0 {
		t.Error("want some failed and some successful requests")
	}
	if err := h.Ready(ctx); err != nil && !within(3*time.Second, func() bool { return h.Ready(ctx) == nil }) {
		t.Errorf("Ready with free space: %v", h.Ready(ctx))
	}
	for _, r := range requests {
		if kept.ID == "" && strings.Contains(r.what, "branch") {
			continue
		}
		if err := r.do(); err != nil {
			t.Errorf("%s with free space: %v", r.what, err)
		}
	}
	if got := h.sh(j, "cat /root/note"); got != "kept" {
		t.Errorf("the jail's file has %q, want kept", got)
	}
	if r, err := h.VerifyChain(ctx, true); err != nil || r.Bad != nil {
		t.Errorf("the audit log: %+v, %v", r, err)
	}
}

// A jail fills the host's disk. It can be removed, and other jails continue to run.
func TestRemoveJailThatFilledTheDisk(t *testing.T) {
	h := openOnDisk(t, 512, tools()+"pool: {size: 0}\n")
	ctx := t.Context()
	beside := h.running(wire.CreateJail{}).ID
	h.sh(beside, "echo kept > /root/note; sync")
	greedy := h.running(wire.CreateJail{Limits: wire.Limits{DiskMB: 2048}}).ID
	h.Client.Exec(ctx, greedy, wire.ExecRequest{Cmd: "dd if=/dev/urandom of=/root/f bs=1M; sync; echo more > /root/g; sync"})
	if err := h.Ready(ctx); fault.KindOf(err) != fault.Unavailable || !strings.Contains(fmt.Sprint(err), "disk is full") {
		t.Errorf("Ready = %v, want a full-disk error", err)
	}
	if got := h.sh(beside, "cat /root/note"); got != "kept" {
		t.Errorf("file of the other jail: got %q, want kept", got)
	}
	h.kill() // restart the daemon on a full disk
	h.startUntil((*client.Client).Health)
	begun := time.Now()
	if err := h.DeleteJail(ctx, greedy); err != nil {
		t.Fatalf("remove the jail: %v", err)
	}
	if took, most := time.Since(begun), 30*time.Second; took > most {
		t.Errorf("the removal took %v, want at most %v", took, most)
	}
	if !within(10*time.Second, func() bool { return h.Ready(ctx) == nil }) {
		t.Errorf("Ready with free space: %v", h.Ready(ctx))
	}
	if got := h.sh(beside, "cat /root/note"); got != "kept" {
		t.Errorf("file of the other jail: got %q, want kept", got)
	}
	h.running(wire.CreateJail{})
}

// busyLine opens a file 25 times and starts one child in each of n rounds.
const busyLine = `for ((r = 0; r < %d; r++)); do for ((f = 0; f < 25; f++)); do : > /dev/shm/f; done; ( : ); done`

// A tally counts the file and process events in the log of a jail, and the events that its gaps
// report as missing. The torn ones are those that a crash truncated.
type tally struct{ files, processes, missing, tornFiles, tornProcesses int64 }

// counted returns the tally of a jail's log.
func (h *daemonHarness) counted(j id.Jail) (c tally) {
	h.Helper()
	for _, e := range h.events(j, "type:file,proc,gap") {
		n, of := int64(1), e.Type
		if e.Type == event.Gap {
			n, of = e.Lost, e.Source
			c.missing += n
		}
		if n < 0 {
			h.Errorf("a gap has no count of missing events: %+v", e)
		}
		torn := int64(0)
		if e.Reason == "torn by a crash" {
			torn = n
		}
		switch of {
		case event.File:
			c.files += n
			c.tornFiles += torn
		case event.Proc:
			c.processes += n
			c.tornProcesses += torn
		}
	}
	return c
}

// checkFrozenConditions checks the conditions of a jail that is frozen because its events cannot be
// written.
func (h *daemonHarness) checkFrozenConditions(j id.Jail) {
	h.Helper()
	var got wire.Jail
	if !within(20*time.Second, func() bool {
		var err error
		got, err = h.Jail(h.Context(), j)
		return err == nil && len(got.Conditions) > 0
	}) || got.Conditions[0].Type != "events_not_written" || got.Conditions[0].Remedy == "" {
		h.Errorf("conditions of the frozen jail = %+v, want events_not_written with a remedy", got.Conditions)
	}
	_, err := h.Client.Exec(h.Context(), j, wire.ExecRequest{Cmd: "true"})
	_, snapshotErr := h.TakeSnapshot(h.Context(), j, wire.TakeSnapshot{})
	_, filesErr := h.ReadFile(h.Context(), j, "/etc/passwd", 0, -1)
	for what, err := range map[string]error{"exec": err, "snapshot": snapshotErr, "read": filesErr} {
		if fault.KindOf(err) != fault.NoSpace || fault.RemedyOf(err) == "" {
			h.Errorf("%s of a frozen jail = %v, want a full-disk error with a remedy", what, err)
		}
	}
}

// Events cannot be written while the disk is full. The recorded events and those counted in gaps
// add up to the actual number.
func TestEventCountsOnFullDisk(t *testing.T) {
	for name, c := range map[string]struct {
		overload string
		kill     bool
	}{
		"counted": {"count", false}, "throttled": {"throttle", false}, "counted, and the daemon is killed": {"count", true},
	} {
		if testing.Short() && !c.kill {
			continue
		}
		t.Run(name, func(t *testing.T) {
			h := openOnDisk(t, 256, "pool: {size: 0}\n")
			ctx := t.Context()
			j := h.running(wire.CreateJail{Observe: wire.Observe{Syscalls: "off", Network: "off", OnOverload: c.overload}}).ID
			h.watchedByKernel(j)
			line := func(rounds int) []string { return []string{"bash", "-c", fmt.Sprintf(busyLine, rounds)} }
			measure := func(rounds int) (files, processes int64) {
				before := h.counted(j)
				h.run(j, line(rounds)...)
				after := h.counted(j)
				if after.missing != 0 {
					t.Fatalf("%d events are missing with space left", after.missing)
				}
				return after.files - before.files, after.processes - before.processes
			}
			measure(10) // the first command of a jail opens additional files
			files, processes := measure(10)
			// Init adjusts a new process with one open, write and close, unless the process has
			// ended.
			const initsOwn = 3
			const perRound, perRoundProcesses = 2 * 25, 2

			const rounds = 2000
			before := h.counted(j)
			free := h.leave(2 << 20)
			x, err := h.Exec(ctx, j, wire.ExecRequest{Argv: line(rounds), Detach: true})
			if err != nil {
				t.Fatal(err)
			}
			if !within(time.Minute, func() bool {
				got, err := h.Jail(ctx, j)
				return err == nil && got.Observation != nil && strings.Contains(got.Observation.Log.Err, "no space left")
			}) {
				t.Fatal("the event log could be written all the time")
			}
			ended := func() bool {
				got, err := h.ExecResult(ctx, j, x.ID)
				return err == nil && !got.Running
			}
			if c.kill {
				h.kill()
				time.Sleep(200 * time.Millisecond)
				h.startUntil((*client.Client).Health)
			}
			if c.overload == "throttle" {
				h.checkFrozenConditions(j)
			} else if !within(2*time.Minute, ended) {
				t.Error("the command did not end")
			}
			free()
			if !within(2*time.Minute, ended) {
				t.Error("the command did not end after space was freed")
			}
			wantFiles, wantProcesses := files+(rounds-10)*perRound, processes+(rounds-10)*perRoundProcesses
			var got tally
			if !within(30*time.Second, func() bool {
				got = h.counted(j)
				// The BPF programs keep events that were not written before the daemon was
				// killed, so they are recorded later. An event that was torn is therefore
				// recorded and also counts as missing.
				files, processes := got.files-before.files-wantFiles, got.processes-before.processes-wantProcesses
				return files >= -initsOwn && files <= initsOwn+got.tornFiles && processes >= 0 && processes <= got.tornProcesses
			}) {
				t.Errorf("recorded and missing: %d file events and %d process events, want %d and %d, and up to %d and %d more that were torn",
					got.files-before.files, got.processes-before.processes, wantFiles, wantProcesses, got.tornFiles, got.tornProcesses)
			}
			t.Logf("%d file events and %d process events, %d of them missing", wantFiles, wantProcesses, got.missing)
			if lost := c.overload == "count"; lost != (got.missing > 0) {
				t.Errorf("gaps report %d missing events with on_overload %s", got.missing, c.overload)
			}
		})
	}
}
