package jail_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// A request that waits for the lock of a jail during its Delete returns not found.
func TestRequestQueuedBehindDeleteIsNotFound(t *testing.T) {
	ops := map[string]func(*jail.Manager, context.Context, id.Jail) error{
		"Start": func(m *jail.Manager, ctx context.Context, j id.Jail) error { _, err := m.Start(ctx, j); return err },
		"Files": func(m *jail.Manager, ctx context.Context, j id.Jail) error { _, err := m.Files(ctx, j); return err },
		"Changes": func(m *jail.Manager, ctx context.Context, j id.Jail) error {
			_, err := m.Changes(ctx, j, jail.ChangesOptions{})
			return err
		},
		"Compare": func(m *jail.Manager, ctx context.Context, j id.Jail) error {
			_, err := m.Compare(ctx, jail.Version{ID: j}, jail.Version{ID: j}, jail.ChangesOptions{})
			return err
		},
		"Changed": func(m *jail.Manager, ctx context.Context, j id.Jail) error { _, err := m.Changed(ctx, j); return err },
	}
	for name, op := range ops {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			m, s := h.scripted()
			j := h.running(m)
			begun, finish := make(chan struct{}), make(chan struct{})
			s.fail("put", func() error { s.fail("put", nil); close(begun); <-finish; return nil })
			deleted, asked := make(chan error), make(chan error)
			go func() { deleted <- m.Delete(t.Context(), j.ID) }()
			<-begun
			ctx := signallingContext{t.Context(), make(chan struct{}), new(sync.Once)}
			go func() { asked <- op(m, ctx, j.ID) }()
			<-ctx.waits
			close(finish)
			if err := <-deleted; err != nil {
				t.Errorf("Delete = %v, want success", err)
			}
			if err := <-asked; !errors.Is(err, fault.NotFound) {
				t.Errorf("%s after the Delete = %v, want not found", name, err)
			}
		})
	}
}

// signallingContext is a context that closes waits when a function waits for its end.
type signallingContext struct {
	context.Context
	waits chan struct{}
	once  *sync.Once
}

func (a signallingContext) Done() <-chan struct{} {
	a.once.Do(func() { close(a.waits) })
	return a.Context.Done()
}
