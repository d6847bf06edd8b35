package test_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/backend/backendtest"
)

// A daemonHarness is a data directory with a daemon that tests can kill and start again.
type daemonHarness struct {
	*testing.T
	bin, data string
	config    string
	args      []string // additional arguments of serve
	cmd       *exec.Cmd
	log       *daemonLog
	*client.Client
}

// A daemonLog collects the standard error of a daemon. Tests read it while the daemon writes.
type daemonLog struct {
	mu sync.Mutex
	// +checklocks:mu
	text []byte
}

func (l *daemonLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	return len(b), nil
}

// Bytes returns a copy of the log.
func (l *daemonLog) Bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.text)
}

func (l *daemonLog) String() string { return string(l.Bytes()) }

// tail returns at most n bytes from the end of the log.
func (l *daemonLog) tail(n int) string {
	text := l.String()
	return text[max(0, len(text)-n):]
}

// open starts a daemon on a new data directory with a small root filesystem. At the end of the
// test it removes all jails and snapshots, and fails the test for resources that are left on the
// host.
func open(t *testing.T, config string, args ...string) *daemonHarness {
	t.Helper()
	return openAt(t, t.TempDir(), config, args...)
}

// openAt is like open, but on an existing data directory.
func openAt(t *testing.T, data, config string, args ...string) *daemonHarness {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("isolating jails for others needs root")
	}
	bin := backendtest.Program(t)
	h := &daemonHarness{T: t, bin: bin, data: data, args: args}
	if err := os.Chmod(filepath.Dir(h.data), 0o711); err != nil { // the daemon would require it
		t.Fatal(err)
	}
	h.config = filepath.Join(h.data, "config.yaml")
	text := config
	if !strings.Contains(config, "rootfs:") {
		text += fmt.Sprintf("rootfs: {default: {dir: %q}}\n", backendtest.Rootfs(t))
	}
	if err := os.WriteFile(h.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	t.Cleanup(h.end)
	return h
}

func (h *daemonHarness) start() {
	h.Helper()
	h.startUntil((*client.Client).Ready)
}

// startUntil starts the daemon and waits until a request succeeds.
func (h *daemonHarness) startUntil(ok func(*client.Client, context.Context) error) {
	h.Helper()
	h.log = &daemonLog{}
	h.cmd = exec.Command(h.bin, append([]string{"serve", "--data", h.data, "--config", h.config, "--listen", ""}, h.args...)...)
	h.cmd.Stderr = h.log
	if err := h.cmd.Start(); err != nil {
		h.Fatal(err)
	}
	cl, err := client.New(client.Options{Addr: "unix://" + filepath.Join(h.data, "glasshouse.sock")})
	if err != nil {
		h.Fatal(err)
	}
	h.Client = cl
	for deadline := time.Now().Add(time.Minute); ok(cl, context.Background()) != nil; time.Sleep(2 * time.Millisecond) {
		_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", h.cmd.Process.Pid))
		if ended := err != nil; ended || time.Now().After(deadline) {
			h.kill()
			h.Fatalf("the daemon is not ready:\n%s", h.log)
		}
	}
}

// tcpAddr returns the address of the daemon's TCP listener.
func (h *daemonHarness) tcpAddr() string {
	var at string
	if !within(30*time.Second, func() bool { // the Unix socket is ready first
		for field := range strings.FieldsSeq(h.log.String()) {
			if addr, ok := strings.CutPrefix(field, "addr="); ok && !strings.HasPrefix(addr, "/") {
				at = addr
			}
		}
		return at != ""
	}) {
		h.Fatal("the daemon has no TCP listener")
	}
	return at
}

// kill kills the daemon with SIGKILL, without any shutdown.
func (h *daemonHarness) kill() {
	if h.cmd != nil {
		h.cmd.Process.Kill()
		h.cmd.Wait()
		h.cmd = nil
	}
}

// stop lets the daemon exit.
func (h *daemonHarness) stop() {
	h.Helper()
	h.cmd.Process.Signal(syscall.SIGTERM)
	if err := h.cmd.Wait(); err != nil {
		h.Errorf("the daemon exited: %v", err)
	}
}

