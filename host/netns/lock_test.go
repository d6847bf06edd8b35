package netns_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/host/netns"
)

const awayMode = "GLASSHOUSE_NETNS_AWAY"

// The main goroutine begins on the main thread, and could be on another one when main begins.
func init() {
	if os.Getenv(awayMode) != "" {
		runtime.LockOSThread()
	}
}

// The main thread of the process can be in the network namespace of a jail while another thread
// locks the host's rules.
func TestLockUsesHostNamespace(t *testing.T) {
	w := newWorld(t)
	n := w.jail("away", netns.Options{})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), awayMode+"="+n.Path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// lockWhileAway locks the rules while the main thread, which calls it, is in the network at path,
// and again after its return.
func lockWhileAway(path string) error {
	if unix.Gettid() != unix.Getpid() {
		return errors.New("this is not the main thread")
	}
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	there, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	var unlock func()
	locked := make(chan error)
	go func() {
		var err error
		unlock, err = netns.Lock(unix.LOCK_EX)
		locked <- err
	}()
	if err := errors.Join(<-locked, unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)); err != nil {
		return err
	}
	defer unlock()
	if _, err := netns.Lock(unix.LOCK_EX | unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("a second caller can lock the rules as well: %v", err)
	}
	return nil
}
