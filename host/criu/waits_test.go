package criu

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWaitsDescribesAllDescendants(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sh -c 'sleep 1000; true' & wait")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		cmd.Wait()
	})
	var text string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		text = waits(cmd.Process.Pid)
		if strings.Contains(text, `"sleep" S `) && strings.Count(text, `"sh" S `) == 2 {
			return
		}
	}
	t.Errorf("waits = %q, want two shells and a sleep that wait", text)
}
