package daemon

import (
	"errors"
	"net"
	"testing"
)

// Until it calls execve, a child process has copies of all descriptors of this process.
func TestSocketHeldByStartingProgramIsAwaited(t *testing.T) {
	was, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	held, err := was.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	was.Close()
	tries := 0
	if err := again(func() error {
		if tries++; tries == 2 {
			held.Close()
		}
		l, err := net.Listen("tcp4", was.Addr().String())
		if err == nil {
			l.Close()
		}
		return err
	}); err != nil || tries < 2 {
		t.Errorf("after %d tries: %v", tries, err)
	}
	other, tries := errors.New("no descriptors left"), 0
	if err := again(func() error { tries++; return other }); err != other || tries != 1 {
		t.Errorf("after %d tries: %v", tries, err)
	}
}
