package oci

import (
	"context"
	"errors"
	"os"
	"time"

	"glasshouse/jail"
)

// Trace has b tell f of each step of Create, at its end, from the goroutine that
// took it.
func (b *Backend) Trace(f func(step string, took time.Duration)) { b.trace = f }

// Alone prepares a jail as Create does and calls f with the runtime's command
// line that runs it in the foreground, and its bundle. It leaves nothing behind.
func (b *Backend) Alone(ctx context.Context, p jail.Plan, f func(argv []string, bundle string) error) error {
	defer func(f func(string, time.Duration)) { b.trace = f }(b.trace)
	b.trace = nil
	m := &builder{backend: b, plan: p, layout: layout{p.Dir}}
	m.undo.Push("remove the runtime's notes", func() error { return b.removeRuntimeState(p) })
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

// LazyFrom has b make jails without their memory if that is at least n bytes.
func (b *Backend) LazyFrom(n int64) { b.lazyThreshold = n }

// Stilling leaves the record of a jail as a daemon does that dies while it stills it.
func Stilling(i jail.Instance) error { return i.(*instance).recordSentryState(statePausing) }
