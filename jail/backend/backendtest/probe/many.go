package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// numbers parses the n arguments of a command.
func numbers(args []string, n int) ([]int, error) {
	if len(args) != n {
		return nil, fmt.Errorf("%d arguments, want %d", len(args), n)
	}
	var all []int
	for _, a := range args {
		v, err := strconv.Atoi(a)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// storm makes a number of getppid calls in each of a number of threads.
func storm(args []string) error {
	n, err := numbers(args, 2)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range n[1] {
		wg.Go(func() {
			runtime.LockOSThread()
			for range n[0] {
				unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
			}
		})
	}
	wg.Wait()
	return nil
}

// forks starts a number of children, one after the other.
func forks(args []string) error {
	n, err := numbers(args, 1)
	if err != nil {
		return err
	}
	for range n[0] {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		if pid == 0 { // only system calls are allowed here
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		for {
			if _, err := unix.Wait4(int(pid), nil, 0, nil); err != unix.EINTR {
				if err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

// files creates small files in a directory and removes them.
func files(args []string) error {
	n, err := numbers(args[1:], 1)
	if err != nil {
		return err
	}
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	for i := range n[0] {
		if err := os.WriteFile(strconv.Itoa(i), []byte("small"), 0o644); err != nil {
			return err
		}
	}
	for i := range n[0] {
		if err := os.Remove(strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}
