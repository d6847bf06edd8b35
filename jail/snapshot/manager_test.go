package snapshot_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/host/disk"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/oci"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/jail/snapshot"
)

// A harness manages jails and their snapshots like a daemon.
type harness struct {
	t       *testing.T
	dir     string
	root    string // root filesystem of the jails
	runtime string // OCI runtime; default: runc
	criu    string // path of CRIU; default: that of the host
	jails   *jail.Manager
	keeper  *snapshot.Manager
	records *records
	keep    *snapshots

	tune func(*jail.Config, *snapshot.Config) // called before Open; may be nil
	last func()                               // called after all were deleted; may be nil
}

// runtimePath returns the path of a runtime on this host, or its name.
func runtimePath(runtime string) string {
	if runtime != "runsc" {
		return runtime
	}
	for _, p := range []string{runtime, os.Getenv("GLASSHOUSE_RUNSC"), "/var/lib/glasshouse/tools/bin/runsc"} {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	return runtime
}

func criu() string {
	const private = "/var/lib/glasshouse/tools/bin/criu"
	if _, err := os.Stat(private); err == nil {
		return private
	}
	return "criu"
}

func newHarness(t *testing.T) *harness { return newHarnessFor(t, "") }

// newHarnessFor is like newHarness, but with another runtime.
func newHarnessFor(t *testing.T, runtime string) *harness {
	h := &harness{t: t, runtime: runtime}
	h.begin(func() {})
	return h
}

// begin creates the directories of the harness, calls first, and opens it.
func (h *harness) begin(first func()) {
	t := h.t
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("", "glasshouse-snap-")
	if err != nil {
		t.Fatal(err)
	}
	// On a memory file system outside of the root that jails may have.
	if err := unix.Mount("house", dir, "tmpfs", 0, "size=8g,mode=711"); err != nil {
		t.Fatal(err)
	}
	h.dir, h.root, h.runtime = dir, backendtest.Rootfs(t), cmp.Or(h.runtime, "runc")
	h.records, h.keep = &records{all: map[id.Jail]jail.Jail{}}, &snapshots{all: map[id.Snapshot]snapshot.Snapshot{}}
	for _, d := range []string{"run", "hot"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("hot", filepath.Join(dir, "hot"), "tmpfs", 0, "size=2g,mode=700"); err != nil {
		t.Fatal(err)
	}
	first()
	h.open()
	if err := h.backend().CanCheckpoint(t.Context()); err != nil {
		unix.Unmount(filepath.Join(dir, "hot"), 0)
		unix.Unmount(dir, 0)
		os.Remove(dir)
		t.Skip("snapshots: ", err)
	}
	t.Cleanup(h.end)
}

func (h *harness) backend() *oci.Backend {
	return oci.New(oci.Config{
		Runtime: h.runtime, Path: runtimePath(h.runtime), CRIU: cmp.Or(h.criu, criu()), CgroupPrefix: filepath.Base(h.dir),
		RunDir: filepath.Join(h.dir, "run"), Templates: filepath.Join(h.dir, "templates"), Base: filepath.Join(h.dir, "base"),
		NetnsDir: filepath.Join(h.dir, "netns"),
	})
}

// open starts like a daemon, which may find the jails of an earlier one.
func (h *harness) open() {
	h.t.Helper()
	jails := jail.Config{
		Dir: filepath.Join(h.dir, "jails"), Store: h.records, Rootfs: rootTree(h.root),
		Runtimes: []jail.Runtime{{Name: "oci", Runtime: h.runtime, Backend: h.backend()}},
		Init:     backendtest.Init(h.t), Boot: "boot", Backend: "oci", Runtime: h.runtime, FirstID: backendtest.FirstID(h.t),
	}
	keeper := snapshot.Config{
		Dir: filepath.Join(h.dir, "jails"), Pages: filepath.Join(h.dir, "pages"), Hot: filepath.Join(h.dir, "hot"), HotMB: 1024,
		Spares: snapshot.SpareConfig{MemoryMB: 1024},
		Store:  h.keep, Layers: map[string]snapshot.Layers{"oci": oci.Layers{Templates: filepath.Join(h.dir, "templates")}},
	}
	if h.tune != nil {
		h.tune(&jails, &keeper)
	}
	h.jails = jail.NewManager(jails)
	if err := h.jails.Open(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	keeper.Jails = h.jails
	h.keeper = snapshot.New(keeper)
	if err := h.keeper.Open(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// reopen stops and starts like a daemon.
func (h *harness) reopen() {
	h.t.Helper()
	if err := errors.Join(h.keeper.Close(), h.jails.Close()); err != nil {
		h.t.Fatal(err)
	}
	h.open()
}

func (h *harness) end() {
	ctx := context.Background()
	all, _ := h.jails.List(ctx, jail.ListOptions{})
	for _, j := range all {
		if err := h.jails.Delete(ctx, j.ID); err != nil {
			h.t.Errorf("delete %s: %v", j.ID, err)
		}
	}
	list, _ := h.keeper.List(ctx, snapshot.ListOptions{})
	copies, _ := h.keeper.List(ctx, snapshot.ListOptions{Copies: true})
	for _, s := range append(list, copies...) {
		if err := h.keeper.Delete(ctx, s.ID); err != nil {
			h.t.Errorf("delete %s: %v", s.ID, err)
		}
	}
	h.keeper.Close()
	h.jails.Close()
	if h.last != nil {
		h.last()
	}
	// A memory server has files there open, and exits half a minute after its last branch.
	err := unix.Unmount(filepath.Join(h.dir, "hot"), 0)
	for end := time.Now().Add(time.Minute); err == unix.EBUSY && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		err = unix.Unmount(filepath.Join(h.dir, "hot"), 0)
	}
	if err != nil {
		h.t.Errorf("unmount the memory images: %v", err)
	}
	h.checkNoLeftovers()
	if err := unix.Unmount(h.dir, unix.MNT_DETACH); err != nil {
		h.t.Error(err)
	}
	if err := os.RemoveAll(h.dir); err != nil {
		h.t.Error(err)
	}
}

// checkNoLeftovers reports files, cgroups, mounts and devices that remain after all deletions.
func (h *harness) checkNoLeftovers() {
	h.t.Helper()
	var files []string
	jails := filepath.Join(h.dir, "jails")
	err := filepath.WalkDir(jails, func(path string, d fs.DirEntry, err error) error {
		if path != jails {
			files = append(files, fmt.Sprint(path, " ", d, " ", err))
		}
		return nil
	})
	if len(files) > 0 || err != nil {
		h.t.Errorf("leftover files: %q, %v", files, err)
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if left, _ := filepath.Glob(filepath.Join(root, filepath.Base(h.dir), "*", "cgroup.procs")); len(left) > 0 {
			h.t.Errorf("leftover cgroups: %v", left)
		}
	}
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(h.dir))
	for _, d := range append(dirs, "/sys/fs/cgroup/"+filepath.Base(h.dir)) {
		os.Remove(d)
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), h.dir+"/") {
		h.t.Errorf("leftover mounts below %s", h.dir)
	}
	left, err := disk.Leftovers(h.dir)
	for end := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left, err = disk.Leftovers(h.dir) // the kernel detaches a device a moment after its last use
	}
	if len(left) > 0 || err != nil {
		h.t.Errorf("leftover loop devices: %v, %v", left, err)
	}
}

// rootTree is the path of a root file system with the programs of the tests.
type rootTree string

func (t rootTree) Resolve(context.Context, jail.Rootfs) (jail.Layers, error) {
	return jail.Layers{Dirs: []string{string(t)}, Digest: "tree"}, nil
}

type records struct {
	mu     sync.Mutex
	all    map[id.Jail]jail.Jail
	before func(jail.Jail) // called before each Put
}

func (r *records) setBefore(before func(jail.Jail)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = before
}

func (r *records) Put(_ context.Context, j jail.Jail) error {
	r.mu.Lock()
	before := r.before
	r.mu.Unlock()
	if before != nil {
		before(j)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.all {
		if other.ID != j.ID && j.IDs.Count > 0 && other.IDs == j.IDs {
			return fmt.Errorf("%s and %s have the same user IDs", j.ID, other.ID)
		}
	}
	r.all[j.ID] = j
	return nil
}

func (r *records) All(context.Context) (list []jail.Jail, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.all {
		list = append(list, j)
	}
	slices.SortFunc(list, func(a, b jail.Jail) int { return a.Created.Compare(b.Created) })
	return list, nil
}

func (r *records) Delete(_ context.Context, jid id.Jail) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, jid)
	return nil
}

