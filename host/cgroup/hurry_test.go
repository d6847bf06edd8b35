package cgroup_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"glasshouse/host/cgroup"
	"glasshouse/internal/thread"
)

// ownThreads returns the cgroups of the threads of this process.
func ownThreads(t *testing.T) []string {
	t.Helper()
	var all []string
	names, _ := filepath.Glob("/proc/self/task/*/cgroup")
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil {
			all = append(all, string(b))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func TestFastMovesKeepsCgroups(t *testing.T) {
	h := newHost(t)
	c := h.create(cgroup.Limits{PIDs: 64})
	before := ownThreads(t)

	var hurry cgroup.FastMoves
	moves := make(chan error, 1)
	hurry.Nudged(func(err error) {
		select {
		case moves <- err:
		default:
		}
	})
	first, second := hurry.Begin(), hurry.Begin()
	for range 3 {
		h.must(<-moves)
	}
	// A new process starts in the intended cgroup while threads of this process are there, too.
	for range 10 {
		cmd := exec.Command("cat", "/proc/self/cgroup")
		var out strings.Builder
		cmd.Stdout, cmd.SysProcAttr = &out, &syscall.SysProcAttr{}
		h.must(thread.Alone(func() error { return c.StartIn(cmd.SysProcAttr, cmd.Start) }))
		h.must(cmd.Wait())
		limited := 0
		for line := range strings.Lines(out.String()) {
			controllers, path, _ := strings.Cut(strings.SplitN(line, ":", 2)[1], ":")
			if strings.TrimSpace(path) == c.Path() {
				limited++
			} else if controllers == "pids" || controllers == "memory" || controllers == "" && c.Unified() != "" {
				t.Errorf("the process was started in %s", line)
			}
		}
		if limited == 0 {
			t.Errorf("the process was started in another cgroup: %s", out.String())
		}
	}
	first()
	first() // repeated calls have no effect
	for range 3 {
		h.must(<-moves)
	}
	second()
	eventually(t, "moves end after the last user", func() bool { return !hurry.Running() })
	if after := ownThreads(t); !slices.Equal(before, after) {
		t.Errorf("own cgroup was %q and is %q", before, after)
	}
	again := hurry.Begin()
	for range 2 {
		h.must(<-moves)
	}
	again()
	eventually(t, "moves end again", func() bool { return !hurry.Running() })
}

// A thread of this process that stayed in the cgroup would be killed with it.
func TestStartInLeavesNoThreadBehind(t *testing.T) {
	h := newHost(t)
	c := h.create(cgroup.Limits{})
	var stop atomic.Bool
	defer stop.Store(true)
	for range 4 * runtime.NumCPU() { // goroutines are moved between threads when the processors are busy
		go func() {
			for !stop.Load() {
			}
		}()
	}
	for range 20 {
		cmd := &exec.Cmd{Path: "/bin/true", SysProcAttr: &syscall.SysProcAttr{}}
		h.must(c.StartIn(cmd.SysProcAttr, cmd.Start))
		h.must(cmd.Wait())
		pids, err := c.PIDs()
		h.must(err)
		if slices.Contains(pids, os.Getpid()) {
			t.Fatal("this process is in the cgroup of the process that it has started")
		}
	}
}
