package test_test

import (
	"path/filepath"
	"testing"

	"glasshouse/api/wire"
)

// The key by which a jail's connections can be looked into is of use as long as the jail
// can come to life again.
func TestTheKeyOfAJailGoesWithItsLastSnapshot(t *testing.T) {
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
		t.Errorf("while it runs there are %d keys", n)
	}
	if err := h.DeleteJail(ctx, j.ID); err != nil {
		t.Fatal(err)
	}
	if n := keys(); n != 1 {
		t.Errorf("its snapshot can become a jail, and there are %d keys", n)
	}
	if err := h.DeleteSnapshot(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if n := keys(); n != 0 {
		t.Errorf("it is gone, and there are %d keys", n)
	}
}
