package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

// failedDump dumps to directories that cannot be written.
func (s *suite) failedDump(t *testing.T) {
	b, file := s.counts(t)
	cp := s.checkpointer(t)
	b.start(t, "exec probe hold 32") // more than the directory can hold
	fails := func(t *testing.T, dir string) {
		t.Helper()
		b.freeze(t)
		at := countIn(file)
		err := cp.Dump(deadline(t, time.Minute), b.plan, b.inst, dir)
		if err == nil {
			t.Error("Dump succeeded, want an error")
		}
		b.stillHeld(t, file, at)
		b.letGo(t)
		moves(t, file)
		if got := b.sh(t, "echo fine"); got != "fine" {
			t.Errorf("after a failed Dump the jail printed %q", got)
		}
	}
	s.clause(t, "no-directory", func(t *testing.T) { fails(t, filepath.Join(shortTempDir(t), "absent")) })
	s.clause(t, "read-only", func(t *testing.T) { fails(t, smallMemory(t, unix.MS_RDONLY, "size=64m")) })
	for _, room := range []string{"4k", "64k", "512k", "4m", "16m"} {
		s.clause(t, "disk-full-at-"+room, func(t *testing.T) { fails(t, smallMemory(t, 0, "size="+room)) })
	}
	s.clause(t, "called-off", func(t *testing.T) {
		for i := range 6 {
			img := s.newImage(t, b.plan)
			b.freeze(t)
			at := countIn(file)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*6*time.Millisecond)
			err := cp.Dump(ctx, b.plan, b.inst, img.dir)
			cancel()
			b.stillHeld(t, file, at)
			b.letGo(t)
			moves(t, file)
			if err == nil {
				t.Logf("Dump finished within %d ms", i*6)
			}
		}
	})
	s.clause(t, "another-backend's-jail", func(t *testing.T) {
		if err := cp.Dump(t.Context(), b.plan, stranger{b.inst}, s.newImage(t, b.plan).dir); !errors.Is(err, fault.Invalid) {
			t.Errorf("Dump = %v, want invalid", err)
		}
	})
	s.snapshotStillWorks(t, b, file)
	b.kill(t)
}

// A stranger is an instance of another backend.
type stranger struct{ jail.Instance }

// stillHeld checks that a Dump has left the jail frozen and unchanged.
func (b *box) stillHeld(t *testing.T, file, at string) {
	t.Helper()
	stands(t, file, countIn(file))
	if now := countIn(file); now != at {
		t.Errorf("during Dump the count went from %q to %q", at, now)
	}
	select {
	case <-b.inst.Done():
		t.Fatal("init has ended")
	default:
	}
}

// snapshotStillWorks takes a snapshot of a jail after the failed attempts.
func (s *suite) snapshotStillWorks(t *testing.T, b *box, file string) {
	t.Helper()
	s.snapshotAndCopy(t, b)
	moves(t, file)
}

// snapshotAndCopy takes a snapshot of a jail, which continues, and restores a copy from it.
func (s *suite) snapshotAndCopy(t *testing.T, b *box) {
	t.Helper()
	img := b.snapshot(t)
	copied := s.restore(t, img)
	if got := copied.sh(t, "echo fine"); got != "fine" {
		t.Errorf("the copy printed %q", got)
	}
	copied.kill(t)
}

