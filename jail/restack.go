package jail

import (
	"context"
	"slices"

	"glasshouse/id"
)

// ReplaceLayers replaces the sealed layers from, the lowest ones of a jail without processes, by the
// equivalent layers to. It reports whether the jail uses to now.
func (br *branches) ReplaceLayers(ctx context.Context, jid id.Jail, from, to []string) (bool, error) {
	const op = "jail.ReplaceLayers"
	done := false
	_, err := br.registry.withLock(ctx, jid, op, func(ctx context.Context, _ Backend, e *entry) error {
		j := *e.jail.Load()
		if e.live.Load() != nil || j.State.live() {
			return nil
		}
		sealed, ok := ReplaceLayerSuffix(j.Sealed, from, to)
		if !ok {
			return nil
		}
		done = true
		j.Sealed = sealed
		return br.registry.save(ctx, e, j)
	})
	return done, err
}

// ReplaceLayerSuffix returns layers with the suffix from replaced by to, and whether layers had that
// suffix.
func ReplaceLayerSuffix(layers, from, to []string) ([]string, bool) {
	n := len(layers) - len(from)
	if n < 0 || len(from) == 0 || !slices.Equal(layers[n:], from) {
		return layers, false
	}
	return slices.Concat(layers[:n], to), true
}
