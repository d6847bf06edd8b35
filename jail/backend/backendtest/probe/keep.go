package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A keeper sets up state and returns a function that checks it later. copied reports that the
// check runs in another jail than the set-up.
type keeper func(args []string) (check func(copied bool) error, err error)

// keepers by name.
var keepers = map[string]keeper{
	"identity":   keepIdentity,
	"mounts":     keepMounts,
	"files":      keepFiles,
	"deleted":    keepDeleted,
	"memory":     keepMemory,
	"locks":      keepLocks,
	"fifo":       keepFIFO,
	"inotify":    keepInotify,
	"epoll":      keepEpoll,
	"timers":     keepTimers,
	"pipe":       keepPipe,
	"unix":       keepUnix,
	"unix-paths": keepUnixPaths,
	"listener":   keepListener,
	"loopback":   keepLoopback,
	"udp":        keepUDP,
	"netlink":    keepNetlink,
	"outward":    keepOutward,
	"terminal":   keepTerminal,
	"shared":     keepShared,
	"memfd":      keepMemfd,
	"sysv":       keepSysV,
	"threads":    keepThreads,
	"children":   keepChildren,
	"zombie":     keepZombie,
	"stopped":    keepStopped,
	"session":    keepSession,
	"sleep":      keepSleep,
	"pidfd":      keepPidfd,
	"semaphore":  keepSemaphore,
	"traced":     keepTraced,
	"backlog":    keepBacklog,
	"wiped":      keepWiped,
	"random":     keepRandom,
}

// keepDir has the files through which keepers and the suite communicate.
const keepDir = "/tmp/keep"

// keep sets up the named state, reports that, waits for a note that says where it runs, "source"
// or "copy", and reports the result of the check.
func keep(args []string) error {
	if len(args) == 0 || keepers[args[0]] == nil {
		return fmt.Errorf("no keeper for %q", args)
	}
	note := filepath.Join(keepDir, args[0])
	if err := os.MkdirAll(keepDir, 0o777); err != nil {
		return err
	}
	check, err := keepers[args[0]](args[1:])
	if err != nil {
		return err
	}
	if err := os.WriteFile(note+".held", nil, 0o666); err != nil {
		return err
	}
	where, err := await(note + ".go")
	if err != nil {
		return err
	}
	return check(where == "copy")
}

// await waits until a file has a complete line and returns it.
func await(name string) (string, error) {
	for {
		b, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if line, ok := strings.CutSuffix(string(b), "\n"); ok {
			return line, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// part runs the additional process of a keeper.
func part(args []string) error {
	if len(args) == 0 || parts[args[0]] == nil {
		return fmt.Errorf("no part for %q", args)
	}
	return parts[args[0]](args[1:])
}

var parts = map[string]func(args []string) error{
	"echo":     partEcho,
	"exit":     func([]string) error { os.Exit(7); return nil },
	"wait":     func([]string) error { time.Sleep(time.Hour); return nil },
	"mapped":   partMapped,
	"terminal": partTerminal,
	"lock":     partLock,
	"counter":  partCounter,
}

// same returns an error with the difference of two texts.
func same(was, is string) error {
	if was == is {
		return nil
	}
	var diff []string
	before, after := strings.Split(was, "\n"), strings.Split(is, "\n")
	for i := range max(len(before), len(after)) {
		b, a := "", ""
		if i < len(before) {
			b = before[i]
		}
		if i < len(after) {
			a = after[i]
		}
		if a != b {
			diff = append(diff, fmt.Sprintf("was %q, is %q", b, a))
		}
	}
	return errors.New(strings.Join(diff, "; "))
}

// want returns an error unless got equals want.
func want[T comparable](what string, got, want T) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("%s is %v, want %v", what, got, want)
}

// within returns an error if f takes longer than d.
func within(d time.Duration, what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		return fmt.Errorf("%s: not within %v", what, d)
	}
}
