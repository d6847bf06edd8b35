package ptrace_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail/backend/bwrap"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/observetest"
	"glasshouse/observe/ptrace"
)

func TestMain(m *testing.M) {
	bwrap.Stage(os.Args)
	if len(os.Args) > 1 {
		for _, acts := range []map[string]func([]string){acts, observetest.Works} {
			if act, ok := acts[os.Args[1]]; ok {
				act(os.Args[2:])
				os.Exit(0)
			}
		}
	}
	os.Exit(m.Run())
}

// stranger is a user id that is unused on the host.
const stranger = 12346

// A jail is a shell that is process 1 of its own pid namespace.
type jail struct {
	t     testing.TB
	cmd   *exec.Cmd // the process that created it
	pid   int       // its init
	dir   string    // its files; it has the host's file tree
	self  string    // this test, as a program
	stdin io.WriteCloser
	out   *bufio.Reader
	name  id.Jail
	again bool // a daemon has observed it before
}

func newJail(t testing.TB) *jail {
	t.Helper()
	return newJailOf(t, "/bin/sh", "-s")
}

// newJailOf creates a jail with another init, which must print "up".
func newJailOf(t testing.TB, init ...string) *jail {
	t.Helper()
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip("unshare is not installed")
	}
	dir, err := os.MkdirTemp("", "gh-ptrace-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Geteuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	j := &jail{t: t, dir: dir, self: self, name: id.NewJail()}
	j.cmd = exec.Command("unshare", append(args, init...)...)
	j.cmd.Dir = dir
	j.cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "SELF=" + self}
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if j.stdin, err = j.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	j.cmd.Stderr = &complaints
	j.out = bufio.NewReader(out)
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.end)
	if _, err := io.WriteString(j.stdin, "echo up\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := j.out.ReadString('\n'); line != "up\n" {
		j.cmd.Process.Kill()
		j.cmd.Wait()
		if strings.Contains(complaints.String(), "not permitted") {
			t.Skipf("no pid namespaces here: %s", complaints.String())
		}
		t.Fatalf("the jail printed %q, %v\n%s", line, err, complaints.String())
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", j.cmd.Process.Pid))
	if err != nil {
		t.Skip(err)
	}
	if j.pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		t.Fatalf("children of unshare: %q", b)
	}
	return j
}

// end kills the jail. No process of it may remain, not even a stopped one or a zombie.
func (j *jail) end() {
	j.stdin.Close()
	syscall.Kill(j.pid, syscall.SIGKILL)
	ended := make(chan struct{})
	go func() {
		j.cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		j.t.Errorf("the jail did not exit:\n%s", j.states())
		j.cmd.Process.Kill()
		<-ended
	}
	if left := j.states(); left != "" {
		j.t.Errorf("processes of the jail remain:\n%s", left)
	}
}

// states lists the processes in the jail's directory.
func (j *jail) states() string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var b strings.Builder
	for _, d := range dirs {
		if cwd, err := os.Readlink(d + "/cwd"); err != nil || cwd != j.dir {
			continue
		}
		st, _ := os.ReadFile(d + "/stat")
		fmt.Fprintf(&b, "%s", st)
	}
	return b.String()
}

// sh runs a script in the jail's init and returns its output.
func (j *jail) sh(script string) string {
	j.t.Helper()
	const end = "-- the end --"
	if _, err := fmt.Fprintf(j.stdin, "%s\necho '%s'\n", script, end); err != nil {
		j.t.Fatal(err)
	}
	hangs := time.AfterFunc(2*time.Minute, func() {
		j.t.Errorf("%s: hangs\n%s", script, j.states())
		syscall.Kill(j.pid, syscall.SIGKILL)
	})
	defer hangs.Stop()
	var out strings.Builder
	for {
		line, err := j.out.ReadString('\n')
		if strings.HasPrefix(line, end) {
			return out.String()
		}
		out.WriteString(line)
		if err != nil {
			j.t.Fatalf("%s: the jail has ended: %v\n%s", script, err, out.String())
		}
	}
}

func (j *jail) target(s event.Selection) observe.Target {
	return observe.Target{Jail: j.name, Dir: j.dir, PID: j.pid, Resumed: j.again, Selection: s}
}

// A log is an in-memory sink.
type log struct {
	mu sync.Mutex
	// +checklocks:mu
	events []event.Event
	// +checklocks:mu
	full bool
	// +checklocks:mu
	pushed int
}

func (l *log) Append(e *event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, *e)
	l.events[len(l.events)-1].Seq = uint64(len(l.events))
}

func (l *log) HasRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.full
}

func (l *log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return uint64(len(l.events))
}

func (l *log) Written() uint64 { return l.Last() }

func (l *log) FlushSoon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pushed++
}

func (l *log) Kept(since int64, of event.Type, each func(*event.Event)) error {
	for _, e := range l.all(func(e *event.Event) bool { return e.Type == of && e.NS >= since }) {
		each(&e)
	}
	return nil
}

func (l *log) fill(full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = full
}

// all returns the events that match.
func (l *log) all(match func(e *event.Event) bool) []event.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []event.Event
	for i := range l.events {
		if match(&l.events[i]) {
			found = append(found, l.events[i])
		}
	}
	return found
}

func called(name string) func(*event.Event) bool {
	return func(e *event.Event) bool { return e.Type == event.Syscall && e.Name == name }
}

func did(op string) func(*event.Event) bool {
	return func(e *event.Event) bool { return (e.Type == event.File || e.Type == event.Proc) && e.Op == op }
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b []byte
	for i := max(0, len(l.events)-200); i < len(l.events); i++ {
		b = append(l.events[i].AppendJSON(b), '\n')
	}
	return string(b)
}

// watch observes a jail until the test ends.
func watch(t testing.TB, j *jail, s event.Selection) (*log, observe.Watch) {
	t.Helper()
	return watchWith(t, &ptrace.Source{}, j, s)
}

func watchWith(t testing.TB, src *ptrace.Source, j *jail, s event.Selection) (*log, observe.Watch) {
	t.Helper()
	l := &log{}
	w, err := src.Attach(ctx(t), j.target(s), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l, w
}

func ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func drain(t testing.TB, w observe.Watch) {
	t.Helper()
	if err := w.Drain(ctx(t)); err != nil {
		t.Fatal(err)
	}
}
