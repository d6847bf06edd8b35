package test_test

import (
	"path/filepath"
	"testing"

	"glasshouse/api/wire"
)

// The TLS interception key of a jail is kept as long as the jail or a snapshot of it exists.
func TestInterceptionKeyIsDeletedWithLastSnapshot(t *testing.T) {
	h := open(t, "")
	ctx := t.Context()
	j := h.running(wire.CreateJail{Network: "proxy"})
	s, err := h.TakeSnapshot(ctx, j.ID, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	keys := func() int {
		h.kill()
		h.start()
		files, err := filepath.Glob(filepath.Join(h.data, "ca", "*.pem"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	if n := keys(); n != 1 {
		t.Errorf("got %d keys of a running jail, want 1", n)
	}
	if err := h.DeleteJail(ctx, j.ID); err != nil {
		t.Fatal(err)
	}
	if n := keys(); n != 1 {
		t.Errorf("got %d keys with a snapshot left, want 1", n)
	}
	if err := h.DeleteSnapshot(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if n := keys(); n != 0 {
		t.Errorf("got %d keys after the last deletion, want 0", n)
	}
}
