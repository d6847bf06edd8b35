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

func TestSweepRemovesUnusedKeys(t *testing.T) {
	h := newHarness(t)
	unused, used := id.NewCA(), id.NewCA()
	for _, name := range []id.CA{unused, used} {
		_, err := h.authority(name, "j-some")
		must(t, err)
	}
	must(t, os.WriteFile(filepath.Join(h.cfg.Dir, "notes.pem"), nil, 0o600))
	left := func() int {
		files, err := os.ReadDir(h.cfg.Dir)
		must(t, err)
		return len(files)
	}
	raw, err := json.Marshal(Spec{CA: used})
	must(t, err)
	broken := errors.New("database unavailable")
	if err := h.Sweep(t.Context(), func(context.Context) ([]json.RawMessage, error) { return nil, broken }); !errors.Is(err, broken) || left() != 3 {
		t.Errorf("Sweep with an unavailable database = %v, %d files left; want %v and 3", err, left(), broken)
	}
	must(t, h.Sweep(t.Context(), func(context.Context) ([]json.RawMessage, error) {
		_, err := h.authority(id.NewCA(), "j-new") // authority of a jail that is created during the sweep
		return []json.RawMessage{nil, raw}, err
	}))
	if left() != 3 {
		t.Errorf("%d files left, want 3: the used key, the new key and the notes", left())
	}
	if _, err := os.Stat(filepath.Join(h.cfg.Dir, string(unused)+".pem")); err == nil {
		t.Error("the unused key was not removed")
	}
}
