//go:build bench

package test_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"

	"golang.org/x/sys/unix"
)

// The programs whose state is saved in snapshots.
const (
	idleShell = `while :; do sleep 1; done`
	heap      = `exec python3 -c '
import time
b = bytearray(200 << 20)
for i in range(0, len(b), 4096): b[i] = i // 4096 % 251
open("/tmp/up", "w").write("1")
while True: time.sleep(0.001)'`

	// Gaps logs each interval during which it did not run.
	gaps = `exec python3 -c '
import time
last = time.time_ns()
f = open("/tmp/gaps", "a")
open("/tmp/up", "w").write("1")
while True:
    time.sleep(0.0001)
    now = time.time_ns()
    if now - last > 4_000_000:
        f.write(str(now) + "\n"); f.flush()
    last = now'`
)

func TestBenchSnapshot(t *testing.T) {
	t.Run("files", benchFiles)
	t.Run("pause", benchPause)
	t.Run("branch", benchBranch)
	t.Run("memory", benchMemory)
	t.Run("peers", benchPeers)
}

// openSnapshots starts a daemon for the snapshot benchmarks.
func openSnapshots(t *testing.T) *daemonHarness {
	return open(t, fmt.Sprintf("pool: {size: 0}\nsnapshots: {memory_mb: 2048, copies_mb: 4096}\nrootfs: {allow: [%s]}\n", benchRootfs(t).Dir))
}

// bench returns a jail that runs line.
func (h *daemonHarness) bench(line string, up bool) wire.Jail {
	h.Helper()
	j := h.running(wire.CreateJail{Rootfs: benchRootfs(h.T), Limits: wire.Limits{MemoryMB: 1024, DiskMB: 2048}})
	if _, err := h.Exec(h.Context(), j.ID, wire.ExecRequest{Argv: []string{"sh", "-c", line}, Detach: true}); err != nil {
		h.Fatal(err)
	}
	for n := 0; up && h.sh(j.ID, "cat /tmp/up 2>/dev/null || true") == ""; n++ {
		if n > 500 {
			h.Fatal("the program does not start")
		}
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond)
	return j
}

func (h *daemonHarness) snap(j wire.Jail, layering string) wire.Snapshot {
	h.Helper()
	s, err := h.TakeSnapshot(h.Context(), j.ID, wire.TakeSnapshot{Layering: layering})
	if err != nil {
		h.Fatal(err)
	}
	return s
}

// times is a list of durations with a formatter.
type times []time.Duration

func (ts times) String() string {
	s := slices.Sorted(slices.Values(ts))
	return fmt.Sprintf("median %7.2f ms  min %7.2f  max %7.2f  (%d)", ms(s[len(s)/2]), ms(s[0]), ms(s[len(s)-1]), len(s))
}

