package gvisor

import (
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
)

// connect starts a watch that reads from a socket, and returns a function that sends datagrams to
// it and one that ends it and returns the events.
func connect(t *testing.T) (w *watch, send func(...[]byte), end func() string) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	b, p := newPage(t, event.Selection{OnOverload: "count", Files: "off"})
	b.clock = clock{}
	w = &watch{source: &Source{}, book: b, sink: p, bell: bell, done: make(chan struct{})}
	w.changed.L = &w.mu
	slots, err := newSlots()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{conn: &conn{fd: fds[0], slots: slots}, choice: b.choice}
	go func() {
		defer close(w.done)
		w.read(s)
	}()
	send = func(datagrams ...[]byte) {
		for _, d := range datagrams {
			if _, err := unix.Write(fds[1], d); err != nil {
				t.Error(err)
			}
		}
	}
	end = sync.OnceValue(func() string {
		unix.Close(fds[1])
		<-w.done
		s.conn.Close()
		unix.Close(bell)
		return p.b.String()
	})
	t.Cleanup(func() { end() })
	return w, send, end
}

// TestDetailPointOfSlowThreadIsWaitedFor checks that the details of a call are recorded even if the
// host does not schedule its thread for some time.
func TestDetailPointOfSlowThreadIsWaitedFor(t *testing.T) {
	w, send, end := connect(t)
	send(datagram(kindRaw, 0, at(7, 7, 1), enters("openat", 9)), datagram(kindRaw, 0, at(7, 7, 2), enters("openat", 9), exits(4)))
	time.Sleep(5 * drainGrace)
	send(datagram(kindOpen, 0, at(7, 7, 3), exits(4), num(3, nr("openat")), text(6, "/x")))
	if err := w.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := end(); !strings.Contains(got, "openat(9) = 4") || strings.Contains(got, "unresolved") || !strings.Contains(got, "/x") {
		t.Errorf("events:\n%s", got)
	}
}

// TestDrainDoesNotWaitForBusyJail checks that neither an outstanding detail point, which a frozen
// thread does not send, nor the points of other threads delay a drain for long.
func TestDrainDoesNotWaitForBusyJail(t *testing.T) {
	w, send, end := connect(t)
	send(datagram(kindRaw, 0, at(7, 7, 1), enters("openat", 9)), datagram(kindRaw, 0, at(7, 7, 2), enters("openat", 9), exits(4)))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				send(datagram(kindRaw, 0, at(8, 8, 1), enters("openat", 9)), datagram(kindRaw, 0, at(8, 8, 2), enters("openat", 9), exits(5)))
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	start := time.Now()
	err := w.Drain(t.Context())
	took := time.Since(start)
	close(stop)
	<-stopped
	if err != nil || took > detailTime/2 {
		t.Errorf("drain took %s, %v", took, err)
	}
	if got := end(); !strings.Contains(got, "openat(9) = 4 in") {
		t.Errorf("events:\n%.200s", got)
	}
}