type snapshots struct {
	mu   sync.Mutex
	all  map[id.Snapshot]snapshot.Snapshot
	fail error // of Put
}

func (r *snapshots) has(s id.Snapshot) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.all[s]
	return ok
}

func (r *snapshots) setFailure(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

func (r *snapshots) Put(_ context.Context, s snapshot.Snapshot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	text, err := json.Marshal(s) // fields that are not encoded are lost after a restart
	var kept snapshot.Snapshot
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	r.all[s.ID] = kept
	return err
}

func (r *snapshots) All(context.Context) (list []snapshot.Snapshot, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.all {
		list = append(list, s)
	}
	return list, nil
}

func (r *snapshots) Delete(_ context.Context, sid id.Snapshot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, sid)
	return nil
}

// running returns a new running jail.
func (h *harness) running(change ...func(*jail.Spec)) id.Jail {
	h.t.Helper()
	s := jail.Spec{Start: true}
	for _, f := range change {
		f(&s)
	}
	j, err := h.jails.Create(h.t.Context(), s)
	if err != nil {
		h.t.Fatal(err)
	}
	return j.ID
}

// sh runs a shell line in a jail and returns its output.
func (h *harness) sh(jid id.Jail, line string) string {
	h.t.Helper()
	out, code := h.try(jid, line)
	if code != 0 {
		h.t.Fatalf("%s: %q exits with %d: %s", jid, line, code, out)
	}
	return out
}

