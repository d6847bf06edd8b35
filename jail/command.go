package jail

import (
	"context"

	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// Commands is notified of the commands that clients run in jails whose Spec.Snapshots refers
// to commands. Spec.Command is not included.
type Commands interface {
	// Before is called before a command is started. The start waits for its return.
	Before(ctx context.Context, jid id.Jail, argv []string)

	// After is called when a command has ended.
	After(ctx context.Context, jid id.Jail, argv []string)
}

// execNotifying is like exec, but also notifies the Commands of the Config.
func (xs *execs) execNotifying(ctx context.Context, e *entry, r ExecRequest, o *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	if _, err := e.running("jail.Exec"); err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	j := *e.jail.Load()
	req, err := xs.execMessage(j, r)
	if err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	if len(j.Spec.Snapshots.Before) > 0 {
		xs.cfg.Commands.Before(ctx, j.ID, req.Argv)
	}
	s, st, err := xs.exec(ctx, e, r, o)
	if l := e.live.Load(); err == nil && l != nil && j.Spec.Snapshots.After == AfterExec {
		xs.wg.Go(func() {
			if _, err := l.ctl.Wait(xs.ctx, st.ID); err == nil {
				xs.cfg.Commands.After(xs.ctx, j.ID, req.Argv)
			}
		})
	}
	return s, st, err
}
