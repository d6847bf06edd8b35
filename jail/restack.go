package jail

import (
	"context"
	"slices"

	"glasshouse/id"
)

// Restack has a jail without processes stand on other layers, which show the same
// as the last of those it stands on. It reports whether the jail is one that does.
func (m *Manager) Restack(ctx context.Context, jid id.Jail, from, to []string) (bool, error) {
	const op = "jail.Restack"
	done := false
	_, err := m.change(ctx, jid, op, func(ctx context.Context, _ Backend, c *cell) error {
		j := *c.jail.Load()
		if c.live.Load() != nil || j.State.live() {
			return nil
		}
		sealed, ok := Restacked(j.Sealed, from, to)
		if !ok {
			return nil
		}
		done = true
		j.Sealed = sealed
		return m.save(ctx, c, j)
	})
	return done, err
}

// Restacked returns layers with to in the place of from, if they end with that.
func Restacked(layers, from, to []string) ([]string, bool) {
	n := len(layers) - len(from)
	if n < 0 || len(from) == 0 || !slices.Equal(layers[n:], from) {
		return layers, false
	}
	return slices.Concat(layers[:n], to), true
}
