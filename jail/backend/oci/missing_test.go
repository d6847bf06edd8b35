package oci_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/oci"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// withoutMemory enables lazily restored jails during the test. The sysctl is global and tests
// in other processes need it, too, so the last test restores the original value. Each test
// holds a shared lock on a file with that value.
func withoutMemory(t testing.TB) {
	t.Helper()
	const setting = "/proc/sys/vm/unprivileged_userfaultfd"
	f, err := os.OpenFile("/run/glasshouse-test-userfaultfd", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer f.Close()
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return // other tests still need it
		}
		was, err := io.ReadAll(io.NewSectionReader(f, 0, 16))
		if err == nil && len(was) > 0 {
			err = errors.Join(os.WriteFile(setting, was, 0), f.Truncate(0))
		}
		if err != nil {
			t.Errorf("restore %s: %v", setting, err)
		}
	})
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	was, err := os.ReadFile(setting)
	if err != nil {
		t.Skipf("this kernel has no userfaultfd: %v", err)
	}
	if was[0] == '1' {
		return
	}
	if _, err := f.WriteAt(was, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(setting, []byte("1"), 0); err != nil {
		t.Skip(err)
	}
}

// A lazily restored jail keeps the same contract. wherever lists the clauses that do not
// depend on lazy memory.
var wherever = []string{
	"Checkpoint/SealLayerAtRest", "Checkpoint/SealLayerThenCrash", "Checkpoint/WhatItCannotItRefuses", "Checkpoint/FailedDump",
	"Checkpoint/FailedRestore", "Checkpoint/HelpersDie", "Checkpoint/ProcessesDie", "Checkpoint/CleanInTheMiddleOfRestore", "Checkpoint/SealLayer", "Checkpoint/CopyLayer",
}

func TestContractOfLazilyRestoredJails(t *testing.T) {
	backendtest.Repeats(t)
	withoutMemory(t)
	without := wherever
	if !backendtest.Thorough {
		without = slices.Concat(without, below("Checkpoint", "Restored", "FullOfProcesses", "CopyOfACopy", "KeepsOrRefuses", "DumpLeavesFrozenAndUnharmed",
			"RestoreIsFrozenUntilThawed"),
			below("Checkpoint/Keeps", "identity", "mounts", "zombie", "stopped", "session", "pidfd", "files", "deleted", "locks", "fifo",
				"inotify", "timers", "sleep", "pipe", "unix", "unix-paths", "terminal", "listener", "loopback", "udp", "netlink", "identity-of-a-user"))
	}
	for _, runtime := range []string{"runc"} {
		t.Run(runtime, func(t *testing.T) {
			h := newHost(t)
			open := func(*testing.T) jail.Backend {
				b := h.daemon(runtime)
				b.LazyFrom(0)
				return b
			}
			backendtest.Run(t, open, backendtest.Options{Runtime: runtime, Differs: differs[runtime], Checkpoint: true, Without: without})
		})
	}
}

// A branching is a jail with a program that uses much memory, and its snapshot.
type branching struct {
	testing.TB
	h      *host
	b      *oci.Backend
	images string
	layer  string
	plan   jail.Plan // plan of the jail of the snapshot
}

// megabytes is the memory size of the program, which is more than is touched by chance. On
// request the program writes the checksum of its memory.
const megabytes = 32

const program = `
x=$(seq 90000)
for i in 1 2 3 4 5 6; do x=$x$x; done
echo up > /root/up
while :; do
  if [ -e /root/ask ]; then rm /root/ask; printf %s "$x" | sha256sum > /root/sum.part; mv /root/sum.part /root/sum; fi
  sleep 0.02
done`

func newBranching(t *testing.T) *branching {
	t.Helper()
	withoutMemory(t)
	h := newHost(t)
	b := ready(t, h, "runc")
	if err := b.CanCheckpoint(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	br := &branching{TB: t, h: h, b: b}
	br.plan = h.plan(t, b, func(p *jail.Plan) { p.Limits.MemoryMB = 512 })
	inst, err := b.Create(t.Context(), br.plan)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inst.Close() })
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"/bin/bash", "-c", program}, Env: []string{"PATH=/usr/bin:/bin"}}
	if _, _, err := control.Dial(inst.Control()).Exec(t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	m := &member{br, br.plan, inst}
	m.await("/root/up")
	br.images, br.layer = br.take(m)
	return br
}

