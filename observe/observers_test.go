package observe_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
)

// A source is a mock source with configurable results.
type source struct {
	name   string
	probe  error
	attach error

	watches, closed, released int
}

func (s *source) Name() string                { return s.name }
func (s *source) Probe(context.Context) error { return s.probe }
func (s *source) Close() error                { return nil }

func (s *source) Attach(_ context.Context, _ observe.Target, sink observe.Sink) (observe.Watch, error) {
	if s.attach != nil {
		return nil, s.attach
	}
	s.watches++
	sink.Append(&event.Event{Type: event.Proc, Op: event.OpExec, PID: 1, TID: 1, FD: -1, Exe: "/" + s.name})
	return watch{s}, nil
}

type watch struct{ s *source }

func (watch) Select(event.Selection) error { return nil }
func (watch) Mute(bool) error              { return nil }
func (watch) Drain(context.Context) error  { return nil }
func (watch) Status() observe.Status       { return observe.Status{Seen: 7} }
func (w watch) Close() error               { w.s.closed++; return nil }
func (w watch) Release() error             { w.s.released++; return nil }

// observers returns an Observers with one jail, whose directory exists.
func observers(t *testing.T, kernel, network, ptrace *source) (*observe.Observers, observe.Target) {
	t.Helper()
	dir, jail := t.TempDir(), id.NewJail()
	if err := os.Mkdir(filepath.Join(dir, string(jail)), 0o700); err != nil {
		t.Fatal(err)
	}
	o := observe.NewObservers(observe.Config{Dir: dir, Kernel: kernel, Network: network, Ptrace: ptrace})
	if err := o.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o, observe.Target{Jail: jail, Runtime: "runc", Cgroup: 1}
}

