//go:build bench

package test_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// best holds the durations of the runs of one entrant.
type best struct {
	name  string
	took  []time.Duration
	calls int    // calls of the load, to compute the cost of one
	note  string // such as the number of lost events
	err   error
}

func (b *best) min() time.Duration {
	if len(b.took) == 0 {
		return 0
	}
	return slices.Min(b.took)
}

// TestBenchObserve compares loads in an unobserved jail with the same loads in a fully observed
// one, and with other tracers on the host. Attached BPF programs slow the system calls of all
// processes slightly, so the unobserved jails run while none are attached.
func TestBenchObserve(t *testing.T) {
	fmt.Printf("\nObserving: the shortest of some rounds, taking turns\n")
	t.Run("storm", func(t *testing.T) {
		const dd = "dd if=/dev/zero of=/dev/null bs=1 count=2000000 status=none"
		compare(t, "a storm of calls: "+dd, 5, 2*2000000, dd)
		// The other tracers take minutes for this many calls.
		const less = "dd if=/dev/zero of=/dev/null bs=1 count=100000 status=none"
		compare(t, "a smaller storm, with other tracers on the host: "+less, 5, 2*100000, less)
	})
	t.Run("python", func(t *testing.T) {
		compare(t, "python3 -m unittest, 200 tests and 20 processes", 5, 0, pythonTests)
	})
	t.Run("build", func(t *testing.T) {
		if _, err := os.Stat("/usr/local/go/bin/go"); err != nil {
			t.Skip(err)
		}
		compare(t, "go build of net/http and all below it, from nothing", 3, 0,
			"export PATH=$PATH:/usr/local/go/bin HOME=/tmp GOCACHE=/tmp/cache GOFLAGS=-mod=mod CGO_ENABLED=0; rm -rf /tmp/cache; cd /usr/local/go/src && go build -o /dev/null net/http")
	})
	t.Run("sustained", sustained)
	t.Run("idle", idle)
	t.Run("readers", readers)
}

const pythonTests = `mkdir -p /tmp/t && cd /tmp/t && cat > test_all.py <<'END'
import unittest, json, re, os, tempfile, sqlite3, hashlib, subprocess, sys
class T(unittest.TestCase): pass
def make(i):
    def f(self):
        with tempfile.NamedTemporaryFile() as tmp:
            tmp.write(json.dumps({"n": list(range(200))}).encode()); tmp.flush()
            self.assertEqual(len(json.load(open(tmp.name))["n"]), 200)
        db = sqlite3.connect(":memory:"); db.execute("create table t(a)"); db.executemany("insert into t values(?)", [(n,) for n in range(500)])
        self.assertEqual(db.execute("select count(*) from t").fetchone()[0], 500)
        self.assertTrue(re.match(r"(\w+)+", "a" * 50)); hashlib.sha256(b"x" * 100000).hexdigest()
        if i % 10 == 0: subprocess.check_call([sys.executable, "-c", "import json, http.client, asyncio"])
    return f
for i in range(200): setattr(T, f"test_{i}", make(i))
END
python3 -m unittest -q test_all 2>/dev/null`

