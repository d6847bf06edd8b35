package jail

import (
	"context"

	"glasshouse/id"
)

// Changed reports whether a jail may have changed since it was last written down,
// or taken back to how it was. No is certain.
func (m *Manager) Changed(ctx context.Context, jid id.Jail) (bool, error) {
	const op = "jail.Changed"
	c, unlock, err := m.lock(ctx, jid, op)
	if err != nil {
		return true, err
	}
	defer unlock()
	l := c.live.Load()
	if l == nil || l.mark == nil || m.cfg.Observer == nil {
		return true, nil
	}
	return m.cfg.Observer.Changed(ctx, jid, *l.mark)
}

// remember notes how a jail is, for Changed, while it is frozen. Only those pay
// for it whose snapshots are taken unasked. The caller holds the cell's turn.
func (m *Manager) remember(ctx context.Context, j Jail, l *live, wanted bool) {
	l.mark = nil
	if m.cfg.Observer == nil || !wanted && !j.Spec.Snapshots.Any() {
		return
	}
	mark, err := m.cfg.Observer.Mark(ctx, j.ID)
	if err != nil { // then the next snapshot is taken though nothing may have changed
		m.cfg.Log.Debug("how a jail is was not noted", "jail", j.ID, "err", err)
		return
	}
	l.mark = &mark
}
