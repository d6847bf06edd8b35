package observe

import (
	"math"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReadSettledWaitsForRunningThread checks that the state of a process is not read while it
// runs: its calls and its CPU time would differ from those of the frozen process.
func TestReadSettledWaitsForRunningThread(t *testing.T) {
	if !hasExactRunTime() {
		t.Skip("the kernel does not report the run time of threads")
	}
	c := exec.Command("sh", "-c", "while :; do :; done")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	for {
		_, running, err := readProcess(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if running {
			break
		}
	}
	start := time.Now()
	if _, err := readSettled(c.Process.Pid, start.Add(50*time.Millisecond), math.MaxUint64); err != nil || time.Since(start) < 50*time.Millisecond {
		t.Errorf("state of a running process after %s, %v", time.Since(start), err)
	}
	start = time.Now()
	if p, err := readSettled(c.Process.Pid, start.Add(time.Minute), 1); err != nil || p.cpu < 1 || time.Since(start) > 50*time.Second {
		t.Errorf("state of a process with enough CPU time after %s, %v", time.Since(start), err)
	}
	time.AfterFunc(50*time.Millisecond, func() { c.Process.Signal(unix.SIGSTOP) })
	start = time.Now()
	p, err := readSettled(c.Process.Pid, start.Add(time.Minute), math.MaxUint64)
	if err != nil || time.Since(start) > 50*time.Second {
		t.Fatalf("state of a stopped process after %s, %v", time.Since(start), err)
	}
	again, running, err := readProcess(c.Process.Pid)
	if err != nil || running || again.cpu != p.cpu {
		t.Errorf("run time of a stopped process: %d, then %d; running %v, %v", p.cpu, again.cpu, running, err)
	}
}
