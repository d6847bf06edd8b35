package kernel_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/kernel"
	"glasshouse/observe/observetest"
)

// A jail that fills its rings gets larger ones, and gives them back. No event is lost or recorded
// twice.
func TestRingsGrowAndShrink(t *testing.T) {
	kernel.SetCalmTime(t, 200*time.Millisecond)
	fake := observetest.NewFakeJail(t)
	s := kernel.New(kernel.Config{RingBytes: 64 << 10})
	defer s.Close()
	log := &observetest.Log{}
	log.Brief()
	w := attach(t, s, fake.Target(event.Selection{Syscalls: "off", Allow: []string{"getppid"}, Files: "off"}), log)
	defer w.Close()
	calls := 0
	for range 3 {
		for range 20 {
			observetest.Output(t, fake.Work("getppid", "100000"))
			calls += 100000
			if kernel.RingChunks(w) > 1 {
				break
			}
		}
		if kernel.RingChunks(w) == 1 {
			t.Fatalf("the rings have not grown after %d calls", calls)
		}
		if kernel.LargeRings(s) == 0 {
			t.Error("no memory of larger rings is counted")
		}
		for deadline := time.Now().Add(10 * time.Second); kernel.RingChunks(w) > 1 || kernel.LargeRings(s) > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("an idle jail has rings of %d chunks, and %d bytes are counted", kernel.RingChunks(w), kernel.LargeRings(s))
			}
		}
	}
	if err := w.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, lost := log.Count(event.Syscall), log.Lost(event.Syscall); got != calls || lost != 0 {
		t.Errorf("%d calls are recorded and %d lost, want %d and 0", got, lost, calls)
	}
}

// A daemon that is killed while the rings of a jail are being replaced loses nothing.
func TestKilledDaemonFindsReplacedRings(t *testing.T) {
	cfg := kernel.Config{Pin: pins(t), RingBytes: 64 << 10}
	fake := observetest.NewFakeJail(t)
	first := kernel.New(cfg)
	log := &observetest.Log{}
	target := fake.Target(event.Selection{Syscalls: "off", Allow: []string{"getppid"}, Files: "off"})
	w := attach(t, first, target, log)
	log.LimitWritten(log.Last()) // so that the first rings keep their records
	// The rings stay less than half full: the jail would be frozen, because its events are not written.
	const few, many = 100, 20000
	observetest.Output(t, fake.Work("getppid", "100"))
	if err := kernel.ExchangeRings(w, 256); err != nil {
		t.Fatal(err)
	}
	observetest.Output(t, fake.Work("getppid", "20000"))
	if err := errors.Join(w.Release(), first.Close()); err != nil {
		t.Fatal(err)
	}

	second := kernel.New(cfg)
	defer second.Close()
	after := log.After()
	target.Resumed = true
	w = attach(t, second, target, after)
	defer w.Close()
	if err := w.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(after.Events(event.Syscall, "getppid")); n != few+many || after.Gaps() > 0 {
		t.Errorf("%d calls and %d gaps are recorded, want %d and 0", n, after.Gaps(), few+many)
	}
	for deadline := time.Now().Add(10 * time.Second); kernel.RingSets(w) > 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the replaced rings are not freed")
		}
	}
}

func TestJailNeedsPIDNamespace(t *testing.T) {
	fake := observetest.NewFakeJail(t)
	s := kernel.New(kernel.Config{})
	defer s.Close()
	target := fake.Target(event.Selection{})
	target.PID = os.Getpid()
	if _, err := s.Attach(t.Context(), target, &observetest.Log{}); !errors.Is(err, fault.Unsupported) {
		t.Errorf("a jail in the host's pid namespace: got error %v, want %v", err, fault.Unsupported)
	}
}

func attach(t *testing.T, s *kernel.Source, target observe.Target, sink observe.Sink) observe.Watch {
	t.Helper()
	w, err := s.Attach(t.Context(), target, sink)
	if errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	return w
}
