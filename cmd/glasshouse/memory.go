package main

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// noHugePages keeps the kernel from merging pages of the Go heap into huge pages
// (runtime/extern.go).
const noHugePages = "disablethp=1"

// The main goroutine stays on the first thread of the process until withoutHugePages returns.
// If another thread calls execve, the first one ends before the process has its new memory
// (fs/exec.c, de_thread), and /proc/PID/exe cannot be read, as if the daemon had ended.
func init() { runtime.LockOSThread() }

// withoutHugePages restarts the daemon with a heap without transparent huge pages. To make
// one, khugepaged takes the process's mmap_lock and has the lowest priority (nice 19,
// mm/khugepaged.c). On a processor that jails keep busy it held the lock for up to 16 s;
// every page fault of the daemon waited, and records of jails were lost.
//
// The runtime reads the setting only when a program starts. The process remains the same.
func withoutHugePages() {
	defer runtime.UnlockOSThread()
	settings := os.Getenv("GODEBUG")
	if !slices.Contains(os.Args[1:], "serve") || strings.Contains(settings, "disablethp=") {
		return
	}
	if settings != "" {
		settings += ","
	}
	os.Setenv("GODEBUG", settings+noHugePages)
	// If it fails, the daemon runs as it would have without.
	_ = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}