func (h *harness) try(jid id.Jail, line string) (string, int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	s, _, err := h.jails.Exec(ctx, jid, jail.ExecRequest{Argv: []string{"bash", "-c", line}}, &control.AttachOptions{Lossless: true})
	if err != nil {
		h.t.Fatalf("%s: %q: %v", jid, line, err)
	}
	defer s.Close()
	var out strings.Builder
	for {
		c, err := s.Next()
		if err != nil {
			break
		}
		out.Write(c.Data)
	}
	return out.String(), s.Status().Code
}

// background starts a shell line that keeps running.
func (h *harness) background(jid id.Jail, line string) protocol.ExecStatus {
	h.t.Helper()
	_, st, err := h.jails.Exec(h.t.Context(), jid, jail.ExecRequest{Argv: []string{"sh", "-c", line}}, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return st
}

func (h *harness) take(jid id.Jail, how jail.Layering) snapshot.Snapshot {
	h.t.Helper()
	s, err := h.keeper.Take(h.t.Context(), jid, snapshot.TakeOptions{Layering: how})
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *harness) branch(sid id.Snapshot, count int) []id.Jail {
	h.t.Helper()
	children, err := h.keeper.Branch(h.t.Context(), sid, count, snapshot.Overrides{})
	if err != nil {
		h.t.Fatal(err)
	}
	var all []id.Jail
	for _, c := range children {
		if c.Err != nil {
			h.t.Fatal(c.Err)
		}
		all = append(all, c.Jail.ID)
	}
	return all
}

// counter is a shell program that counts in memory and writes the number to a file. It
// appends, so that the file contains a number even if the program is stopped between open and
// write.
const counter = `i=0; while :; do i=$((i+1)); echo $i >> /tmp/count; sleep 0.02; done`

func (h *harness) count(jid id.Jail) (n int) {
	h.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // the file does not exist yet or is being written
		out, _ := h.try(jid, "tail -n 1 /tmp/count")
		fmt.Sscan(out, &n)
		if n > 0 {
			return n
		}
	}
	h.t.Fatalf("%s does not count", jid)
	return 0
}

func (h *harness) checkCounting(jid id.Jail, from int) int {
	h.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if n := h.count(jid); n > from {
			return n
		}
	}
	h.t.Fatalf("%s stopped counting at %d", jid, from)
	return 0
}

var layerings = []jail.Layering{jail.Copied, jail.Stacked}

func TestCounterContinuesInJailAndBranches(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) { newHarness(t).testCountingInBranches(how) })
	}
}

func (h *harness) testCountingInBranches(how jail.Layering) {
	t := h.t
	j := h.running()
	h.background(j, counter)
	h.checkCounting(j, 3)
	s := h.take(j, how)
	at := h.count(j)
	t.Logf("paused %v, %v", s.Paused, s.Layering)
	h.checkCounting(j, at)
	kids := h.branch(s.ID, 3)
	for _, k := range kids {
		h.checkCounting(k, 0)
		h.sh(k, "echo "+string(k)+" > /tmp/mine; grep -q "+string(k)+" /etc/hostname && uname -n | grep -q "+string(k))
	}
	for _, k := range kids {
		if got := strings.TrimSpace(h.sh(k, "cat /tmp/mine")); got != string(k) {
			t.Errorf("%s reads %q", k, got)
		}
	}
	h.checkCounting(j, h.count(j))
}

func TestRewind(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) { newHarness(t).testRewind(how) })
	}
}

func (h *harness) testRewind(how jail.Layering) {
	t := h.t
	j := h.running()
	h.background(j, counter)
	h.sh(j, "echo before > /root/file")
	h.checkCounting(j, 3)
	s := h.take(j, how)
	at := h.checkCounting(j, h.count(j)+20)
	h.sh(j, "echo after > /root/file; touch /root/new")
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := h.count(j); n >= at {
		t.Errorf("the counter is %d, want less than %d, its value before the rewind", n, at)
	}
	if got := h.sh(j, "cat /root/file; ls /root"); got != "before\nfile\n" {
		t.Errorf("files after: %q", got)
	}
	h.checkCounting(j, h.count(j))
}

// gVisor dumps jails itself. All higher layers are the same.
func TestSnapshotOfGVisorJail(t *testing.T) {
	for _, how := range layerings {
		t.Run("counts-on-"+string(how), func(t *testing.T) { newHarnessFor(t, "runsc").testCountingInBranches(how) })
		t.Run("goes-back-"+string(how), func(t *testing.T) { newHarnessFor(t, "runsc").testRewind(how) })
	}
}
