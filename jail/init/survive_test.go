package jailinit_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// startIsolated starts an init as PID 1 of a pid namespace.
func startIsolated(t *testing.T, env ...string) *jail {
	t.Helper()
	needRoot(t)
	return startIn(t, t.TempDir(), exec.Command("unshare", "--fork", "--pid", "--mount-proc", "--kill-child", os.Args[0]), env...)
}

func TestAsPIDOne(t *testing.T) {
	j := startIsolated(t)
	h, err := j.Hello(j.t.Context())
	if err != nil || h.PID != 1 || h.Version != protocol.Version || time.Since(h.Started) > time.Minute {
		t.Errorf("Hello = %+v, %v", h, err)
	}
	// Init adopts and reaps orphans.
	j.run(sh(`for i in 1 2 3 4; do (sleep 0.0$i & ) ; done`))
	j.wantProcesses(0)

	for range 3 {
		if _, _, err := j.Exec(j.t.Context(), sh("setsid sleep 60 & sleep 60 & wait"), nil); err != nil {
			t.Fatal(err)
		}
	}
	j.wantProcesses(9)
	if _, err := j.Terminate(j.t.Context(), "KILL"); err != nil {
		t.Fatal(err)
	}
	j.wantProcesses(0)
	zombies := "not looked for"
	for end := time.Now().Add(30 * time.Second); zombies != "" && time.Now().Before(end); { // init may not have reaped the last one yet
		zombies, _, _ = j.run(sh(`grep -l "State:.Z" /proc/[0-9]*/status`))
	}
	if zombies != "" {
		t.Errorf("zombies = %s, want none", zombies)
	}
}

func TestConnectionsFromJailAreRejected(t *testing.T) {
	j := startIsolated(t)
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{os.Args[0], string(id.NewExec()), "0"},
		Env: []string{"TEST_CLIENT_SOCKET=" + j.dir + "/init.sock"}}
	_, stderr, _ := j.run(e)
	if !strings.Contains(stderr, "closed the connection") {
		t.Errorf("stderr of a client in the jail = %q, want a closed connection", stderr)
	}
}

func TestInitCannotBeTraced(t *testing.T) {
	j := startIsolated(t)
	e := sh("cat /proc/1/environ /proc/1/maps; ls /proc/1/fd")
	e.User = "daemon"
	if out, stderr, _ := j.run(e); out != "" || !strings.Contains(stderr, "Permission denied") {
		t.Errorf("an ordinary user read %q from init, stderr %q; want an error", out, stderr)
	}
}

func TestSocketMode(t *testing.T) {
	j := start(t)
	info, err := os.Stat(j.dir + "/init.sock")
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket = %v, %v; want 0600", info.Mode(), err)
	}
}

func TestLongSocketPathAndStaleSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/init.sock", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	j := startIn(t, dir, exec.Command(os.Args[0]))
	if out, _, _ := j.run(sh("echo hi")); out != "hi\n" {
		t.Errorf("output %q", out)
	}
}

// cgroup creates a cgroup of a v1 or v2 controller with one limit, and returns the shell
// command that enters it.
func cgroup(t *testing.T, controller, limit, value string) (enter string) {
	t.Helper()
	needRoot(t)
	d := "/sys/fs/cgroup/" + controller
	if b, err := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control"); err == nil && strings.Contains(string(b), controller) {
		d = "/sys/fs/cgroup"
	}
	dir := fmt.Sprintf("%s/glasshouse-init-test-%d-%s", d, os.Getpid(), controller)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("cannot create a %s cgroup: %v", controller, err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if err := os.Remove(dir); err == nil {
				return
			}
		}
		t.Errorf("cannot remove the cgroup %s", dir)
	})
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(value), 0o644); err != nil {
		t.Skipf("no limit %s: %v", limit, err)
	}
	return fmt.Sprintf("echo $$ > %s/cgroup.procs; ", dir)
}

