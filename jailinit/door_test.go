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
	"glasshouse/jailinit/control"
)

// startAtDoor starts an init that is given a door.
func startAtDoor(t *testing.T) (j *jail, address string) {
	t.Helper()
	dir := t.TempDir()
	address = filepath.Join(dir, "init.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	door := os.NewFile(uintptr(fd), "door")
	defer door.Close()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: address}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Stdin = door
	return startIn(t, dir, cmd, "TEST_INIT_DOOR=1"), address
}

func TestConnectionsComeInByTheDoor(t *testing.T) {
	j, _ := startAtDoor(t)
	if out, _, status := j.run(sh("cat; echo out")); out != "out\n" || status.Code != 0 {
		t.Errorf("a command says %q and ends with %d", out, status.Code)
	}
	var all sync.WaitGroup
	for range 32 { // more than the door's queue has room for
		all.Go(func() {
			if out, _, _ := j.run(sh("echo out")); out != "out\n" {
				t.Errorf("a command says %q", out)
			}
		})
	}
	all.Wait()
}

func TestWhoBringsNothingToTheDoorIsNobody(t *testing.T) {
	j, address := startAtDoor(t)
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
		if err := unix.Sendmsg(s, []byte("something that is longer than a word"), rights, to, 0); err != nil {
			t.Fatal(err)
		}
	}
	if out, _, _ := j.run(sh("echo out")); out != "out\n" {
		t.Errorf("after that a command says %q", out)
	}
	before := j.descriptors()
	for range 100 {
		if err := unix.Sendmsg(s, []byte{0}, unix.UnixRights(null, null), to, 0); err != nil {
			t.Fatal(err)
		}
	}
	j.run(sh("true"))
	if after := j.descriptors(); after > before+5 {
		t.Errorf("init had %d descriptors, and has %d", before, after)
	}
}

// descriptors is how many init has open.
func (j *jail) descriptors() int {
	j.t.Helper()
	entries, err := os.ReadDir("/proc/" + itoa(j.cmd.Process.Pid) + "/fd")
	if err != nil {
		j.t.Fatal(err)
	}
	return len(entries)
}

func TestADoorWithNobodyBehindItIsAnAbsentInit(t *testing.T) {
	j, address := startAtDoor(t)
	j.cmd.Process.Kill()
	j.cmd.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := control.Dial(address).Hello(ctx); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Hello = %v, want unavailable", err)
	}
}