// smallMemory mounts a tmpfs that is too small or read-only.
func smallMemory(t *testing.T, flags uintptr, options string) string {
	t.Helper()
	dir := shortTempDir(t)
	if err := unix.Mount("small", dir, "tmpfs", flags, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("the directory of images is still in use: %v", err)
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// failedRestore restores from incomplete or damaged images.
func (s *suite) failedRestore(t *testing.T) {
	b := s.newBox(t)
	b.start(t, "sleep 300")
	img := b.snapshot(t)
	b.kill(t)
	cp := s.checkpointer(t)
	names, err := os.ReadDir(img.dir)
	if err != nil || len(names) == 0 {
		t.Fatalf("images: %v, %v", names, err)
	}
	fails := func(t *testing.T, harm func(dir string) error) {
		t.Helper()
		harmed := s.newImage(t, img.plan)
		harmed.layer = img.layer
		for _, e := range names {
			if err := copyFile(filepath.Join(harmed.dir, e.Name()), filepath.Join(img.dir, e.Name()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := harm(harmed.dir); err != nil {
			t.Fatal(err)
		}
		p := harmed.newPlan(t, s)
		inst, err := cp.Restore(deadline(t, time.Minute), p, harmed.dir)
		if err == nil { // the missing file was not needed
			inst.Kill(deadline(t, 20*time.Second))
			inst.Close()
			return
		}
		mustNotLeak(t, p)
	}
	s.clause(t, "nothing-there", func(t *testing.T) {
		p := img.newPlan(t, s)
		if _, err := cp.Restore(t.Context(), p, shortTempDir(t)); err == nil {
			t.Error("Restore of nothing succeeded")
		}
		mustNotLeak(t, p)
	})
	s.clause(t, "another-mount", func(t *testing.T) {
		p := img.newPlan(t, s, func(p *jail.Plan) { p.Lower = []string{filepath.Join(p.Dir, "absent")} })
		if _, err := cp.Restore(t.Context(), p, img.dir); err == nil {
			t.Error("Restore over a missing layer succeeded")
		}
		mustNotLeak(t, p)
	})
	for i, e := range names {
		if i%3 != 0 && len(names) > 12 {
			continue // a third of them is sufficient
		}
		s.clause(t, "missing", func(t *testing.T) {
			fails(t, func(dir string) error { return os.Remove(filepath.Join(dir, e.Name())) })
		})
		s.clause(t, "cut-short", func(t *testing.T) {
			fails(t, func(dir string) error { return os.Truncate(filepath.Join(dir, e.Name()), 10) })
		})
	}
	s.clause(t, "called-off", func(t *testing.T) {
		for i := range 8 {
			p := img.newPlan(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*12*time.Millisecond)
			inst, err := cp.Restore(ctx, p, img.dir)
			cancel()
			if err != nil {
				mustNotLeak(t, p)
				continue
			}
			inst.Kill(deadline(t, 20*time.Second))
			inst.Close()
		}
	})
	s.clause(t, "running-already", func(t *testing.T) {
		copied := s.restore(t, img)
		if _, err := cp.Restore(t.Context(), copied.plan, img.dir); !errors.Is(err, fault.Conflict) {
			t.Errorf("Restore of a jail that runs = %v, want conflict", err)
		}
		if got := copied.sh(t, "echo alive"); got != "alive" {
			t.Errorf("the jail printed %q, want alive", got)
		}
		copied.kill(t)
	})
}

// helpersDie kills the programs that a Dump or Restore starts, at any moment. Dump cannot
// guarantee that the jail survives: at some moments the helper controls one of its processes.
// But such moments are few, Dump reports the failure, surviving processes stay frozen, and
// nothing is left behind.
func (s *suite) helpersDie(t *testing.T) {
	cp := s.checkpointer(t)
	n := moments(24)
	s.clause(t, "in-Dump", func(t *testing.T) {
		var b *box
		var file string
		var duration time.Duration
		met, harmed := 0, 0
		interrupted := false // a Dump of this jail
		remove := func() {
			harmed++
			b.remove(t)
			b = nil
		}
		for i := 0; i < n; i++ {
			if b == nil {
				b, file = s.counts(t)
				b.start(t, "exec probe hold 32")
				duration = timed(func() { b.snapshot(t) })
				interrupted = false
			}
			img := s.newImage(t, b.plan)
			if err := b.tryHold(t); err != nil {
				// A thread that the helper controlled may crash only when it runs again.
				if !interrupted || !b.ended() {
					t.Fatalf("moment %d: %v", i, err)
				}
				remove()
				i--
				continue
			}
			stop := killChildren(duration * time.Duration(i) / time.Duration(n))
			err := cp.Dump(deadline(t, time.Minute), b.plan, b.inst, img.dir)
			if stop() > 0 && err != nil {
				met++
				interrupted = true
			}
			stands(t, file, countIn(file))
			if b.isWell(t, file) {
				continue
			}
			if err == nil {
				if !interrupted {
					t.Fatalf("moment %d: Dump succeeded, but the jail is damaged", i)
				}
				i-- // an earlier Dump did the damage
			}
			remove()
		}
		t.Logf("a helper was killed in %d of %d dumps, which damaged %d jails", met, n, harmed)
		if met == 0 || Thorough && harmed > n/3 { // a short run is no basis for a ratio
			t.Errorf("a helper was killed %d times, and the jail was damaged %d times", met, harmed)
		}
	})
	s.clause(t, "in-Restore", func(t *testing.T) {
		b := s.newBox(t)
		b.start(t, "exec probe hold 32")
		b.start(t, "exec probe fork 6")
		img := b.snapshot(t)
		b.kill(t)
		duration := timed(func() { s.restore(t, img).kill(t) })
		met := 0
		for i := range n {
			p := img.newPlan(t, s)
			stop := killChildren(duration * time.Duration(i) / time.Duration(n))
			inst, err := cp.Restore(deadline(t, time.Minute), p, img.dir)
			if stop() > 0 && err != nil {
				met++
			}
			if err != nil {
				mustNotLeak(t, p)
				continue
			}
			(&box{suite: s, plan: p, inst: inst}).kill(t)
			inst.Close()
		}
		t.Logf("%d of %d restores were killed", met, n)
		if met == 0 {
			t.Error("no helper was killed")
		}
	})
}

// processesDie kills a process of the jail, as the OOM killer does, at any moment of a Dump.
// Dump must return. It cannot guarantee that the jail survives: CRIU may give up while init runs
// its parasite code.
func (s *suite) processesDie(t *testing.T) {
	cp := s.checkpointer(t)
	var b *box
	var file string
	var duration time.Duration
	n, failed, harmed := moments(24), 0, 0
	interrupted := false // a Dump of this jail
	remove := func() {
		harmed++
		b.remove(t)
		b = nil
	}
	// A thread that CRIU left in an intermediate state may crash only when it runs again.
	late := func(moment int, err error) {
		if !interrupted || !b.ended() {
			t.Fatalf("moment %d: %v", moment, err)
		}
		remove()
	}
	for i := 0; i < n; i++ {
		if b == nil {
			b, file = s.counts(t)
			b.start(t, "exec probe hold 32")
			duration = timed(func() { b.snapshot(t) })
			interrupted = false
		} else if _, err := b.tryStart(t, "exec probe hold 32"); err != nil {
			late(i, err)
			i--
			continue
		}
		var pid int
		eventually(t, "the process exists", func() bool { pid = b.hostPID("hold", "32"); return pid != 0 })
		img := s.newImage(t, b.plan)
		if err := b.tryHold(t); err != nil {
			late(i, err)
			i--
			continue
		}
		kill := time.AfterFunc(duration*time.Duration(i)/time.Duration(n), func() { unix.Kill(pid, unix.SIGKILL) })
		err := cp.Dump(deadline(t, time.Minute), b.plan, b.inst, img.dir)
		kill.Stop()
		unix.Kill(pid, unix.SIGKILL)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("moment %d: Dump does not end: %v", i, err)
		}
		if err != nil {
			failed++
			interrupted = true
		}
		stands(t, file, countIn(file))
		if b.goesOn(t, file) {
			continue
		}
		if err == nil {
			if !interrupted {
				t.Fatalf("moment %d: Dump succeeded, but the jail is damaged", i)
			}
			i-- // an earlier Dump did the damage
		}
		remove()
	}
	t.Logf("%d of %d dumps failed, which damaged %d jails", failed, n, harmed)
	if b == nil {
		return
	}
	s.snapshotAndCopy(t, b)
	switch {
	case b.isActive(t, file):
	case interrupted && b.crashed(t):
		t.Log("the last jail was damaged as well")
	default:
		t.Errorf("the counter stands still after a snapshot; an earlier Dump failed: %v\n%s", interrupted, b.threads())
	}
	b.kill(t)
}

// crashed reports whether a program of the jail has ended because of a fault.
func (b *box) crashed(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	execs, err := b.ctl.Execs(ctx)
	return err != nil || slices.ContainsFunc(execs, func(x protocol.ExecStatus) bool {
		return x.Ended != nil && (x.Code == 2 || x.Signal != "" && x.Signal != "KILL") // Go programs exit with 2 after a fault
	})
}

// threads describes what the threads of the jail do.
func (b *box) threads() string {
	var text strings.Builder
	groups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, name := range groups {
		group, _ := os.ReadFile(name)
		if !strings.Contains(string(group), string(b.plan.ID)) {
			continue
		}
		dir := filepath.Dir(name)
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		fmt.Fprintf(&text, "%s %q in %s\n", dir, line, strings.ReplaceAll(strings.TrimSpace(string(group)), "\n", " "))
		threads, _ := filepath.Glob(filepath.Join(dir, "task/*"))
		for _, th := range threads {
			for _, what := range []string{"stat", "wchan", "syscall"} {
				value, _ := os.ReadFile(filepath.Join(th, what))
				fmt.Fprintf(&text, "  %s: %.200s", what, strings.TrimSpace(string(value)))
			}
			text.WriteString("\n")
		}
	}
	return text.String()
}

// remove removes a jail with its layer, and checks for leftovers.
func (b *box) remove(t *testing.T) {
	t.Helper()
	b.kill(t)
	if err := b.suite.checkpointer(t).CleanAndRemoveLayer(t.Context(), b.plan); err != nil {
		t.Fatalf("Shed: %v", err)
	}
	mustNotLeak(t, b.plan)
}

// hostPID returns the host PID of the jail's process that was started with these arguments, or
// 0.
func (b *box) hostPID(args ...string) int {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		line, _ := os.ReadFile(name)
		_, after, _ := strings.Cut(string(line), "\x00")
		if after != strings.Join(args, "\x00")+"\x00" {
			continue
		}
		groups, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cgroup"))
		if strings.Contains(string(groups), string(b.plan.ID)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return pid
		}
	}
	return 0
}

// ended reports whether init ends within 20 seconds.
func (b *box) ended() bool {
	select {
	case <-b.inst.Done():
		return true
	case <-time.After(20 * time.Second):
		return false
	}
}

// isWell thaws a jail and reports whether all its processes continue.
func (b *box) isWell(t *testing.T, file string) bool {
	t.Helper()
	if !b.goesOn(t, file) {
		return false
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	execs, err := b.ctl.Execs(ctx)
	for _, x := range execs {
		if x.Ended != nil && (x.Signal != "" || x.Code != 0) { // Go programs exit with 2 after a fault
			return false
		}
	}
	return err == nil
}

// goesOn thaws a jail and reports whether its counter continues and init responds.
func (b *box) goesOn(t *testing.T, file string) bool {
	t.Helper()
	b.letGo(t)
	return b.isActive(t, file)
}

// isActive reports whether the counter of a thawed jail increases and init responds.
func (b *box) isActive(t *testing.T, file string) bool {
	t.Helper()
	at := countIn(file)
	for end := time.Now().Add(20 * time.Second); countIn(file) == at; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := b.ctl.Execs(ctx)
	return err == nil
}

func timed(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// killChildren kills, after a delay, all children of this process that have been started since,
// and their descendants. It returns their number.
func killChildren(after time.Duration) (stop func() int) {
	old := map[int]bool{}
	for _, pid := range ownChildren() {
		old[pid] = true
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	n := 0
	wg.Go(func() {
		select {
		case <-time.After(after + time.Duration(rand.Int64N(int64(3*time.Millisecond)))):
		case <-ctx.Done():
			return
		}
		for ctx.Err() == nil && n == 0 { // a child may just be starting
			for _, pid := range ownChildren() {
				if !old[pid] && syscall.Kill(pid, syscall.SIGKILL) == nil {
					n++
				}
			}
			time.Sleep(200 * time.Microsecond)
		}
	})
	return func() int { cancel(); wg.Wait(); return n }
}

// ownChildren returns the children of all threads of this process.
func ownChildren() []int {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	var pids []int
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for field := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// fullOfProcesses dumps a jail at its limit of processes.
func (s *suite) fullOfProcesses(t *testing.T) {
	s.lacks(t, "pids")
	const most = 40
	b := s.newBox(t, func(p *jail.Plan) { p.Limits.MaxPIDs = most })
	b.start(t, "exec probe fork 200")
	full := func(b *box) bool {
		st, err := b.inst.Stats(t.Context())
		return err == nil && st.PIDs >= most
	}
	eventually(t, "the jail is full", func() bool { return full(b) })
	img := b.snapshot(t)
	copied := s.restore(t, img)
	for _, b := range []*box{b, copied} {
		if n := len(processes(func(dir string, status []byte) bool { return isProcessOf(dir, status, b.plan) })); n > most+jail.InitThreads {
			t.Errorf("%d processes in a jail of %d", n, most)
		}
		b.kill(t)
	}
	again := s.restore(t, img)
	if !full(again) {
		t.Error("a copy of a full jail is not full")
	}
	again.kill(t)
}

// fullOfMemory dumps a jail with almost no free memory.
func (s *suite) fullOfMemory(t *testing.T) {
	s.lacks(t, "memory")
	b := s.newBox(t, func(p *jail.Plan) { p.Limits.MemoryMB = 128 })
	b.sh(t, "head -c 32M /dev/zero > /dev/shm/file")
	x := b.start(t, "probe hold 72 > /tmp/held")
	eventually(t, "the memory is allocated", func() bool { return b.try(t, "test -s /tmp/held").status.Code == 0 })
	st, err := b.inst.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB of 128 are used", st.MemoryBytes>>20)
	img := b.snapshot(t)
	for _, b := range []*box{s.restore(t, img), b} {
		st, err := b.inst.Stats(t.Context())
		if err != nil || st.OOMKills > 0 {
			t.Errorf("the OOM killer killed %d processes, %v", st.OOMKills, err)
		}
		if got := b.sh(t, "wc -c < /dev/shm/file"); got != fmt.Sprint(32<<20) {
			t.Errorf("a file in memory has %s bytes", got)
		}
		if st, err := b.ctl.ExecStatus(t.Context(), x); err != nil || st.Ended != nil {
			t.Errorf("the process that used the memory: %+v, %v", st, err)
		}
		if _, ends := s.opts.Differs["Limits/memory-bomb"]; ends { // the jail, when it reaches the limit
			b.kill(t)
			continue
		}
		if r := b.try(t, "probe eat 128"); r.status.Code == 0 {
			t.Errorf("the limit is no longer enforced: %v", r)
		}
		b.kill(t)
	}
}
