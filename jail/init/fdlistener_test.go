package jailinit_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/control"
)

// startWithFDListener starts an init that listens with an fdListener.
func startWithFDListener(t *testing.T) (j *jail, address string) {
	t.Helper()
	dir := t.TempDir()
	address = filepath.Join(dir, "init.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	datagrams := os.NewFile(uintptr(fd), "datagrams")
	defer datagrams.Close()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: address}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Stdin = datagrams
	return startIn(t, dir, cmd, "TEST_INIT_FDLISTENER=1"), address
}

func TestFDListenerAccepts(t *testing.T) {
	j, _ := startWithFDListener(t)
	if out, _, status := j.run(sh("cat; echo out")); out != "out\n" || status.Code != 0 {
		t.Errorf("output = %q, code %d; want out and 0", out, status.Code)
	}
	var all sync.WaitGroup
	for range 32 { // more than the queue of the datagram socket
		all.Go(func() {
			if out, _, _ := j.run(sh("echo out")); out != "out\n" {
				t.Errorf("output = %q, want out", out)
			}
		})
	}
	all.Wait()
}

func TestFDListenerIgnoresInvalidDatagrams(t *testing.T) {
	j, address := startWithFDListener(t)
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	to := &unix.SockaddrUnix{Name: address}
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	null := int(file.Fd())
	for _, rights := range [][]byte{nil, unix.UnixRights(null), unix.UnixRights(null, null, null, null)} {
		if err := unix.Sendmsg(s, []byte("a datagram that is longer than the buffer"), rights, to, 0); err != nil {
			t.Fatal(err)
		}
	}
	if out, _, _ := j.run(sh("echo out")); out != "out\n" {
		t.Errorf("output after invalid datagrams = %q, want out", out)
	}
	before := j.descriptors()
	for range 100 {
		if err := unix.Sendmsg(s, []byte{0}, unix.UnixRights(null, null), to, 0); err != nil {
			t.Fatal(err)
		}
	}
	j.run(sh("true"))
	if after := j.descriptors(); after > before+5 {
		t.Errorf("descriptors of init: %d before, %d after", before, after)
	}
}

// descriptors returns the number of open descriptors of init.
func (j *jail) descriptors() int {
	j.t.Helper()
	entries, err := os.ReadDir("/proc/" + itoa(j.cmd.Process.Pid) + "/fd")
	if err != nil {
		j.t.Fatal(err)
	}
	return len(entries)
}

func TestFDListenerWithoutInit(t *testing.T) {
	j, address := startWithFDListener(t)
	j.cmd.Process.Kill()
	j.cmd.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := control.Dial(address).Hello(ctx); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Hello = %v, want unavailable", err)
	}
}
