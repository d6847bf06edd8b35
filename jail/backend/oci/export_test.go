package oci

import (
	"context"
	"errors"
	"os"
	"time"

	"glasshouse/jail"
)

// Trace makes b call f at the end of each step of Create, on the goroutine of the step.
func (b *Backend) Trace(f func(step string, took time.Duration)) { b.trace = f }

// Alone prepares a jail as Create does and calls f with the bundle and the runtime's command
// line that runs the jail in the foreground. It removes everything afterwards.
func (b *Backend) Alone(ctx context.Context, p jail.Plan, f func(argv []string, bundle string) error) error {
	defer func(f func(string, time.Duration)) { b.trace = f }(b.trace)
	b.trace = nil
	m := &builder{backend: b, plan: p, layout: layout{p.Dir}}
	m.undo.Push("remove the runtime's state", func() error { return b.removeRuntimeState(p) })
	err := m.prepare(ctx)
	if err == nil {
		err = m.makeBundle()
	}
	if err == nil {
		err = os.MkdirAll(b.state(), 0o700)
	}
	if err == nil {
		argv := b.command("", "run", "--bundle", m.layout.bundle(), string(p.ID))
		err = b.onThread(func() error { return f(argv, m.layout.bundle()) })
	}
	return errors.Join(err, m.undo.Run())
}

// LazyFrom sets the memory size in bytes from which b restores jails lazily.
func (b *Backend) LazyFrom(n int64) { b.lazyThreshold = n }

// Stilling leaves the record of a jail as a daemon does that dies while it pauses the jail.
func Stilling(i jail.Instance) error { return i.(*instance).recordSentryState(statePausing) }

// StartSentry resumes a paused jail as a daemon does that dies before it has recorded the new state.
func StartSentry(ctx context.Context, i jail.Instance) error {
	if err := i.(*instance).cgroup.Thaw(ctx); err != nil {
		return err
	}
	return i.(*instance).startSentry(ctx)
}
