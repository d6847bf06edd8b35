package oci_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/backend/oci"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
)

// A word is a secret of a test.
type word string

func (w word) Name() string  { return "WORD" }
func (w word) Bytes() []byte { return []byte(w) }
func (w word) Zero()         {}

// Whoever forgets to hide the secrets of a jail gets no images of it.
func TestAJailThatSeesItsSecretsIsNotWrittenDown(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		if runtimeOf(t) == "runsc" {
			return // has none
		}
		if err := b.CanCheckpoint(t.Context()); err != nil {
			t.Skip(err)
		}
		p := h.plan(t, b)
		inst, err := b.Create(t.Context(), p)
		must(t, err)
		defer inst.Close()
		holder := inst.(jail.SecretHolder)
		must(t, holder.ShowSecrets(t.Context(), []jail.SecretFile{{Secret: word("one")}}))
		must(t, b.Dumpable(t.Context(), p, inst))
		must(t, control.Dial(inst.Control()).Park(t.Context(), time.Second))
		must(t, inst.Freeze(t.Context()))
		must(t, b.Steady(t.Context(), p, inst))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.Dump(ctx, p, inst, images(t, "first")); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "secrets") {
			t.Errorf("Dump = %v, want a conflict", err)
		}
		must(t, holder.HideSecrets(t.Context()))
		must(t, b.Dumpable(t.Context(), p, inst))
		must(t, b.Dump(ctx, p, inst, images(t, "second")))
	})
}

func images(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	must(t, os.Mkdir(dir, 0o700))
	return dir
}
