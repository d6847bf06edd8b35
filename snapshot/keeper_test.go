package snapshot_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/backend/backendtest"
	"glasshouse/backend/oci"
	"glasshouse/host/disk"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
	"glasshouse/snapshot"
)

// A house is jails and their snapshots, as a daemon has them.
type house struct {
	t       *testing.T
	dir     string
	root    string // of the jails
	runtime string // that makes them; default: runc
	criu    string // default: the host's
	jails   *jail.Manager
	keeper  *snapshot.Keeper
	records *records
	keep    *snapshots

	tune func(*jail.Config, *snapshot.Config) // before they are opened; or nil
	last func()                               // when all are gone; or nil
}

// runtimePath is where a runtime is on this host, or its name.
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

func newHouse(t *testing.T) *house { return newHouseOf(t, "") }

// newHouseOf is newHouse for jails of another runtime.
func newHouseOf(t *testing.T, runtime string) *house {
	h := &house{t: t, runtime: runtime}
	h.begin(func() {})
	return h
}

// begin makes the directories of the house, calls first, and opens it.
func (h *house) begin(first func()) {
	t := h.t
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("", "glasshouse-snap-")
	if err != nil {
		t.Fatal(err)
	}
	// In memory, apart from what jails may have as their root.
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

func (h *house) backend() *oci.Backend {
	return oci.New(oci.Config{
		Runtime: h.runtime, Path: runtimePath(h.runtime), CRIU: cmp.Or(h.criu, criu()), CgroupPrefix: filepath.Base(h.dir),
		RunDir: filepath.Join(h.dir, "run"), Templates: filepath.Join(h.dir, "templates"), Base: filepath.Join(h.dir, "base"),
		NetnsDir: filepath.Join(h.dir, "netns"),
	})
}

// open begins as a daemon does, also one that finds the jails of another.
func (h *house) open() {
	h.t.Helper()
	jails := jail.Config{
		Dir: filepath.Join(h.dir, "jails"), Store: h.records, Rootfs: tree(h.root),
		Runtimes: []jail.Runtime{{Name: "oci", Runtime: h.runtime, Backend: h.backend()}},
		Init:     backendtest.Init(h.t), Boot: "boot", Backend: "oci", Runtime: h.runtime, FirstID: backendtest.FirstID(h.t),
	}
	keeper := snapshot.Config{
		Dir: filepath.Join(h.dir, "jails"), Pages: filepath.Join(h.dir, "pages"), Hot: filepath.Join(h.dir, "hot"), HotMB: 1024,
		Copies: snapshot.Copies{MemoryMB: 1024},
		Store:  h.keep, Layers: oci.Layers{Templates: filepath.Join(h.dir, "templates")},
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

// reopen ends as a daemon does and begins again.
func (h *house) reopen() {
	h.t.Helper()
	if err := errors.Join(h.keeper.Close(), h.jails.Close()); err != nil {
		h.t.Fatal(err)
	}
	h.open()
}

func (h *house) end() {
	ctx := context.Background()
	all, _ := h.jails.List(ctx, jail.ListOptions{})
	for _, j := range all {
		if err := h.jails.Delete(ctx, j.ID); err != nil {
			h.t.Errorf("delete %s: %v", j.ID, err)
		}
	}
	list, _ := h.keeper.List(ctx, snapshot.ListOptions{})
	for _, s := range list {
		if err := h.keeper.Delete(ctx, s.ID); err != nil {
			h.t.Errorf("delete %s: %v", s.ID, err)
		}
	}
	h.keeper.Close()
	h.jails.Close()
	if h.last != nil {
		h.last()
	}
	// A server of memory has files there open, and ends by itself after half a minute
	// without a branch.
	err := unix.Unmount(filepath.Join(h.dir, "hot"), 0)
	for end := time.Now().Add(time.Minute); err == unix.EBUSY && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		err = unix.Unmount(filepath.Join(h.dir, "hot"), 0)
	}
	if err != nil {
		h.t.Errorf("unmount the memory images: %v", err)
	}
	h.nothingIsLeft()
	if err := unix.Unmount(h.dir, unix.MNT_DETACH); err != nil {
		h.t.Error(err)
	}
	if err := os.RemoveAll(h.dir); err != nil {
		h.t.Error(err)
	}
}

// nothingIsLeft reports what jails and snapshots left behind when all are gone.
func (h *house) nothingIsLeft() {
	h.t.Helper()
	if left, _ := filepath.Glob(filepath.Join(h.dir, "jails", "*")); len(left) > 0 {
		h.t.Errorf("left: %v", left)
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if left, _ := filepath.Glob(filepath.Join(root, filepath.Base(h.dir), "*", "cgroup.procs")); len(left) > 0 {
			h.t.Errorf("cgroups left: %v", left)
		}
	}
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(h.dir))
	for _, d := range append(dirs, "/sys/fs/cgroup/"+filepath.Base(h.dir)) {
		os.Remove(d)
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), h.dir+"/") {
		h.t.Errorf("mounts left below %s", h.dir)
	}
	left, err := disk.Leftovers(h.dir)
	for end := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left, err = disk.Leftovers(h.dir) // the kernel detaches a device a moment after its last use
	}
	if len(left) > 0 || err != nil {
		h.t.Errorf("loop devices left: %v, %v", left, err)
	}
}