func benchFiles(t *testing.T) {
	h := openSnapshots(t)
	for _, size := range []struct{ name, make string }{
		{"10 files", `for i in 1 2 3 4 5 6 7 8 9 10; do echo $i > /root/$i; done`},
		{"1 GB in 2000 files", `mkdir /root/d; head -c 524288 /dev/urandom > /root/x; for i in $(seq 2000); do cp /root/x /root/d/$i; done`},
	} {
		j := h.bench(idleShell, false)
		h.sh(j.ID, size.make)
		if _, err := h.StopJail(t.Context(), j.ID, 0); err != nil {
			t.Fatal(err)
		}
		upper := filepath.Join(h.data, "jails", string(j.ID), "rootfs", "upper")
		var snaps, branches times
		for n := range 12 {
			began := time.Now()
			s := h.snap(j, "")
			if n > 1 {
				snaps = append(snaps, time.Since(began))
			}
			began = time.Now()
			made, err := h.BranchSnapshot(t.Context(), s.ID, wire.Branch{Count: 1})
			if err != nil {
				t.Fatal(err)
			}
			if n > 1 {
				branches = append(branches, time.Since(began))
			}
			h.DeleteJail(t.Context(), made.Jails[0].ID)
		}
		var plain times
		for range 10 {
			began := time.Now()
			k, err := h.CreateJail(t.Context(), wire.CreateJail{Rootfs: benchRootfs(t), Limits: wire.Limits{DiskMB: 2048}})
			if err != nil {
				t.Fatal(err)
			}
			plain = append(plain, time.Since(began))
			h.DeleteJail(t.Context(), k.ID)
		}
		fmt.Printf("files alone, %s (jail stopped)\n  %-40s %v\n  %-40s %v\n  %-40s %v\n", size.name,
			"snapshot, over REST", snaps, "branch of it, created", branches, "(a fresh jail, created)", plain)
		_ = upper
	}
	dir := t.TempDir()
	if err := command("sh", "-c", fmt.Sprintf("mkdir %s/d; head -c 524288 /dev/urandom > %s/x; for i in $(seq 2000); do cp %s/x %s/d/$i; done", dir, dir, dir, dir))(); err != nil {
		t.Fatal(err)
	}
	var copies times
	for range 3 {
		began := time.Now()
		if err := command("cp", "-a", dir+"/d", dir+"/copy")(); err != nil {
			t.Fatal(err)
		}
		copies = append(copies, time.Since(began))
		os.RemoveAll(dir + "/copy")
	}
	fmt.Printf("  %-40s %v\n", "cp -a of 1 GB in 2000 files", copies)
}

func benchPause(t *testing.T) {
	for _, load := range []struct {
		name, line string
		up         bool
	}{{"idle shell", idleShell, false}, {"python with 200 MB", heap, true}} {
		h := openSnapshots(t)
		j := h.bench(load.line, load.up)
		for _, how := range []string{"copied", "stacked"} {
			var paused, whole times
			for n := range 12 {
				began := time.Now()
				s := h.snap(j, how)
				if n > 1 {
					paused = append(paused, time.Duration(s.PausedUS)*time.Microsecond)
					whole = append(whole, time.Since(began))
				}
				h.DeleteSnapshot(t.Context(), s.ID)
				time.Sleep(50 * time.Millisecond)
			}
			fmt.Printf("snapshot of a running jail, %s, layer %s\n  %-40s %v\n  %-40s %v\n", load.name, how, "the jail waits", paused, "until it is on the disk, over REST", whole)
		}
	}
}