func TestForkBomb(t *testing.T) {
	enter := cgroup(t, "pids", "pids.max", "64")
	j := startIn(t, t.TempDir(), exec.Command("unshare", "--fork", "--pid", "--mount-proc", "--kill-child",
		"sh", "-c", enter+`exec "$0"`, os.Args[0]))
	// All threads of init exist when the bomb starts.
	bomb := protocol.Exec{ID: id.NewExec(), Argv: []string{"python3", "-c", `
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.001)
`}}
	if _, _, err := j.Exec(j.t.Context(), bomb, nil); err != nil {
		t.Fatal(err)
	}
	for { // until the limit is reached
		_, _, err := j.Exec(j.t.Context(), sh("true"), nil)
		if errors.Is(err, fault.Exhausted) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	j.wantResponsive(3 * time.Second)

	if _, err := j.Terminate(j.t.Context(), "KILL"); err != nil {
		t.Fatal(err)
	}
	for range 100 { // forks in progress
		if left, _ := j.Terminate(j.t.Context(), "KILL"); left == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	j.wantProcesses(0)
	if out, _, _ := j.run(sh("echo recovered")); out != "recovered\n" {
		t.Errorf("output after the bomb = %q", out)
	}
}

// wantResponsive uses all operations of init while it cannot create threads.
func (j *jail) wantResponsive(length time.Duration) {
	j.t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	refused := 0
	deadline := time.Now().Add(length)
	for range 8 {
		wg.Go(func() {
			for time.Now().Before(deadline) {
				_, _, err := j.Exec(j.t.Context(), sh("true"), nil)
				if err != nil && !errors.Is(err, fault.Exhausted) {
					j.t.Errorf("Exec at the limit: %v", err)
					return
				}
				if err != nil {
					mu.Lock()
					refused++
					mu.Unlock()
					if !strings.Contains(err.Error(), "the jail's process limit is reached") || fault.RemedyOf(err) == "" {
						j.t.Errorf("Exec at the limit: %v, remedy %q", err, fault.RemedyOf(err))
						return
					}
				}
				if _, _, err := j.List(j.t.Context(), "/usr/bin", "", 2000); err != nil {
					j.t.Error(err)
					return
				}
				if _, err := j.Hello(j.t.Context()); err != nil {
					j.t.Errorf("Hello: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if refused == 0 {
		j.t.Error("all Exec calls succeeded, want errors at the process limit")
	}
}

func TestThreadsAreBounded(t *testing.T) {
	j := start(t)
	before := statusField(t, j.cmd.Process.Pid, "Threads")
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			for range 10 {
				j.List(j.t.Context(), "/usr/bin", "", 1000)
				if tar, err := j.Tar(j.t.Context(), "/etc"); err == nil {
					tar.Close()
				}
				j.Exec(j.t.Context(), sh("true"), nil)
			}
		})
	}
	wg.Wait()
	if after := statusField(t, j.cmd.Process.Pid, "Threads"); after > before || after > 20 {
		t.Errorf("threads: %d at the start, %d later", before, after)
	}
}

func TestMemoryBombKillsCommandNotInit(t *testing.T) {
	enter := cgroup(t, "memory", memoryLimitFile(), "134217728")
	j := startIn(t, t.TempDir(), exec.Command("sh", "-c", enter+`exec "$0"`, os.Args[0]))
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"python3", "-c", "x=[]\nwhile True: x.append(bytearray(1<<20))"}}
	if _, _, status := j.run(e); status.Code == 0 {
		t.Errorf("status %+v, want killed", status)
	}
	if out, _, _ := j.run(sh("echo recovered")); out != "recovered\n" {
		t.Errorf("output after the bomb = %q", out)
	}
}

func memoryLimitFile() string {
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		return "memory.limit_in_bytes"
	}
	return "memory.max"
}

func TestMalformedFramesCloseTheConnection(t *testing.T) {
	j := start(t)
	for _, bytes := range []string{
		"", "x", "\x00\x00\x00\x00\x00", "\x01\xff\xff\xff\xff", "\x01\x00\x00\x00\x05{\"v\"", "\x05\x00\x00\x00\x01a",
		"GET / HTTP/1.1\r\n\r\n", "\xff\x00\x00\x00\x00", "\x01\x00\x7f\xff\xff" + strings.Repeat("[", 100000),
	} {
		c, err := net.Dial("unix", j.dir+"/init.sock")
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte(bytes))
		c.(*net.UnixConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if n, err := c.Read(make([]byte, 100)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection after %.20q is open (%d bytes), want it closed", bytes, n)
		}
		c.Close()
	}
	if _, err := j.Hello(j.t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTooManyConnections(t *testing.T) {
	j := start(t)
	var all []net.Conn
	for range 300 {
		c, err := net.Dial("unix", j.dir+"/init.sock")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	if _, err := j.Hello(j.t.Context()); !errors.Is(err, fault.Exhausted) && !errors.Is(err, fault.Unavailable) {
		t.Errorf("Hello with 300 idle connections = %v, want exhausted", err)
	}
	for _, c := range all {
		c.Close()
	}
	// Init detects the end of each connection.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := j.Hello(j.t.Context())
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("Hello 30 s after they were closed = %v, want no error", err)
		}
	}
}

func TestCancelledCallsReturnImmediately(t *testing.T) {
	j := start(t)
	e := sh("sleep 60")
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	stopped(t, j, func() {
		began := time.Now()
		ctx, cancel := contextWithTimeout(t, 100*time.Millisecond)
		defer cancel()
		if _, err := j.Hello(ctx); !errors.Is(err, fault.Timeout) {
			t.Errorf("Hello to a stopped init: %v, want a timeout", err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("Hello took %v, want the timeout of its context", took)
		}
	})
	ctx, cancel := contextWithTimeout(t, 100*time.Millisecond)
	defer cancel()
	if _, err := j.Wait(ctx, e.ID); !errors.Is(err, fault.Timeout) {
		t.Errorf("Wait: %v, want a timeout", err)
	}
}

// stopped stops init while f runs.
func stopped(t *testing.T, j *jail, f func()) {
	t.Helper()
	if err := j.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer j.cmd.Process.Signal(syscall.SIGCONT)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if b, _ := os.ReadFile("/proc/" + itoa(j.cmd.Process.Pid) + "/status"); strings.Contains(string(b), "State:\tT") {
			break
		}
	}
	f()
}

func TestNoInitIsUnavailable(t *testing.T) {
	ctx, cancel := contextWithTimeout(t, 50*time.Millisecond)
	defer cancel()
	c := control.Dial(filepath.Join(t.TempDir(), "init.sock"))
	if _, err := c.Hello(t.Context()); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Hello: %v, want unavailable", err)
	}
	if _, err := c.WaitReady(ctx); !errors.Is(err, fault.Timeout) {
		t.Errorf("WaitReady: %v, want a timeout", err)
	}
}