// tree is a root filesystem with what the tests run.
type tree string

func (t tree) Resolve(context.Context, jail.Rootfs) (jail.Layers, error) {
	return jail.Layers{Dirs: []string{string(t)}, Digest: "tree"}, nil
}

type records struct {
	mu  sync.Mutex
	all map[id.Jail]jail.Jail
}

func (r *records) Put(_ context.Context, j jail.Jail) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.all {
		if other.ID != j.ID && j.IDs.Count > 0 && other.IDs == j.IDs {
			return fmt.Errorf("%s and %s have the same ids", j.ID, other.ID)
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
	mu  sync.Mutex
	all map[id.Snapshot]snapshot.Snapshot
}

func (r *snapshots) Put(_ context.Context, s snapshot.Snapshot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	text, err := json.Marshal(s) // what is not written down is not there later
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

// running returns a new jail that runs.
func (h *house) running(change ...func(*jail.Spec)) id.Jail {
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

// sh runs a line in a jail and returns what it wrote.
func (h *house) sh(jid id.Jail, line string) string {
	h.t.Helper()
	out, code := h.try(jid, line)
	if code != 0 {
		h.t.Fatalf("%s: %q exits with %d: %s", jid, line, code, out)
	}
	return out
}

func (h *house) try(jid id.Jail, line string) (string, int) {
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

// behind starts a line that goes on.
func (h *house) behind(jid id.Jail, line string) protocol.ExecStatus {
	h.t.Helper()
	_, st, err := h.jails.Exec(h.t.Context(), jid, jail.ExecRequest{Argv: []string{"sh", "-c", line}}, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return st
}

func (h *house) take(jid id.Jail, how jail.Layering) snapshot.Snapshot {
	h.t.Helper()
	s, err := h.keeper.Take(h.t.Context(), jid, snapshot.TakeOptions{Layering: how})
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *house) branch(sid id.Snapshot, count int) []id.Jail {
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

// counter is a process that counts in memory and shows it in a file.
// It appends, so that the file has a number also if it is stopped for good
// between opening and writing.
const counter = `i=0; while :; do i=$((i+1)); echo $i >> /tmp/count; sleep 0.02; done`

func (h *house) count(jid id.Jail) (n int) {
	h.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // it is not there yet, or is just being written
		out, _ := h.try(jid, "tail -n 1 /tmp/count")
		if fmt.Sscan(out, &n); n > 0 {
			return n
		}
	}
	h.t.Fatalf("%s counts nothing", jid)
	return 0
}

func (h *house) countsOn(jid id.Jail, from int) int {
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

func TestACounterCountsOnInTheJailAndInItsBranches(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) { newHouse(t).countsOnInBranches(how) })
	}
}

func (h *house) countsOnInBranches(how jail.Layering) {
	t := h.t
	j := h.running()
	h.behind(j, counter)
	h.countsOn(j, 3)
	s := h.take(j, how)
	at := h.count(j)
	t.Logf("paused %v, %v", s.Paused, s.Layering)
	h.countsOn(j, at)
	kids := h.branch(s.ID, 3)
	for _, k := range kids {
		h.countsOn(k, 0)
		h.sh(k, "echo "+string(k)+" > /tmp/mine; grep -q "+string(k)+" /etc/hostname && uname -n | grep -q "+string(k))
	}
	for _, k := range kids {
		if got := strings.TrimSpace(h.sh(k, "cat /tmp/mine")); got != string(k) {
			t.Errorf("%s reads %q", k, got)
		}
	}
	h.countsOn(j, h.count(j))
}

func TestAJailGoesBackToWhereItWas(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) { newHouse(t).goesBack(how) })
	}
}

func (h *house) goesBack(how jail.Layering) {
	t := h.t
	j := h.running()
	h.behind(j, counter)
	h.sh(j, "echo before > /root/file")
	h.countsOn(j, 3)
	s := h.take(j, how)
	at := h.countsOn(j, h.count(j)+20)
	h.sh(j, "echo after > /root/file; touch /root/new")
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := h.count(j); n >= at {
		t.Errorf("it counts %d, and had come to %d before it was rewound", n, at)
	}
	if got := h.sh(j, "cat /root/file; ls /root"); got != "before\nfile\n" {
		t.Errorf("files after: %q", got)
	}
	h.countsOn(j, h.count(j))
}

// gVisor writes its jails down itself. All above it is the same.
func TestAJailOfGVisorIsSnapshotted(t *testing.T) {
	for _, how := range layerings {
		t.Run("counts-on-"+string(how), func(t *testing.T) { newHouseOf(t, "runsc").countsOnInBranches(how) })
		t.Run("goes-back-"+string(how), func(t *testing.T) { newHouseOf(t, "runsc").goesBack(how) })
	}
}