func (h *daemonHarness) end() {
	ctx := context.Background()
	if h.cmd == nil {
		h.start()
	}
	all, err := client.Collect(h.Jails(ctx, client.JailFilter{Nodes: "self"}))
	if err != nil {
		h.Errorf("list jails: %v", err)
	}
	for _, j := range all {
		if err := h.DeleteJail(ctx, j.ID); err != nil && fault.KindOf(err) != fault.NotFound { // a sandbox removes itself
			h.Errorf("delete %s: %v", j.ID, err)
		}
	}
	snapshots, err := client.Collect(h.Snapshots(ctx, client.SnapshotFilter{}))
	if err != nil {
		h.Errorf("list snapshots: %v", err)
	}
	for _, s := range snapshots {
		if err := h.DeleteSnapshot(ctx, s.ID); err != nil && fault.KindOf(err) != fault.NotFound { // so does the snapshot of a sandbox
			h.Errorf("delete %s: %v", s.ID, err)
		}
	}
	h.stop()
	// The kernel removes a process and its mounts asynchronously. For a moment, a process
	// that another suite starts also holds a copy of the mounts.
	left := h.leftovers()
	for end := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(end); left = h.leftovers() {
		time.Sleep(200 * time.Millisecond) // reading all processes takes long
	}
	if len(left) > 0 {
		h.Errorf("left on the host by %s: %q", h.data, left)
	}
	if h.Failed() {
		var text, trouble string
		for line := range strings.Lines(h.log.String()) {
			if !strings.Contains(line, "level=INFO msg=request ") {
				text += line
			}
			if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
				trouble += line
			}
		}
		h.Logf("end of the daemon's log, without requests:\n%s", text[max(0, len(text)-4000):])
		if trouble != "" {
			h.Logf("first warnings and errors of the daemon:\n%s", trouble[:min(len(trouble), 4000)])
		}
	}
}

// leftovers lists resources of this data directory that are still on the host. It ignores those
// of other suites: a directory whose name only has the same prefix, and a process that merely
// inherited a copy of all mounts.
func (h *daemonHarness) leftovers() []string {
	var left []string
	holds := func(text string) bool {
		return strings.Contains(text+"\n", h.data+"/") || strings.Contains(text, h.data+"\x00")
	}
	filepath.WalkDir(filepath.Join(h.data, "jails"), func(path string, e fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(h.data, path); name != "jails" || err != nil {
			left = append(left, "file "+name)
		}
		if len(left) == 20 {
			return fs.SkipAll
		}
		return nil
	})
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if !holds(line) {
			continue
		}
		left = append(left, "mount "+strings.TrimSpace(line))
		if strings.Contains(line, " bpf ") { // it keeps the jail's cgroup alive
			pins, _ := filepath.Glob(filepath.Join(h.data, "run/bpf/*/*"))
			left = append(left, pins...)
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if data, _ := os.ReadFile(l); holds(string(data)) {
			left = append(left, "loop device of "+strings.TrimSpace(string(data)))
		}
	}
	data, err := os.ReadFile(filepath.Join(h.data, "cgroup"))
	if err != nil {
		left = append(left, err.Error())
	}
	name := strings.TrimSpace(string(data))
	for _, under := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups, _ := filepath.Glob(under + name + "*")
		left = append(left, groups...)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	own, _ := os.Readlink("/proc/self/ns/mnt")
	roots := map[string]bool{own: false} // whether a mount namespace's root belongs to this daemon
	for _, p := range procs {
		line, _ := os.ReadFile(p + "/cmdline")
		if len(line) == 0 || bytes.Contains(line, []byte("\x00pages\x00")) {
			continue // a kernel thread, or a memory server, which waits half a minute for another branch
		}
		if p != fmt.Sprint("/proc/", os.Getpid()) && (holds(string(line)) || h.owns(p, name, roots, holds)) {
			left = append(left, fmt.Sprintf("process %s: %.80q", p, line))
		}
	}
	return left
}

// owns reports whether a process belongs to this daemon: its arguments have the data directory,
// it is in one of the daemon's cgroups, or it has its root or working directory in a mount below
// the data directory.
func (h *daemonHarness) owns(proc, cgroup string, roots map[string]bool, holds func(string) bool) bool {
	if data, _ := os.ReadFile(proc + "/environ"); holds(string(data)) {
		return true
	}
	for _, link := range []string{"exe", "cwd", "root"} {
		if at, _ := os.Readlink(filepath.Join(proc, link)); holds(at + "/") {
			return true
		}
	}
	if data, _ := os.ReadFile(filepath.Join(proc, "cgroup")); cgroup != "" && strings.Contains(string(data), cgroup) {
		return true
	}
	ns, err := os.Readlink(proc + "/ns/mnt")
	if err != nil {
		return false // it has exited
	}
	held, known := roots[ns]
	if !known {
		mounts, _ := os.ReadFile(proc + "/mountinfo")
		for line := range strings.Lines(string(mounts)) {
			f := strings.Fields(line)
			held = held || len(f) > 4 && f[4] == "/" && holds(line)
		}
		roots[ns] = held
	}
	return held
}

func (h *daemonHarness) running(req wire.CreateJail) wire.Jail {
	h.Helper()
	j, err := h.CreateJail(h.Context(), req)
	if err != nil {
		h.Fatal(err)
	}
	j, err = h.StartJail(h.Context(), j.ID)
	if err != nil {
		h.Fatal(err)
	}
	return j
}