func benchBranch(t *testing.T) {
	lazy, _ := os.ReadFile("/proc/sys/vm/unprivileged_userfaultfd")
	fmt.Printf("vm.unprivileged_userfaultfd is %s\n", bytes.TrimSpace(lazy))
	for _, load := range []struct {
		name, line string
		up         bool
	}{{"idle shell", idleShell, false}, {"python with 200 MB", heap, true}} {
		h := openSnapshots(t)
		j := h.bench(load.line, load.up)
		s := h.snap(j, "")
		h.branchTimes(s.ID, load.name)
		h.rewindTimes(j, s.ID, load.name)
	}
	h := openSnapshots(t)
	j := h.bench(gaps, true)
	s := h.snap(j, "")
	for _, warm := range []bool{false, true} {
		var first times
		for n := range 12 {
			if warm {
				if _, err := h.WarmSnapshot(t.Context(), s.ID, 1); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			made, err := h.BranchSnapshot(t.Context(), s.ID, wire.Branch{Count: 1})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
			var at int64
			lines := strings.Fields(h.sh(made.Jails[0].ID, "cat /tmp/gaps"))
			for _, l := range lines {
				var ns int64
				fmt.Sscan(l, &ns)
				if ns > began.UnixNano() {
					at = ns
					break
				}
			}
			if at > 0 && n > 1 {
				first = append(first, time.Duration(at-began.UnixNano()))
			}
			h.DeleteJail(t.Context(), made.Jails[0].ID)
		}
		fmt.Printf("branch: from the request to the first instruction, copies wait: %v\n  %-40s %v\n", warm, "python that looks at the clock", first)
	}
}

func (h *daemonHarness) branchTimes(s id.Snapshot, name string) {
	branch := func(count int) (time.Duration, []wire.Jail) {
		began := time.Now()
		made, err := h.BranchSnapshot(h.Context(), s, wire.Branch{Count: count})
		if err != nil || len(made.Errors) > 0 {
			h.Fatal(err, made.Errors)
		}
		return time.Since(began), made.Jails
	}
	var cold, hot, ten times
	for n := range 14 {
		took, made := branch(1)
		if n > 1 {
			cold = append(cold, took)
		}
		h.DeleteJail(h.Context(), made[0].ID)
	}
	for range 12 {
		if _, err := h.WarmSnapshot(h.Context(), s, 1); err != nil {
			h.Fatal(err)
		}
		took, made := branch(1)
		hot = append(hot, took)
		h.DeleteJail(h.Context(), made[0].ID)
	}
	for range 3 {
		took, made := branch(10)
		ten = append(ten, took)
		for _, k := range made {
			h.DeleteJail(h.Context(), k.ID)
		}
	}
	fmt.Printf("branch, %s, over REST\n  %-40s %v\n  %-40s %v\n  %-40s %v\n", name, "cold", cold, "of a copy that waits", hot, "ten at once, cold", ten)
}

func (h *daemonHarness) rewindTimes(j wire.Jail, s id.Snapshot, name string) {
	var cold, hot times
	for n := range 12 {
		began := time.Now()
		if _, err := h.RewindJail(h.Context(), j.ID, s); err != nil {
			h.Fatal(err)
		}
		if n > 1 {
			cold = append(cold, time.Since(began))
		}
		time.Sleep(100 * time.Millisecond)
	}
	for range 10 {
		if _, err := h.WarmSnapshot(h.Context(), s, 1); err != nil {
			h.Fatal(err)
		}
		began := time.Now()
		if _, err := h.RewindJail(h.Context(), j.ID, s); err != nil {
			h.Fatal(err)
		}
		hot = append(hot, time.Since(began))
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Printf("rewind in place, %s, over REST, until the old processes are gone\n  %-40s %v\n  %-40s %v\n", name, "cold", cold, "to a copy that waits", hot)
}

// benchMemory measures the total memory of fifty branches of a large jail.
func benchMemory(t *testing.T) {
	h := openSnapshots(t)
	j := h.bench(heap, true)
	whole := h.memory(j)
	s := h.snap(j, "")
	one, err := h.BranchSnapshot(t.Context(), s.ID, wire.Branch{Count: 1})
	if err != nil || len(one.Errors) > 0 {
		t.Fatal(err, one.Errors)
	}
	began := time.Now()
	made, err := h.BranchSnapshot(t.Context(), s.ID, wire.Branch{Count: 50})
	if err != nil || len(made.Errors) > 0 {
		t.Fatal(err, made.Errors)
	}
	took := time.Since(began)
	total := func() (all, server int64) {
		for _, k := range made.Jails {
			all += h.memory(k)
		}
		return all, h.serversMemory()
	}
	atOnce, server := total()
	time.Sleep(10 * time.Second)
	later, serverLater := total()
	images := h.imagesMemory(s.ID)
	fmt.Printf("fifty branches of a python with 200 MB, which itself has %d MB, made in %v\n"+
		"  of their own %d MB, after ten seconds %d MB; who gives them their memory has %d MB, then %d MB; the images, which all share, %d MB; together %.2f times the one\n",
		whole>>20, took.Round(time.Millisecond), atOnce>>20, later>>20, server>>20, serverLater>>20, images>>20, float64(later+serverLater+images)/float64(whole))
	for _, k := range append(made.Jails, one.Jails...) {
		h.DeleteJail(t.Context(), k.ID)
	}
}

// memory returns the memory of a jail, including kernel memory charged to it.
func (h *daemonHarness) memory(j wire.Jail) int64 {
	h.Helper()
	now, err := h.Jail(h.Context(), j.ID)
	if err != nil || now.Usage == nil {
		h.Fatal(err)
	}
	return now.Usage.MemoryBytes
}

// serversMemory returns the private memory of the memory servers.
func (h *daemonHarness) serversMemory() (total int64) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		b, _ := os.ReadFile(name)
		if !bytes.Contains(b, []byte("\x00pages\x00"+h.data)) {
			continue
		}
		sums, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "smaps_rollup"))
		for line := range strings.Lines(string(sums)) {
			var kb int64
			if n, _ := fmt.Sscanf(line, "Private_Dirty: %d kB", &kb); n == 1 {
				total += kb << 10
			}
		}
	}
	return total
}

