package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// keepSemaphore tests an eventfd with EFD_SEMAPHORE.
func keepSemaphore([]string) (func(bool) error, error) {
	fd, err := unix.Eventfd(5, unix.EFD_SEMAPHORE)
	if err != nil {
		return nil, err
	}
	return func(bool) error {
		b := make([]byte, 8)
		_, err := unix.Read(fd, b)
		return errors.Join(err, want("a semaphore's step", b[0], 1))
	}, nil
}

// keepTraced tests a debugger and its tracee.
func keepTraced([]string) (func(bool) error, error) {
	c, err := startPart(func(*exec.Cmd) {}, "wait")
	if err != nil {
		return nil, err
	}
	calls, results := make(chan func() error), make(chan error)
	go func() {
		runtime.LockOSThread() // a tracer is a thread (ptrace(2))
		for f := range calls {
			results <- f()
		}
	}()
	calls <- func() error { return unix.PtraceSeize(c.Process.Pid) }
	if err := <-results; err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	return func(bool) error {
		calls <- func() error { return unix.PtraceInterrupt(c.Process.Pid) }
		if err := <-results; err != nil {
			return fmt.Errorf("the tracee is no longer traced: %w", err)
		}
		c.Process.Kill()
		c.Wait()
		return nil
	}, nil
}

// keepBacklog tests a connection that the server has not accepted.
func keepBacklog([]string) (func(bool) error, error) {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(unix.Bind(l, &unix.SockaddrInet4{Port: 7030, Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(l, 4)); err != nil {
		return nil, err
	}
	c, err := net.Dial("tcp", "127.0.0.1:7030")
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return nil, err
	}
	return func(bool) error {
		fd, _, err := unix.Accept(l)
		if err != nil {
			return err
		}
		b := make([]byte, 6)
		_, err = unix.Read(fd, b)
		return errors.Join(err, want("what was said", string(b), "hello\n"))
	}, nil
}

// keepWiped tests memory with MADV_WIPEONFORK, which is zero in children and must be zero in
// copies.
func keepWiped([]string) (func(bool) error, error) {
	b, err := unix.Mmap(-1, 0, 3*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	if err := unix.Madvise(b, unix.MADV_WIPEONFORK); err != nil {
		return nil, os.NewSyscallError("madvise", err)
	}
	full := bytes.Repeat([]byte{0xaa}, len(b))
	copy(b, full)
	return func(copied bool) error {
		if copied {
			return want("what is kept from copies", bytes.Count(b, []byte{0}), len(b))
		}
		return want("what is kept from copies is still there", bytes.Equal(b, full), true)
	}, nil
}

// keepRandom reports random numbers drawn after the checkpoint from an initialized generator: Go
// uses the vDSO's getrandom, whose state is in process memory.
func keepRandom([]string) (func(bool) error, error) {
	b := make([]byte, 32)
	rand.Read(b)
	return func(bool) error {
		rand.Read(b)
		return os.WriteFile(filepath.Join(keepDir, "random.drawn"), []byte(hex.EncodeToString(b)), 0o666)
	}, nil
}
