package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

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

// keep sets up the named state, reports that, waits for a file that states where it runs, "source"
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