// compare runs a shell line under each available tracer.
func compare(t *testing.T, title string, rounds, calls int, line string) {
	req := wire.CreateJail{Start: true, Limits: wire.Limits{MemoryMB: 4096, CPUShares: 1024, DiskMB: 4096, MaxPIDs: 1024}, Rootfs: benchRootfs(t)}
	if strings.Contains(line, "/usr/local/go") {
		req.Mounts = []wire.Mount{{Source: "/usr/local/go", Target: "/usr/local/go"}}
	}
	config := "pool: {size: 0}\nmounts: {allow: [/usr/local/go]}\nrootfs: {allow: [/]}\n"
	blind, seeing := open(t, config+"observe: {sources: []}\n"), open(t, config)
	in := func(h *daemonHarness, after func(j wire.Jail, b *best)) func(b *best) error {
		return func(b *best) error {
			j, err := h.CreateJail(h.Context(), req)
			if err != nil {
				return err
			}
			defer h.DeleteJail(h.Context(), j.ID)
			begun := time.Now()
			x, err := h.Exec(h.Context(), j.ID, wire.ExecRequest{Cmd: line})
			b.took = append(b.took, time.Since(begun))
			if err == nil && (x.ExitCode == nil || *x.ExitCode != 0) {
				err = fmt.Errorf("command failed: %s", x.Stderr)
			}
			if after != nil && err == nil {
				after(j, b)
			}
			return err
		}
	}
	host := func(wrap ...string) func(b *best) error {
		return func(b *best) error {
			cmd := exec.Command(wrap[0], append(wrap[1:], "sh", "-c", line)...)
			begun := time.Now()
			out, err := cmd.CombinedOutput()
			b.took = append(b.took, time.Since(begun))
			if err != nil {
				return fmt.Errorf("%w: %.200s", err, out)
			}
			return nil
		}
	}
	out := filepath.Join(t.TempDir(), "trace")
	lines := func(mark string) func(b *best) {
		return func(b *best) {
			f, err := os.Open(out)
			if err != nil {
				return
			}
			defer f.Close()
			n := 0
			for sc := bufio.NewScanner(f); sc.Scan(); {
				if strings.Contains(sc.Text(), mark) {
					n++
				}
			}
			if calls > 0 {
				b.note = fmt.Sprintf("%d records, %.0f %% lost", n, 100*max(0, 1-float64(n)/float64(calls)))
			}
		}
	}
	type entrant struct {
		best
		run    func(*best) error
		base   int
		rounds int
	}
	list := []*entrant{
		{best: best{name: "in a jail, nobody watching"}, run: in(blind, nil), rounds: rounds},
		{best: best{name: "in a jail, watched whole, to JSONL"}, run: in(seeing, func(j wire.Jail, b *best) {
			got, err := seeing.Jail(seeing.Context(), j.ID)
			if err == nil && got.Observation != nil {
				b.note = fmt.Sprintf("%d records, %d lost, held %d times", got.Observation.Log.Events, lostOf(got), got.Observation.Sources["kernel"].Throttled)
			}
		}), rounds: rounds},
		{best: best{name: "on the host, untraced"}, run: host("env"), rounds: rounds, base: 2},
	}
	if strings.Contains(line, "count=100000 ") {
		peer := func(name string, after func(*best), wrap ...string) {
			run := host(wrap...)
			list = append(list, &entrant{best: best{name: name}, rounds: 1, base: 2, run: func(b *best) error {
				os.Remove(out)
				if _, err := exec.LookPath(wrap[0]); err != nil {
					return err
				}
				err := run(b)
				if err == nil && after != nil {
					after(b)
				}
				return err
			}})
		}
		peer("on the host, perf trace", lines("("), "perf", "trace", "-o", out, "--")
		peer("on the host, strace -f", lines("("), "strace", "-f", "-o", out)
		list = append(list, &entrant{best: best{name: "on the host, bpftrace printing each"}, rounds: 1, base: 2, run: func(b *best) error {
			if _, err := exec.LookPath("bpftrace"); err != nil {
				return err
			}
			os.Remove(out)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "bpftrace", "-o", out, "-c", "/bin/"+line, "-e", `tracepoint:raw_syscalls:sys_exit /comm == "dd"/ { printf("%d %d %d %d\n", tid, args->id, args->ret, nsecs); }`)
			begun := time.Now()
			msg, err := cmd.CombinedOutput()
			b.took = append(b.took, time.Since(begun))
			if err != nil {
				return fmt.Errorf("%w: %.200s", err, msg)
			}
			lines(" ")(b)
			return nil
		}})
	}
	for round := range rounds {
		for _, e := range list {
			if e.err == nil && round < e.rounds {
				e.err = e.run(&e.best)
			}
		}
	}
	fmt.Printf("\n%s\n", title)
	for _, e := range list {
		if e.err != nil {
			fmt.Printf("  %-40s did not run: %.150s\n", e.name, e.err)
			continue
		}
		base := list[e.base].min()
		each := ""
		if calls > 0 && base > 0 {
			each = fmt.Sprintf("%+6.0f ns a call", float64(e.min()-base)/float64(calls))
		}
		fmt.Printf("  %-40s %8.0f ms %6.2f×  %s  %s\n", e.name, ms(e.min()), float64(e.min())/float64(base), each, e.note)
	}
}

func lostOf(j wire.Jail) (n int64) {
	for _, lost := range j.Observation.Log.Lost {
		n += lost
	}
	for _, s := range j.Observation.Sources {
		n += int64(s.Lost)
	}
	return n
}

// benchRootfs is a Debian tree with Python, created once.
var benchTree struct {
	once sync.Once
	dir  string
	err  error
}

func benchRootfs(t *testing.T) wire.Rootfs {
	t.Helper()
	benchTree.once.Do(func() {
		dir := filepath.Join(os.TempDir(), "glasshouse-bench-rootfs")
		if _, err := os.Stat(filepath.Join(dir, "usr/bin/python3")); err == nil {
			benchTree.dir = dir
			return
		}
		out, err := exec.Command("mmdebstrap", "--variant=minbase", "--include=python3,gcc", "bookworm", dir).CombinedOutput()
		if err != nil {
			benchTree.err = fmt.Errorf("%w: %.500s", err, out)
		}
		benchTree.dir = dir
	})
	if benchTree.err != nil {
		t.Fatal(benchTree.err)
	}
	return wire.Rootfs{Dir: benchTree.dir}
}

