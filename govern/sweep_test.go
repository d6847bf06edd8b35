package govern

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"glasshouse/id"
)

func TestKeysOfJailsThatAreGoneAreRemoved(t *testing.T) {
	h := newHouse(t)
	gone, there := id.NewCA(), id.NewCA()
	for _, name := range []id.CA{gone, there} {
		_, err := h.authority(name, "j-some")
		must(t, err)
	}
	must(t, os.WriteFile(filepath.Join(h.cfg.Dir, "notes.pem"), nil, 0o600))
	left := func() int {
		files, err := os.ReadDir(h.cfg.Dir)
		must(t, err)
		return len(files)
	}
	raw, err := json.Marshal(Spec{CA: there})
	must(t, err)
	broken := errors.New("the database is away")
	if err := h.Sweep(t.Context(), func(context.Context) ([]json.RawMessage, error) { return nil, broken }); !errors.Is(err, broken) || left() != 3 {
		t.Errorf("nobody knows what is used: %v, and %d of 3 files are left", err, left())
	}
	must(t, h.Sweep(t.Context(), func(context.Context) ([]json.RawMessage, error) {
		_, err := h.authority(id.NewCA(), "j-new") // of a jail that is made just now
		return []json.RawMessage{nil, raw}, err
	}))
	if left() != 3 {
		t.Errorf("%d files are left, want that of the jail, that of the new one and the notes", left())
	}
	if _, err := os.Stat(filepath.Join(h.cfg.Dir, string(gone)+".pem")); err == nil {
		t.Error("the key of a jail that is gone is there")
	}
}
