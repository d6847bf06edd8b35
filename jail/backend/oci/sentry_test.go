package oci_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/backend/oci"
	"glasshouse/jail/init/control"
)

// sentry returns a backend with a gVisor that supports checkpoints, and one jail.
func sentry(t *testing.T) (*host, *oci.Backend, jail.Plan, jail.Instance) {
	t.Helper()
	h := newHost(t)
	b := ready(t, h, "runsc")
	if err := b.CanCheckpoint(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	p := h.plan(t, b)
	i, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	return h, b, p, i
}

// answers opens a jail as the next daemon does and checks that init answers.
func answers(t *testing.T, b *oci.Backend, p jail.Plan) {
	t.Helper()
	i, err := b.Open(t.Context(), p)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer i.Close()
	if err := i.Thaw(t.Context()); err != nil {
		t.Fatalf("Thaw: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := control.Dial(i.Control()).WaitReady(ctx); err != nil {
		t.Errorf("init does not answer: %v", err)
	}
}

func TestPauseInterruptedByCrashIsRecovered(t *testing.T) {
	t.Run("before the kernel was asked", func(t *testing.T) {
		h, _, p, i := sentry(t)
		if err := errors.Join(i.Freeze(t.Context()), oci.Stilling(i), i.Close()); err != nil {
			t.Fatal(err)
		}
		answers(t, h.daemon("runsc"), p)
	})
	t.Run("before it was noted that it is", func(t *testing.T) {
		h, b, p, i := sentry(t)
		if err := errors.Join(i.Freeze(t.Context()), b.Stabilize(t.Context(), p, i), oci.Stilling(i), i.Close()); err != nil {
			t.Fatal(err)
		}
		answers(t, h.daemon("runsc"), p)
	})
	t.Run("after that", func(t *testing.T) {
		h, b, p, i := sentry(t)
		if err := errors.Join(i.Freeze(t.Context()), b.Stabilize(t.Context(), p, i), i.Close()); err != nil {
			t.Fatal(err)
		}
		answers(t, h.daemon("runsc"), p)
	})
}

// gVisor panics if it is resumed twice.
func TestResumeInterruptedByCrashIsNotRepeated(t *testing.T) {
	h, b, p, i := sentry(t)
	err := errors.Join(i.Freeze(t.Context()), b.Stabilize(t.Context(), p, i), oci.StartSentry(t.Context(), i), i.Close())
	if err != nil {
		t.Fatal(err)
	}
	answers(t, h.daemon("runsc"), p)
}

func TestIsolatedGVisorJailKeepsItsNetwork(t *testing.T) {
	h, b, p, i := sentry(t)
	dir := t.TempDir()
	if err := errors.Join(control.Dial(i.Control()).Park(t.Context(), 20*time.Second), i.Freeze(t.Context()), b.Stabilize(t.Context(), p, i), b.Dump(t.Context(), p, i, dir)); err != nil {
		t.Fatal(err)
	}
	other := h.plan(t, b, func(p *jail.Plan) { p.Network = jail.Proxied })
	if _, err := b.Restore(t.Context(), other, dir); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("Restore with another network = %v, want fault.Unsupported and a remedy", err)
	}
}