// A member is the jail or one of its branches.
type member struct {
	*branching
	plan jail.Plan
	inst jail.Instance
}

func (m *member) sh(script string) string {
	m.Helper()
	out, _, err := run(m.Context(), m.inst, "/bin/bash", "-c", script)
	if err != nil {
		m.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(out)
}

func (m *member) await(file string) string {
	m.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		// Do not remove a file that the program has not written yet.
		if got := m.sh("s=$(cat " + file + " 2>/dev/null); [ -z \"$s\" ] || { rm -f " + file + "; echo \"$s\"; }"); got != "" {
			return got
		}
		if time.Now().After(end) {
			m.Fatalf("%s does not exist", file)
		}
	}
}

// sum makes the program read all of its memory.
func (m *member) sum() string {
	m.Helper()
	m.sh("echo > /root/ask")
	return m.await("/root/sum")
}

func (m *member) memory() int64 {
	m.Helper()
	st, err := m.inst.Stats(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	return st.MemoryBytes
}

// take takes a snapshot of a member, which continues to run.
func (br *branching) take(m *member) (images, layer string) {
	br.Helper()
	base, err := os.MkdirTemp("", "glasshouse-images-")
	if err != nil {
		br.Fatal(err)
	}
	br.Cleanup(func() { os.RemoveAll(base) })
	os.Chmod(base, 0o711)
	images, layer = filepath.Join(base, "images"), filepath.Join(base, "layer.img")
	if err := os.Mkdir(images, 0o755); err != nil {
		br.Fatal(err)
	}
	ctx, ctl := br.Context(), control.Dial(m.inst.Control())
	must := func(what string, err error) {
		br.Helper()
		if err != nil {
			br.Fatalf("%s: %v", what, err)
		}
	}
	must("Dumpable", br.b.Dumpable(ctx, m.plan, m.inst))
	must("Park", ctl.Park(ctx, 20*time.Second))
	must("Freeze", m.inst.Freeze(ctx))
	must("Steady", br.b.Stabilize(ctx, m.plan, m.inst))
	must("Dump", br.b.Dump(ctx, m.plan, m.inst, images))
	c, err := br.b.BeginCopy(ctx, m.plan, layer)
	must("BeginCopy", err)
	must("Take", errors.Join(c.Copy(ctx), c.Close()))
	must("Thaw", m.inst.Thaw(ctx))
	ctl.Unpark()
	return images, layer
}

// branch restores a running jail from the snapshot.
func (br *branching) branch(images, layer string, change ...func(*jail.Plan)) *member {
	br.Helper()
	p := br.h.plan(br, br.b, append([]func(*jail.Plan){func(p *jail.Plan) {
		p.Limits, p.Sealed = br.plan.Limits, []string{layer}
	}}, change...)...)
	inst, err := br.b.Restore(br.Context(), p, images)
	if err != nil {
		br.Fatalf("Restore: %v", err)
	}
	br.Cleanup(func() { inst.Close() })
	m := &member{br, p, inst}
	if err := inst.Thaw(br.Context()); err != nil {
		br.Fatal(err)
	}
	return m
}

// servers returns the page server processes of the daemon.
func (br *branching) servers() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		b, _ := os.ReadFile(name)
		if bytes.Contains(b, []byte("\x00pages\x00"+br.h.dir)) {
			var pid int
			fmt.Sscanf(name, "/proc/%d/", &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestBranchLoadsOnlyTouchedMemory(t *testing.T) {
	br := newBranching(t)
	var all []*member
	for range 4 {
		all = append(all, br.branch(br.images, br.layer))
	}
	if n := len(br.servers()); n != 1 {
		t.Errorf("%d page servers for the branches of one snapshot, want 1", n)
	}
	time.Sleep(2 * time.Second) // CRIU's own server would push all memory in that time
	for _, m := range all {
		if used := m.memory() >> 20; used > megabytes/2 {
			t.Errorf("a branch that touched no memory uses %d MB", used)
		}
	}
	want := all[0].sum()
	for _, m := range all[1:] {
		if got := m.sum(); got != want {
			t.Errorf("checksum of one branch = %s, of another = %s", got, want)
		}
	}
}

func TestBranchOfBranchKeepsUntouchedMemory(t *testing.T) {
	br := newBranching(t)
	first := br.branch(br.images, br.layer)
	images, layer := br.take(first)
	if _, err := os.Lstat(filepath.Join(first.plan.Dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a branch still lacks memory after a snapshot: %v", err)
	}
	second := br.branch(images, layer, func(p *jail.Plan) { p.Sealed = append(p.Sealed, br.layer) })
	third := br.branch(br.images, br.layer)
	want := third.sum()
	for name, m := range map[string]*member{"the branch": first, "its branch": second} {
		if got := m.sum(); got != want {
			t.Errorf("checksum of %s = %s, want %s", name, got, want)
		}
	}
}

func TestSnapshotFailsIfMissingMemoryExceedsLimit(t *testing.T) {
	br := newBranching(t)
	m := br.branch(br.images, br.layer, func(p *jail.Plan) { p.Limits.MemoryMB = megabytes / 2 })
	if err := br.b.Dumpable(t.Context(), m.plan, m.inst); !errors.Is(err, fault.Unsupported) {
		t.Errorf("Dumpable = %v, want fault.Unsupported", err)
	}
	if got := m.sh("echo well"); got != "well" {
		t.Errorf("output of the jail afterwards = %q", got)
	}
}

func TestPsShowsUntouchedArguments(t *testing.T) {
	br := newBranching(t)
	m := br.branch(br.images, br.layer)
	if got := m.sh(`for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline; done`); !strings.Contains(got, "/root/ask") {
		t.Errorf("commands = %q", got)
	}
}

func TestBranchIsKilledWhenItsMemoryIsLost(t *testing.T) {
	for _, later := range []bool{false, true} {
		t.Run(map[bool]string{false: "while the daemon runs", true: "while no daemon does"}[later], func(t *testing.T) {
			br := newBranching(t)
			m := br.branch(br.images, br.layer)
			inst := m.inst
			if later {
				inst.Close()
			}
			servers := br.servers()
			if len(servers) != 1 {
				t.Fatalf("servers: %v", servers)
			}
			unix.Kill(servers[0], unix.SIGKILL)
			if later {
				var err error
				if inst, err = br.h.daemon("runc").Open(t.Context(), m.plan); err != nil {
					t.Fatalf("Open: %v", err)
				}
				defer inst.Close()
			}
			select {
			case <-inst.Done():
			case <-time.After(30 * time.Second):
				t.Fatal("the jail still runs without its memory")
			}
			w, ok := inst.(jail.ExitExplainer)
			if !ok || !strings.Contains(w.ExitReason(), "memory") {
				t.Errorf("Why = \"\", want a reason")
			}
		})
	}
}

func TestReopenedBranchKeepsItsMemory(t *testing.T) {
	br := newBranching(t)
	m := br.branch(br.images, br.layer)
	m.inst.Close()
	time.Sleep(50 * time.Millisecond)
	inst, err := br.h.daemon("runc").Open(t.Context(), m.plan)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { inst.Close() })
	again := &member{br, m.plan, inst}
	if got, want := again.sum(), br.branch(br.images, br.layer).sum(); got != want {
		t.Errorf("checksum = %s, want %s", got, want)
	}
	if w, ok := inst.(jail.ExitExplainer); !ok || w.ExitReason() != "" {
		t.Errorf("Why = %q, want none", w.ExitReason())
	}
}

func TestPageServerExitsWithItsBranches(t *testing.T) {
	if !backendtest.Thorough {
		t.Skip("the page server waits for another branch for half a minute")
	}
	br := newBranching(t)
	m := br.branch(br.images, br.layer)
	if err := m.inst.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(90 * time.Second); len(br.servers()) > 0; time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("servers: %v", br.servers())
		}
	}
	left, err := os.ReadDir(filepath.Join(br.h.dir, "run", "pages"))
	if err != nil || len(left) > 0 {
		t.Errorf("remaining servers: %v, %v", left, err)
	}
}
