package jail

import (
	"context"

	"glasshouse/id"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
)

// Commands is told of the commands that somebody asks for, in jails whose
// Spec.Snapshots speaks of them. A jail's own command is not among them.
type Commands interface {
	// Before is called with a command that is not started until it returns.
	Before(ctx context.Context, jid id.Jail, argv []string)

	// After is called when a command has ended.
	After(ctx context.Context, jid id.Jail, argv []string)
}

// execTold is exec, with m.cfg.Commands told.
func (m *Manager) execTold(ctx context.Context, c *cell, r ExecRequest, o *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	if _, err := c.running("jail.Exec"); err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	j := *c.jail.Load()
	req, err := m.protocol(j, r)
	if err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	if len(j.Spec.Snapshots.Before) > 0 {
		m.cfg.Commands.Before(ctx, j.ID, req.Argv)
	}
	s, st, err := m.exec(ctx, c, r, o)
	if l := c.live.Load(); err == nil && l != nil && j.Spec.Snapshots.After == AfterExec {
		m.wg.Go(func() {
			if _, err := l.ctl.Wait(m.ctx, st.ID); err == nil {
				m.cfg.Commands.After(m.ctx, j.ID, req.Argv)
			}
		})
	}
	return s, st, err
}