// In sustained, a jail saturates both processors with system calls.
func sustained(t *testing.T) {
	h := open(t, "pool: {size: 0}\nevents: {segment_mb: 16}\n")
	j := h.running(wire.CreateJail{Limits: wire.Limits{CPUShares: 1024}})
	const each, threads = 3000000, 2
	begun := time.Now()
	h.run(j.ID, "probe", "storm", strconv.Itoa(each), strconv.Itoa(threads))
	took := time.Since(begun)
	got, err := h.Jail(h.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(15 * time.Second) // until closed files are compressed
	text, packed, n := sizes(filepath.Join(h.data, "jails", string(j.ID), "events"))
	fmt.Printf("\n%d calls of %d threads on all processors: %.0f events/s to JSONL, %d lost, held %d times\n", each*threads, threads, float64(each*threads)/took.Seconds(), lostOf(got), got.Observation.Sources["kernel"].Throttled)
	after, err := h.Jail(h.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("  on disk after compression: %.1f bytes an event (%d closed files %.1f MB, open ones %.1f MB, %d events)\n",
		float64(text+packed)/float64(after.Observation.Log.Events), n, float64(packed)/1e6, float64(text)/1e6, after.Observation.Log.Events)
}

func sizes(dir string) (text, packed int64, n int) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			continue
		}
		if strings.HasSuffix(e.Name(), ".jsonl") {
			text += fi.Size()
		} else {
			packed += fi.Size()
			if strings.HasSuffix(e.Name(), ".zst") {
				n++
			}
		}
	}
	return text, packed, n
}

// cpu returns the processor time used by the daemon.
func (h *daemonHarness) cpu() time.Duration {
	var total time.Duration
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", h.cmd.Process.Pid))
	for _, task := range tasks {
		data, _ := os.ReadFile(task)
		if f := strings.Fields(string(data)); len(f) > 0 {
			ns, _ := strconv.ParseInt(f[0], 10, 64)
			total += time.Duration(ns)
		}
	}
	return total
}

// idle observes 200 idle jails.
func idle(t *testing.T) {
	const n = 200
	h := open(t, "pool: {size: 0}\n")
	h.running(wire.CreateJail{})
	before := h.rss()
	for range n - 1 {
		h.running(wire.CreateJail{Limits: wire.Limits{MemoryMB: 64, DiskMB: 16}})
	}
	time.Sleep(10 * time.Second)
	after, cpu := h.rss(), h.cpu()
	const window = 30 * time.Second
	time.Sleep(window)
	used := h.cpu() - cpu
	fmt.Printf("\n%d idle jails: %.4f %% of a processor each, %.2f MB of the daemon's memory each (%.0f MB in all), and 3 MB of rings in the kernel\n",
		n, 100*float64(used)/float64(window)/n, float64(after-before)/(n-1)/1e6, float64(after)/1e6)
}

// In readers, a thousand clients follow one busy jail.
func readers(t *testing.T) {
	const n = 1000
	h := open(t, "pool: {size: 0}\n", "--listen", "127.0.0.1:0")
	j := h.running(wire.CreateJail{Limits: wire.Limits{CPUShares: 1024}})
	load := func() time.Duration {
		begun := time.Now()
		h.run(j.ID, "probe", "storm", "1500000", "1")
		return time.Since(begun)
	}
	var alone, watched []time.Duration
	for range 3 {
		alone = append(alone, load())
	}
	ctx, cancel := context.WithCancel(h.Context())
	var got atomic.Int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { follow(ctx, filepath.Join(h.data, "glasshouse.sock"), j.ID, &got) })
	}
	time.Sleep(3 * time.Second)
	rss := h.rss()
	for range 3 {
		watched = append(watched, load())
	}
	end := h.rss()
	cancel()
	wg.Wait()
	fmt.Printf("\n%d readers of one busy jail: its load took %.2f× (min of 3: %.0f ms alone, %.0f ms with them); memory %.0f MB with them at rest, %.0f MB after; %d MB delivered\n",
		n, float64(slices.Min(watched))/float64(slices.Min(alone)), ms(slices.Min(alone)), ms(slices.Min(watched)), float64(rss)/1e6, float64(end)/1e6, got.Load()>>20)
}

func follow(ctx context.Context, socket string, j id.Jail, got *atomic.Int64) {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://glasshouse/jails/"+string(j)+"/events?tail=1", nil)
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			fmt.Println(err)
		}
		return
	}
	defer resp.Body.Close()
	b := make([]byte, 4096)
	for {
		k, err := resp.Body.Read(b)
		got.Add(int64(k))
		if err == io.EOF || err != nil {
			return
		}
	}
}