// imagesMemory returns the memory used by the images of a snapshot.
func (h *daemonHarness) imagesMemory(s id.Snapshot) (total int64) {
	names, _ := filepath.Glob(filepath.Join(h.data, "run", "hot", string(s), "*"))
	for _, name := range names {
		if fi, err := os.Stat(name); err == nil {
			total += fi.Size()
		}
	}
	return total
}

// benchPeers measures the same operations with the runtimes' own commands.
func benchPeers(t *testing.T) {
	root := benchRootfs(t).Dir
	tools := "/var/lib/glasshouse/tools/bin"
	path := "PATH=" + tools + ":" + os.Getenv("PATH")
	run := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), path)
		if filepath.Base(name) == name {
			if p := filepath.Join(tools, name); exists(p) {
				cmd.Path, cmd.Err = p, nil
			}
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %.300s", err, out)
		}
		return nil
	}
	for _, load := range []struct{ name, line string }{{"idle shell", idleShell}, {"python with 200 MB", strings.ReplaceAll(heap, "/tmp/up", "/dev/null")}} {
		for _, peer := range []struct {
			name  string
			flags []string
		}{{"runc", nil}, {"runsc", []string{"--platform=systrap", "--network=none"}}} {
			state, images := t.TempDir(), t.TempDir()
			t.Cleanup(func() { unix.Unmount(filepath.Join(state, "null-netns"), unix.MNT_DETACH) }) // left behind by runsc
			b := runtimeBundle(t, root, false, "sh", "-c", load.line)
			base := append([]string{"--root", state}, peer.flags...)
			do := func(args ...string) error {
				return run("sh", "-c", fmt.Sprintf("%s %s </dev/null >/dev/null 2>&1", peer.name, strings.Join(append(slices.Clone(base), args...), " ")))
			}
			if err := do("run", "--detach", "--bundle", b, "bench"); err != nil {
				fmt.Printf("%s, %s: did not run: %v\n", peer.name, load.name, err)
				continue
			}
			time.Sleep(1500 * time.Millisecond)
			var dump, back times
			var err error
			for n := 0; n < 7 && err == nil; n++ {
				image := filepath.Join(images, fmt.Sprint(n))
				os.Mkdir(image, 0o755)
				began := time.Now()
				err = do("checkpoint", "--leave-running", "--image-path", image, "bench")
				if err != nil {
					break
				}
				dump = append(dump, time.Since(began))
				began = time.Now()
				err = do("restore", "--detach", "--bundle", b, "--image-path", image, fmt.Sprintf("r%d", n))
				if err != nil {
					break
				}
				back = append(back, time.Since(began))
				do("delete", "--force", fmt.Sprintf("r%d", n))
				os.RemoveAll(image)
			}
			do("delete", "--force", "bench")
			if err != nil {
				fmt.Printf("%s, %s: %v\n", peer.name, load.name, err)
				continue
			}
			fmt.Printf("%s, %s\n  %-40s %v\n  %-40s %v\n", peer.name, load.name, "checkpoint --leave-running", dump, "restore --detach", back)
		}
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