// sh runs a shell command in a jail and returns its output.
func (h *daemonHarness) sh(j id.Jail, line string) string {
	h.Helper()
	x, err := h.Exec(h.Context(), j, wire.ExecRequest{Cmd: line})
	if err != nil {
		h.Fatalf("%s: %v", line, err)
	}
	stdout, stderr, err := client.Output(x)
	if err != nil {
		h.Fatal(err)
	}
	return strings.TrimSpace(string(stdout) + string(stderr))
}

// glasshouse runs the glasshouse command as a user does.
func (h *daemonHarness) glasshouse(dir string, args ...string) (stdout, stderr string, code int) {
	h.Helper()
	cmd := exec.Command(h.bin, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GLASSHOUSE_DATA="+h.data)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return o.String(), e.String(), exit.ExitCode()
	}
	if err != nil {
		h.Fatal(err)
	}
	return o.String(), e.String(), 0
}

func TestRunCommandLine(t *testing.T) {
	h := open(t, "")
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a", "old\n")
	write("b", "b\n")

	stdout, stderr, code := h.glasshouse(dir, "run", "--", "bash", "-c", "pwd; cat a; echo new > a; rm b; mkdir d; echo c > d/c; echo warn >&2; exit 3")
	if stdout != dir+"\nold\n" || code != 3 {
		t.Errorf("stdout %q, exit code %d; want the directory, the old content and 3", stdout, code)
	}
	for _, want := range []string{"warn\n", "modified  a", "deleted   b", "added     d/c", "glasshouse apply j-"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, stderr)
		}
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "a")); string(got) != "old\n" {
		t.Errorf("the host's file changed to %q", got)
	}
	if t.Failed() {
		t.FailNow()
	}
	jid := stderr[strings.LastIndex(stderr, "j-"):]
	jid = strings.TrimSpace(jid)
	apply := func(want string, args ...string) {
		t.Helper()
		if out, stderr, code := h.glasshouse(dir, append([]string{"apply", jid}, args...)...); code != 0 || out != want {
			t.Fatalf("apply %q: exit code %d, %q; want %q\n%s", args, code, out, want, stderr)
		}
	}
	apply("4 changes would be applied\n  deleted   b\n  modified  a\n  added     d\n  added     d/c\n", "--dry-run")
	if got, _ := os.ReadFile(filepath.Join(dir, "a")); string(got) != "old\n" {
		t.Errorf("after apply --dry-run: a is %q", got)
	}
	// The jail is stopped, so its workspace is not mounted.
	for _, args := range [][]string{{jid + ":" + dir + "/a", "-"}, {filepath.Join(dir, "a"), jid + ":" + dir + "/new"}} {
		if _, stderr, code := h.glasshouse(dir, append([]string{"cp"}, args...)...); code != 1 || !strings.Contains(stderr, "only a running jail has") {
			t.Errorf("cp %q: exit code %d and %q, want a conflict", args, code, stderr)
		}
	}
	apply("1 change applied\n", "a")
	apply("3 changes applied\n")
	apply("0 changes applied\n")
	got, _ := os.ReadFile(filepath.Join(dir, "d/c"))
	a, _ := os.ReadFile(filepath.Join(dir, "a"))
	if _, err := os.Stat(filepath.Join(dir, "b")); err == nil || string(got) != "c\n" || string(a) != "new\n" {
		t.Errorf("after apply: a %q, d/c %q, b there: %v", a, got, err == nil)
	}
	if out, _, _ := h.glasshouse(dir, "jail", "ls", "-q"); out != jid+"\n" {
		t.Errorf("jails after apply: %q, want %s", out, jid)
	}
	h.says("jail", "start", jid)
	h.says("exec", jid, "--", "bash", "-c", "echo more >"+dir+"/a")
	apply("1 change applied\n", "--rm")
	if a, _ := os.ReadFile(filepath.Join(dir, "a")); string(a) != "more\n" {
		t.Errorf("after the second apply: a is %q", a)
	}

	if _, stderr, code := h.glasshouse(dir, "run", "--apply", "--", "bash", "-c", "echo newer > a"); code != 0 || !strings.Contains(stderr, "1 change applied") {
		t.Errorf("run --apply: exit code %d\n%s", code, stderr)
	}
	if a, _ := os.ReadFile(filepath.Join(dir, "a")); string(a) != "newer\n" {
		t.Errorf("after run --apply: a is %q", a)
	}
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"run", "--", "nosuch"}, 127},
		{[]string{"run", "--", "/etc/passwd"}, 126},
		{[]string{"run", "--", "bash", "-c", "kill -9 $$"}, 137},
		{[]string{"run", "--timeout", "200ms", "--", "sleep", "60"}, 137},
		{[]string{"run", "--memory", "9g", "--", "true"}, 125},
		{[]string{"run", "--memory", "lots", "--", "true"}, 2},
		{[]string{"run", "--no-such-flag"}, 2},
		{[]string{"jail", "show", "j-nosuchnosuch"}, 1},
	} {
		if _, stderr, code := h.glasshouse(dir, c.args...); code != c.code || c.code != 137 && stderr == "" {
			t.Errorf("%q: exit code %d, want %d and a reason on stderr: %q", c.args, code, c.code, stderr)
		}
	}
	if out, _, _ := h.glasshouse(dir, "jail", "ls", "-q"); out != "" {
		t.Errorf("jails left behind: %q", out)
	}
}

