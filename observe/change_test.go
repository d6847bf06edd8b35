package observe

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReadSettledWaitsForRunningThread checks that the state of a process is not read while it
// runs: its calls and its CPU time would differ from those of the frozen process.
func TestReadSettledWaitsForRunningThread(t *testing.T) {
	if !tellsTime() {
		t.Skip("the kernel does not report the run time of threads")
	}
	c := exec.Command("sh", "-c", "while :; do :; done")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	for running := false; !running; {
		var err error
		if _, running, err = readProcess(c.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	if _, err := readSettled(c.Process.Pid, start.Add(50*time.Millisecond)); err != nil || time.Since(start) < 50*time.Millisecond {
		t.Errorf("state of a running process after %s, %v", time.Since(start), err)
	}
	time.AfterFunc(50*time.Millisecond, func() { c.Process.Signal(unix.SIGSTOP) })
	start = time.Now()
	p, err := readSettled(c.Process.Pid, start.Add(time.Minute))
	if err != nil || time.Since(start) > 50*time.Second {
		t.Fatalf("state of a stopped process after %s, %v", time.Since(start), err)
	}
	again, running, err := readProcess(c.Process.Pid)
	if err != nil || running || again.cpu != p.cpu {
		t.Errorf("run time of a stopped process: %d, then %d; running %v, %v", p.cpu, again.cpu, running, err)
	}
}