func TestTracerIsFallbackForKernel(t *testing.T) {
	none := fault.Newf(fault.Unsupported, "probe", "", "no programs here")
	kernel, network, ptrace := &source{name: "kernel", probe: none}, &source{name: "network"}, &source{name: "ptrace"}
	o, target := observers(t, kernel, network, ptrace)
	if err := o.Attach(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	st := o.Status(target.Jail)
	if st["kernel"].Err == "" || st["ptrace"].Seen != 7 || st["network"].Seen != 7 || kernel.watches != 0 {
		t.Errorf("status %+v", st)
	}
	if err := o.Attach(t.Context(), target); !errors.Is(err, fault.Conflict) {
		t.Errorf("second Attach: %v", err)
	}
	l, err := o.Log(t.Context(), target.Jail)
	if err != nil || l.Last() != 2 {
		t.Fatalf("the log ends with %d: %v", l.Last(), err)
	}
	if err := o.Detach(t.Context(), target.Jail); err != nil || ptrace.closed != 1 || network.closed != 1 || o.Status(target.Jail) != nil {
		t.Errorf("Detach: %v, closed %d and %d", err, ptrace.closed, network.closed)
	}
}

func TestNoTracerWithKernelSource(t *testing.T) {
	kernel, network, ptrace := &source{name: "kernel"}, &source{name: "network"}, &source{name: "ptrace"}
	o, target := observers(t, kernel, network, ptrace)
	if err := o.Attach(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	if kernel.watches != 1 || ptrace.watches != 0 {
		t.Errorf("%d watches of the kernel, %d of the tracer", kernel.watches, ptrace.watches)
	}
	if err := errors.Join(o.Close(), o.Close()); err != nil || kernel.released != 1 || network.released != 1 || kernel.closed != 0 {
		t.Errorf("Close: %v, released %d and %d, ended %d; want the jail released", err, kernel.released, network.released, kernel.closed)
	}
}

func TestAttachFailsWithBrokenSource(t *testing.T) {
	broken := errors.New("broken")
	kernel, network, ptrace := &source{name: "kernel"}, &source{name: "network", attach: broken}, &source{name: "ptrace"}
	o, target := observers(t, kernel, network, ptrace)
	if err := o.Attach(t.Context(), target); !errors.Is(err, broken) || kernel.closed != 1 {
		t.Errorf("Attach with a broken source: %v; the other was closed %d times, want once", err, kernel.closed)
	}
	network.attach = nil
	if err := o.Attach(t.Context(), target); err != nil {
		t.Errorf("Attach after the repair of the source: %v", err)
	}
}

func TestOnlyJailsHaveLogs(t *testing.T) {
	o, target := observers(t, &source{name: "kernel"}, &source{name: "network"}, &source{name: "ptrace"})
	for _, jail := range []id.Jail{id.NewJail(), "", "..", "../etc"} {
		if _, err := o.Log(t.Context(), jail); !errors.Is(err, fault.NotFound) {
			t.Errorf("Log(%q): %v, want not found", jail, err)
		}
	}
	if err := o.Detach(t.Context(), id.NewJail()); err != nil {
		t.Errorf("Detach of a missing jail: %v", err)
	}
	if err := errors.Join(o.Forget(target.Jail), o.Forget(target.Jail)); err != nil {
		t.Error(err)
	}
	// The files of the jail exist until the caller of Forget has removed them.
	if _, err := o.Log(t.Context(), target.Jail); !errors.Is(err, fault.NotFound) {
		t.Errorf("Log of a jail that is being removed: %v, want not found", err)
	}
}

// The usage of an idle jail is not recorded again, except when its disk has failed.
func TestDiskFailureIsRecordedForIdleJail(t *testing.T) {
	o, target := observers(t, &source{name: "kernel"}, &source{name: "network"}, &source{name: "ptrace"})
	var flags event.Flags
	target.Usage = func(_ context.Context, e *event.Event) error { e.Flags = flags; return nil }
	for _, failed := range []bool{false, true} {
		flags = 0
		if err := o.Attach(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		l, err := o.Log(t.Context(), target.Jail)
		if err != nil {
			t.Fatal(err)
		}
		before := l.Last()
		if failed {
			flags = event.ReadOnly
		}
		if err := o.Detach(t.Context(), target.Jail); err != nil {
			t.Fatal(err)
		}
		c, err := l.Read(t.Context(), eventlog.Query{After: before})
		if err != nil {
			t.Fatal(err)
		}
		var said int
		var e event.Event
		for _, err = c.Next(&e); err == nil; _, err = c.Next(&e) {
			if e.Type == event.Usage && e.Flags == event.ReadOnly {
				said++
			}
		}
		if err := c.Close(); err != nil || (said == 1) != failed {
			t.Errorf("disk failed %v: recorded %d times, %v", failed, said, err)
		}
	}
}

// TestVirtualMachineIsObservedFromItsKernel checks that the processes of the host are not observed for a
// virtual machine, and that the run time of QEMU is not taken for that of the jail.
func TestVirtualMachineIsObservedFromItsKernel(t *testing.T) {
	dir, jid := t.TempDir(), id.NewJail()
	if err := os.Mkdir(filepath.Join(dir, string(jid)), 0o700); err != nil {
		t.Fatal(err)
	}
	kernel, network, guest := &source{name: "kernel"}, &source{name: "network"}, &source{name: "guest"}
	o := observe.NewObservers(observe.Config{Dir: dir, Kernel: kernel, Network: network, Guest: guest})
	defer o.Close()
	if err := o.Attach(t.Context(), observe.Target{Jail: jid, Guest: true, Cgroup: 1, CgroupDir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	if kernel.watches > 0 || network.watches != 1 || guest.watches != 1 {
		t.Errorf("%d watches of the kernel, %d of the network and %d of the guest, want none of the kernel and one of the others", kernel.watches, network.watches, guest.watches)
	}
	if st := o.Status(jid); len(st) != 2 || st["guest"].Seen != 7 {
		t.Errorf("Status = %v, want those of the guest and the network", st)
	}
	m, err := o.Mark(t.Context(), jid)
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := o.Changed(t.Context(), jid, m); err != nil || !changed {
		t.Errorf("Changed = %v, %v, want true: it is not known", changed, err)
	}
}