// apply --rm keeps a jail with commits until the printed commands have fetched them.
func TestApplyKeepsCommits(t *testing.T) {
	h := open(t, "")
	dir, clone := t.TempDir(), filepath.Join(t.TempDir(), "clone")
	git := func(dir string, args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=Ann", "-c", "user.email=ann@example.com"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git(dir, "init", "-q", "-b", "main")
	git(dir, "commit", "-q", "--allow-empty", "-m", "first")
	// The root filesystem has no git, so the jail gets its commit from a clone.
	git(dir, "clone", "-q", dir, clone)
	git(clone, "commit", "-q", "--allow-empty", "-m", "second")
	if _, stderr, code := h.glasshouse(dir, "run", "--keep", "--", "bash", "-c", "echo text > file"); code != 0 {
		t.Fatalf("run --keep: exit code %d, %s", code, stderr)
	}
	jid := strings.TrimSpace(h.says("jail", "ls", "-q"))
	h.says("cp", filepath.Join(clone, ".git"), jid+":"+dir+"/.git")
	h.says("jail", "stop", jid)
	var stderr string
	for range 2 { // also after its files were applied
		var code int
		_, stderr, code = h.glasshouse(dir, "apply", jid, "--rm")
		if code != 1 || !strings.Contains(stderr, "does not have (.git/refs/heads/main)") {
			t.Fatalf("apply --rm: exit code %d and %q, want 1 and the ref", code, stderr)
		}
	}
	_, remedy, _ := strings.Cut(stderr, "fetch them: ")
	remedy, _, _ = strings.Cut(remedy, "\n")
	for step := range strings.SplitSeq(remedy, " && ") {
		args := strings.Fields(strings.ReplaceAll(step, "'", ""))
		switch args[0] {
		case "glasshouse":
			if _, stderr, code := h.glasshouse(dir, args[1:]...); code != 0 {
				t.Fatalf("%s: exit code %d: %s", step, code, stderr)
			}
		case "git":
			git(dir, args[1:]...)
		default:
			t.Fatalf("the remedy %q has the step %q", remedy, step)
		}
	}
	if got := git(dir, "log", "-1", "--format=%s", "refs/jail/main"); got != "second" {
		t.Errorf("fetched commit: %q, want second", got)
	}
	if _, stderr, code := h.glasshouse(dir, "apply", "--rm", jid); code != 0 || stderr != "" {
		t.Errorf("apply --rm after the fetch: exit code %d and %q, want 0", code, stderr)
	}
	if out, _, _ := h.glasshouse(dir, "jail", "ls", "-q"); out != "" {
		t.Errorf("jails left behind: %q", out)
	}
}

func TestLargeOutputIsComplete(t *testing.T) {
	h := open(t, "")
	out, _, code := h.glasshouse(t.TempDir(), "run", "--no-workspace", "--", "bash", "-c", "head -c 50000000 /dev/zero; echo end")
	if code != 0 || len(out) != 50000004 || !strings.HasSuffix(out, "end\n") {
		t.Errorf("%d bytes, exit code %d; want all 50000004", len(out), code)
	}
}

// Init drops a lossless reader that it has not heard from for ten seconds. The pauses of this
// reader are longer, and the daemon is killed while the output is not read.
func TestGigabyteForPausingReaderIsComplete(t *testing.T) {
	onlyThorough(t)
	const size, pauses, pause = 1 << 30, 3, 12 * time.Second
	h := open(t, "")
	j := h.running(wire.CreateJail{}).ID
	s, err := h.Stream(t.Context(), j, wire.ExecRequest{Cmd: fmt.Sprintf("head -c %d /dev/zero", size), Lossless: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	paused, next := int64(0), int64(0)
	for {
		if next > (paused+1)*size/(pauses+2) && paused <= pauses {
			paused++
			if paused > pauses {
				h.kill()
				h.start()
			} else {
				time.Sleep(pause)
			}
		}
		out, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("read after %d bytes and %d pauses: %v", next, paused, err)
		}
		if out.Offset != next || out.Lost != 0 {
			t.Fatalf("got output at offset %d with %d bytes lost after %d bytes and %d pauses", out.Offset, out.Lost, next, paused)
		}
		next += int64(len(out.Data))
	}
	if x := s.Exec(); next != size || x.StdoutBytes != size || x.ExitCode == nil || *x.ExitCode != 0 {
		t.Errorf("got %d bytes of %d, and the command ended as %+v", next, size, x)
	}
}

func TestCopyFilesInAndOut(t *testing.T) {
	h := open(t, "")
	j := h.running(wire.CreateJail{})
	src := t.TempDir()
	os.MkdirAll(filepath.Join(src, "sub"), 0o755)
	os.WriteFile(filepath.Join(src, "sub/f"), []byte("content"), 0o755)
	if _, stderr, code := h.glasshouse(src, "cp", src, string(j.ID)+":/work/src"); code != 0 {
		t.Fatalf("cp in: %s", stderr)
	}
	if got := h.sh(j.ID, "stat -c '%a %u' /work/src/sub/f; cat /work/src/sub/f"); got != "755 0\ncontent" {
		t.Errorf("copied file in the jail: got %q", got)
	}
	if _, err := h.StopJail(t.Context(), j.ID, 0); err != nil {
		t.Fatal(err)
	}
	// Copy also from a stopped jail that contains hostile links.
	dst := filepath.Join(t.TempDir(), "dst")
	if _, stderr, code := h.glasshouse(src, "cp", string(j.ID)+":/work", dst); code != 0 {
		t.Fatalf("cp out of a stopped jail: %s", stderr)
	}
	if got, _ := os.ReadFile(filepath.Join(dst, "src/sub/f")); string(got) != "content" {
		t.Errorf("copied file on the host: got %q", got)
	}
	if out, _, code := h.glasshouse(src, "cp", string(j.ID)+":/work/src/sub/f", "-"); out != "content" || code != 0 {
		t.Errorf("cp to standard output: %q, %d", out, code)
	}
}

func TestHostileLinksInFilePaths(t *testing.T) {
	h := open(t, "")
	j := h.running(wire.CreateJail{})
	secret := filepath.Join(t.TempDir(), "secret")
	os.WriteFile(secret, []byte("the host's"), 0o644)
	h.sh(j.ID, "ln -s "+secret+" /direct; ln -s / /root/all; ln -s ../../../../../../../../../.. /up; mkfifo /fifo")
	check := func(when string) {
		for _, p := range []string{"/direct", "/up" + secret, "/root/all" + secret, "/../../.." + secret, "/proc/1/root" + secret} {
			r, err := h.ReadFile(t.Context(), j.ID, p, 0, -1)
			if err != nil {
				continue
			}
			got, _ := io.ReadAll(r)
			r.Close()
			if strings.Contains(string(got), "the host's") {
				t.Errorf("%s: %s shows the host's file", when, p)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if _, err := h.ReadFile(ctx, j.ID, "/fifo", 0, -1); err == nil || ctx.Err() != nil {
			t.Errorf("%s: reading a fifo = %v, want an immediate error", when, err)
		}
		if _, err := h.WriteFile(t.Context(), j.ID, "/direct", strings.NewReader("x"), client.WriteOptions{Parents: true}); err == nil {
			if got, _ := os.ReadFile(secret); string(got) != "the host's" {
				t.Errorf("%s: a write through a link changed the host's file", when)
			}
		}
	}
	check("running")
	if _, err := h.StopJail(t.Context(), j.ID, 0); err != nil {
		t.Fatal(err)
	}
	check("stopped")
}

// A data directory that is copied while its daemon runs names the same cgroups.
func TestDaemonOnCopiedDataDirectory(t *testing.T) {
	h := open(t, "")
	j := h.running(wire.CreateJail{Name: "one"})
	cp := shortTemp(t)
	for _, name := range []string{"cgroup", "house"} {
		data, err := os.ReadFile(filepath.Join(h.data, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(cp, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, stderr, code := h.glasshouse(h.data, "serve", "--data", cp, "--listen", "")
	if code == 0 || !strings.Contains(stderr, "another daemon on this host") || !strings.Contains(stderr, h.data) || !strings.Contains(stderr, filepath.Join(cp, "cgroup")) {
		t.Errorf("exit code %d, %q; want an error that names the other daemon and a remedy", code, stderr)
	}
	if got := h.sh(j.ID, "echo still"); got != "still" {
		t.Errorf("the jail prints %q, want still", got)
	}
	h.kill()
	h.start() // a lock is released when its process dies
	if got := h.sh(j.ID, "echo here"); got != "here" {
		t.Errorf("after a restart of the daemon the jail prints %q, want here", got)
	}
}

func TestDaemonKillsAtManyMoments(t *testing.T) {
	h := open(t, "pool: {size: 1}\n")
	ctx := t.Context()
	witness := h.running(wire.CreateJail{Name: "witness"})
	x, err := h.Exec(ctx, witness.ID, wire.ExecRequest{Cmd: "for i in $(seq 100000); do echo $i; sleep 0.05; done", Detach: true, KeepBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		busy, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { h.churn(busy) })
		}
		time.Sleep(time.Duration(rand.IntN(250)) * time.Millisecond)
		h.kill()
		stop()
		wg.Wait()
		h.start()

		all, err := client.Collect(h.Jails(ctx, client.JailFilter{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range all {
			if !slices.Contains([]string{"created", "running", "stopped", "paused"}, j.State) {
				t.Errorf("round %d: jail %s is %s: %s", round, j.ID, j.State, j.Reason)
			}
			if j.State == "running" {
				if got := h.sh(j.ID, "echo alive"); got != "alive" {
					t.Errorf("round %d: running jail %s prints %q, want alive", round, j.ID, got)
				}
			}
			if j.ID != witness.ID {
				if err := h.DeleteJail(ctx, j.ID); err != nil {
					t.Errorf("round %d: delete %s, which was %s: %v", round, j.ID, j.State, err)
				}
			}
		}
	}
	// The command that ran all the time lost no output.
	s, err := h.Follow(ctx, witness.ID, x.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var got strings.Builder
	for strings.Count(got.String(), "\n") < 50 {
		out, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if out.Lost > 0 {
			t.Fatalf("%d bytes lost", out.Lost)
		}
		got.Write(out.Data)
	}
	n := 0
	for line := range strings.Lines(got.String()) {
		n++
		if strings.HasSuffix(line, "\n") && line != fmt.Sprintf("%d\n", n) {
			t.Fatalf("output line %d = %q", n, line)
		}
	}
}

// churn creates, uses and removes jails until ctx or the daemon ends.
func (h *daemonHarness) churn(ctx context.Context) {
	for ctx.Err() == nil {
		j, err := h.CreateJail(ctx, wire.CreateJail{})
		if err != nil {
			return
		}
		steps := []func() error{
			func() error { _, err := h.StartJail(ctx, j.ID); return err },
			func() error { _, err := h.Client.Exec(ctx, j.ID, wire.ExecRequest{Cmd: "echo x > /f"}); return err },
			func() error { _, err := h.PauseJail(ctx, j.ID); return err },
			func() error { _, err := h.ResumeJail(ctx, j.ID); return err },
			func() error { _, err := h.StopJail(ctx, j.ID, 0); return err },
			func() error { _, err := h.StartJail(ctx, j.ID); return err },
			func() error { return h.DeleteJail(ctx, j.ID) },
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return
			}
		}
	}
}

// inits returns the init processes of a jail.
func (h *daemonHarness) inits(j id.Jail) []int {
	h.Helper()
	pids := h.initsOf(j)
	if len(pids) == 0 {
		h.Fatalf("%s has no init", j)
	}
	return pids
}

// initsOf is like inits, but there may be none.
func (h *daemonHarness) initsOf(j id.Jail) (pids []int) {
	h.Helper()
	out, err := exec.Command("pgrep", "-f", "^/.glasshouse/init").Output()
	if err != nil {
		h.Fatal(err)
	}
	for field := range strings.FieldsSeq(string(out)) {
		if cg, _ := os.ReadFile("/proc/" + field + "/cgroup"); strings.Contains(string(cg), string(j)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				h.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestJailsAfterReboot(t *testing.T) {
	h := open(t, "")
	j := h.running(wire.CreateJail{})
	h.sh(j.ID, "echo kept > /root/file; sync")
	inits := h.inits(j.ID)
	h.kill()
	for _, pid := range inits {
		syscall.Kill(pid, syscall.SIGKILL)
		for _, err := os.Stat(fmt.Sprint("/proc/", pid)); err == nil; _, err = os.Stat(fmt.Sprint("/proc/", pid)) {
			time.Sleep(time.Millisecond)
		}
	}
	h.start()
	got, err := h.Jail(t.Context(), j.ID)
	if err != nil || got.State != "stopped" || got.Reason == "" {
		t.Fatalf("after a reboot: got %s, %q, %v; want stopped with a reason", got.State, got.Reason, err)
	}
	r, err := h.ReadFile(t.Context(), j.ID, "/root/file", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	data, _ := io.ReadAll(r)
	r.Close()
	if string(data) != "kept\n" {
		t.Errorf("the file of the stopped jail has %q, want kept", data)
	}
	if _, err := h.StartJail(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if got := h.sh(j.ID, "cat /root/file"); got != "kept" {
		t.Errorf("the file of the restarted jail has %q, want kept", got)
	}
}

func TestResourceBombDoesNotAffectOtherJails(t *testing.T) {
	h := open(t, "")
	ctx := t.Context()
	neighbour := h.running(wire.CreateJail{})
	for name, c := range map[string]struct {
		line  string
		limit wire.Limits
	}{
		"fork bomb":     {":(){ :|:& };:", wire.Limits{MaxPIDs: 64}},
		"memory bomb":   {"x=$(head -c 2G /dev/zero | tr '\\0' x); echo survived", wire.Limits{MemoryMB: 64}},
		"disk filler":   {"dd if=/dev/zero of=/fill bs=1M; echo; df -P / | tail -1", wire.Limits{DiskMB: 32}},
		"many files":    {"mkdir /m && cd /m && for i in $(seq 20000); do : > f$i; done 2>/dev/null", wire.Limits{DiskMB: 64}},
		"deaf":          {"trap '' TERM INT HUP; sleep 1000 & sleep 1000", wire.Limits{}},
		"double forker": {"(setsid sleep 1000 &) ; (setsid setsid bash -c 'while :; do :; done' &)", wire.Limits{}},
	} {
		t.Run(name, func(t *testing.T) {
			j, err := h.CreateJail(ctx, wire.CreateJail{Limits: c.limit})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.StartJail(ctx, j.ID); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			h.Client.Exec(ctx, j.ID, wire.ExecRequest{Cmd: c.line, TimeoutMS: 3000})
			if got := h.sh(neighbour.ID, "echo fine"); got != "fine" {
				t.Errorf("the neighbour prints %q, want fine", got)
			}
			if err := h.Ready(ctx); err != nil {
				t.Errorf("Ready: %v", err)
			}
			if _, err := h.StopJail(ctx, j.ID, 200*time.Millisecond); err != nil {
				t.Errorf("stop: %v", err)
			}
			if err := h.DeleteJail(ctx, j.ID); err != nil {
				t.Errorf("delete: %v", err)
			}
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("stop and delete took %v, want at most a minute", took)
			}
		})
	}
}

func TestFiftyConcurrentJails(t *testing.T) {
	h := open(t, "")
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			j, err := h.CreateJail(t.Context(), wire.CreateJail{Limits: wire.Limits{DiskMB: 32, MemoryMB: 64}})
			if err == nil {
				_, err = h.StartJail(t.Context(), j.ID)
			}
			if err != nil {
				t.Error(err)
				return
			}
			if x, err := h.Exec(t.Context(), j.ID, wire.ExecRequest{Cmd: "hostname || cat /etc/hostname"}); err != nil || strings.TrimSpace(x.Stdout) != string(j.ID) {
				t.Errorf("%s: %q, %v", j.ID, x.Stdout, err)
			}
			var two sync.WaitGroup
			for range 2 {
				two.Go(func() {
					if _, err := h.StopJail(t.Context(), j.ID, 0); err != nil {
						t.Errorf("stop: %v", err)
					}
				})
			}
			two.Wait()
			if err := h.DeleteJail(t.Context(), j.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestJailsDoNotPinMountsOfOthers(t *testing.T) {
	h := open(t, "pool: {size: 0}\n")
	first := h.running(wire.CreateJail{})
	holder, err := h.CreateJail(t.Context(), wire.CreateJail{Backend: "bwrap"})
	if errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.StopJail(t.Context(), first.ID, 0); err != nil {
		t.Fatal(err)
	}
	// The kernel removes a loop device with its last mount. A process that another suite starts
	// has a copy of all mounts for a moment.
	if !within(30*time.Second, func() bool { return !loopOf(string(first.ID)) }) {
		t.Errorf("%s still keeps the disk of a stopped jail mounted", holder.ID)
	}
}

// loopOf reports whether the host has a loop device whose file has a word in its path.
func loopOf(word string) bool {
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is valid
	return slices.ContainsFunc(loops, func(l string) bool {
		data, err := os.ReadFile(l) // the device may be gone by now
		return err == nil && strings.Contains(string(data), word)
	})
}

func TestDataDirectoryLock(t *testing.T) {
	h := open(t, "")
	_, stderr, code := h.glasshouse(h.data, "serve", "--data", h.data, "--listen", "")
	if code == 0 || !strings.Contains(stderr, "another daemon") {
		t.Errorf("serve on a data directory in use: exit code %d, %q", code, stderr)
	}
	if _, stderr, code := h.glasshouse(h.data, "serve", "--data", t.TempDir(), "--listen", "0.0.0.0:0"); code == 0 || !strings.Contains(stderr, "--insecure") {
		t.Errorf("serve on 0.0.0.0 without TLS: exit code %d, %q", code, stderr)
	}
}

func TestTCPListenerNeedsToken(t *testing.T) {
	h := open(t, "", "--listen", "127.0.0.1:0")
	addr := h.tcpAddr()
	get := func(token string) int {
		req, _ := http.NewRequest("GET", "http://"+addr+"/jails", nil)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var p wire.Problem
		json.NewDecoder(resp.Body).Decode(&p)
		if resp.StatusCode == 401 && p.Type == "" {
			t.Error("the 401 response is not a problem document")
		}
		return resp.StatusCode
	}
	file := filepath.Join(h.data, "token")
	token, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if fi, _ := os.Stat(file); fi.Mode().Perm() != 0o600 {
		t.Errorf("token file has mode %v, want 0600", fi.Mode())
	}
	if got := get(""); got != 401 {
		t.Errorf("without a token: got %d, want 401", got)
	}
	if got := get("gh_wrong"); got != 401 {
		t.Errorf("with a wrong token: got %d, want 401", got)
	}
	if got := get(strings.TrimSpace(string(token))); got != 200 {
		t.Errorf("with the first token: got %d, want 200", got)
	}
	viewer, err := h.CreateToken(t.Context(), wire.CreateToken{Name: "eyes", Role: "viewer"})
	if err != nil {
		t.Fatal(err)
	}
	cl, _ := client.New(client.Options{Addr: "http://" + addr, Token: viewer.Token})
	if _, err := cl.CreateJail(t.Context(), wire.CreateJail{}); !errors.Is(err, fault.Denied) {
		t.Errorf("CreateJail as a viewer: got %v, want denied", err)
	}
	if err := h.RevokeToken(t.Context(), viewer.ID); err != nil {
		t.Fatal(err)
	}
	if got := get(viewer.Token); got != 401 {
		t.Errorf("with a revoked token: got %d, want 401", got)
	}
}

func TestTerminalReattach(t *testing.T) {
	h := open(t, "")
	j := h.running(wire.CreateJail{})
	term, err := h.Terminal(t.Context(), j.ID, client.TerminalOptions{Argv: []string{"bash", "--norc"}, Size: wire.Size{Cols: 100, Rows: 30}})
	if err != nil {
		t.Fatal(err)
	}
	x := term.Exec().ID
	expect := func(term *client.Terminal, want string) {
		t.Helper()
		defer time.AfterFunc(20*time.Second, func() { term.Close() }).Stop()
		var seen strings.Builder
		buf := make([]byte, 4096)
		for !strings.Contains(seen.String(), want) {
			n, err := term.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				t.Fatalf("read: %v after %q, waiting for %q", err, seen.String(), want)
			}
		}
	}
	io.WriteString(term, "echo $(( $(stat -c %t /proc/self/fd/0 2>/dev/null | wc -l) ))tty; [ -t 0 ] && echo is''-a-tty; echo $COLUMNS''x$LINES\n")
	expect(term, "is-a-tty")
	if err := term.Resize(wire.Size{Cols: 120, Rows: 40}); err != nil {
		t.Fatal(err)
	}
	io.WriteString(term, "export MARK=kept; sleep 100 || echo back''-$?\n")
	// An interrupt discards input that the shell has not read yet (termios(3), ISIG without
	// NOFLSH).
	h.until("the line runs", func() bool {
		return strings.Contains(h.sh(j.ID, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; true"), "sleep 100 ")
	})
	io.WriteString(term, "\x03")
	io.WriteString(term, "echo c''olumns=$COLUMNS\n")
	expect(term, "columns=120")
	term.Close()

	h.kill()
	h.start()
	back, err := h.Terminal(t.Context(), j.ID, client.TerminalOptions{Exec: x})
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	io.WriteString(back, "echo mark=$MARK; echo size=$COLUMNS\n")
	expect(back, "mark=kept")
	io.WriteString(back, "exit 7\n")
	io.Copy(io.Discard, back)
	if code := back.Exec().ExitCode; code == nil || *code != 7 {
		t.Errorf("exit code %v, want 7", code)
	}
}

// khugepaged merges pages while it holds the daemon's mmap lock, at the lowest priority.
func TestDaemonHeapHasNoHugePages(t *testing.T) {
	h := open(t, "")
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", h.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	// The heap is below the mmap area, at an address that the Go runtime chooses.
	heap := regexp.MustCompile(`(?m)^(?:[0-9a-f]{9,11}|[0-6][0-9a-f]{11})-[0-9a-f]+ rw-p (?s:.*?)^VmFlags:(.*)$`).FindAllSubmatch(maps, -1)
	if len(heap) == 0 {
		t.Fatal("no heap mapping found")
	}
	for _, m := range heap {
		if !strings.Contains(string(m[1]), " nh") {
			t.Errorf("the heap mapping has VmFlags%s, want nh (no huge pages)", m[1])
		}
	}
}
