package jailinit_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// needCRIU skips the test without a CRIU that supports the kernel.
func needCRIU(t *testing.T) (criu string) {
	t.Helper()
	needRoot(t)
	criu, err := exec.LookPath("criu")
	if err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command(criu, "check").CombinedOutput(); err != nil {
		t.Skipf("%s check: %v: %s", criu, err, out)
	}
	return criu
}

// startDumpable starts an init that CRIU can dump: its session is in its own pid namespace,
// and it has no descriptors of the test.
func startDumpable(t *testing.T) (j *jail, pid string) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("unshare", "--fork", "--pid", "setsid", os.Args[0])
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TEST_INIT_SOCKET=" + filepath.Join(dir, "init.sock"), "HOME=/root"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	j = &jail{Client: control.Dial(filepath.Join(dir, "init.sock")), t: t, cmd: cmd, dir: dir}
	t.Cleanup(func() {
		for _, pid := range initsOf(dir) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		cmd.Wait()
	})
	ctx, cancel := contextWithTimeout(t, 30*time.Second)
	defer cancel()
	if _, err := j.WaitReady(ctx); err != nil {
		t.Fatalf("WaitReady: %v", err)
	}
	return j, children(t, cmd.Process.Pid)[0]
}

// initsOf returns the processes whose environment names a socket in dir.
func initsOf(dir string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
		if b, _ := os.ReadFile(file); strings.Contains(string(b), "TEST_INIT_SOCKET="+dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A parked jail can be dumped, killed and restored. Clients that read, write and wait are not
// affected.
func TestDumpAndRestoreOfParkedJail(t *testing.T) {
	criu := needCRIU(t)
	j, pid := startDumpable(t)
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"sh", "-c", "while read x; do echo got $x; done; exit 3"}, Stdin: true, Timeout: time.Minute}
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w, err := j.Stdin(j.t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan protocol.ExecStatus, 1)
	go func() {
		status, err := j.Wait(j.t.Context(), e.ID)
		if err != nil {
			t.Errorf("Wait: %v", err)
		}
		waited <- status
	}()
	say := func(word string) {
		t.Helper()
		if _, err := io.WriteString(w, word+"\n"); err != nil {
			t.Fatal(err)
		}
		if c, err := s.Next(); err != nil || string(c.Data) != "got "+word+"\n" {
			t.Fatalf("reply %q to %s, %v", c.Data, word, err)
		}
	}
	for i := range 3 {
		say("before" + itoa(i))
		if err := j.Park(j.t.Context(), parkPatience); err != nil {
			t.Fatal(err)
		}
		images := t.TempDir()
		run := func(args ...string) {
			t.Helper()
			cmd := exec.CommandContext(j.t.Context(), criu, append(args, "-D", images, "-o", "log")...)
			if out, err := cmd.CombinedOutput(); err != nil {
				log, _ := os.ReadFile(images + "/log")
				t.Fatalf("criu %s: %v: %s%s", args[0], err, out, log)
			}
		}
		run("dump", "-t", pid)
		if i == 0 {
			j.cmd.Wait() // unshare ends with init
		}
		run("restore", "-d", "--pidfile", "pid")
		b, err := os.ReadFile(images + "/pid")
		if err != nil {
			t.Fatal(err)
		}
		pid = string(b)
		j.Unpark()
		say("after" + itoa(i))
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Next(); err != io.EOF {
		t.Errorf("Next after the end = %v, want EOF", err)
	}
	if status := <-waited; status.Code != 3 || status.TimedOut {
		t.Errorf("status %+v, want code 3", status)
	}
}
