package jail_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
)

// Two backends clean a directory whose backend is unknown: waitingBackend needs a resource
// that holdingBackend releases.
type (
	waitingBackend struct {
		*processBackend
		free <-chan struct{}
	}
	holdingBackend struct {
		*processBackend
		free chan struct{}
	}
)

func (b waitingBackend) Clean(ctx context.Context, p jail.Plan) error {
	select {
	case <-b.free:
		return b.processBackend.Clean(ctx, p)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b holdingBackend) Clean(ctx context.Context, p jail.Plan) error {
	if ctx.Err() != nil { // the other backend must not use up its time
		return context.Cause(ctx)
	}
	select {
	case <-b.free:
	default:
		close(b.free)
	}
	return b.processBackend.Clean(ctx, p)
}

func TestStrayJailWithInterdependentBackends(t *testing.T) {
	h := newHarness(t)
	stray := filepath.Join(h.dir, "jails", string(id.NewJail()))
	if err := os.MkdirAll(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	free := make(chan struct{})
	m := jail.NewManager(jail.Config{
		Dir: filepath.Join(h.dir, "jails"), Store: h.db.Jails(), Rootfs: noRootfs{},
		Runtimes: []jail.Runtime{
			{Name: "bwrap", Backend: waitingBackend{h.backend, free}},
			{Name: "oci", Runtime: "bare", Backend: holdingBackend{h.backend, free}},
		},
		Init: backendtest.Init(t), Boot: "boot-1", Backend: "oci", Runtime: "bare",
	})
	defer m.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := m.Open(ctx); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Error("Open used its whole timeout, want both backends tried early")
	}
	if _, err := os.Stat(stray); err == nil {
		t.Error("the stray directory exists after Open")
	}
}
