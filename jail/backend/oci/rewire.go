package oci

import (
	"context"
	"errors"
	"fmt"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/criu"
	"glasshouse/host/netns"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

var _ jail.LinkMover = (*Backend)(nil)

// CanMoveLink implements jail.LinkMover.
func (b *Backend) CanMoveLink(p jail.Plan) error {
	if b.kind.sentry {
		return fault.Cannot("oci.MoveLink", "gVisor does not report the state of TCP connections", "rewind without keeping them, or use another runtime")
	}
	return nil
}

// MoveLink implements jail.LinkMover.
func (b *Backend) MoveLink(ctx context.Context, from jail.Plan, old jail.Instance, to jail.Plan, i jail.Instance) (_ jail.MovedLink, err error) {
	const op = "oci.MoveLink"
	was, ok := old.(*instance)
	now, alsoOK := i.(*instance)
	if !ok || !alsoOK || now.outward == nil || !to.LinkDetached || base.LinkOf(to) != base.LinkOf(from) || to.Network != from.Network {
		return nil, fault.Newf(fault.Invalid, op, string(to.ID), "the jail was not created to take over the network link of %s", from.ID)
	}
	from.LinkDetached, to.LinkDetached = false, false
	r := &rewired{b: b, from: from, to: to, old: was, conns: now.outward}
	defer func() {
		if err != nil {
			err = fmt.Errorf("hand over the network link of jail %s: %w", from.ID, errors.Join(err, r.Undo()))
		}
	}()
	// Between Pull and Plug the link is down, so packets are lost and retransmitted. With a link,
	// the kernel would answer packets for a socket that Move has not restored yet with a reset.
	if err := netns.Pull(b.networks.Path(from), b.networks.Path(to)); err != nil {
		return nil, fmt.Errorf("pull the link: %w", err)
	}
	if err := r.conns.Move(was.cgroup, b.networks.Path(from), b.networks.Path(to)); err != nil {
		return nil, fmt.Errorf("move the connections: %w", err)
	}
	if err := netns.Plug(string(base.LinkOf(to).Name), b.networks.Options(to)); err != nil {
		return nil, err
	}
	return r, nil
}

// rewired implements jail.MovedLink.
type rewired struct {
	b        *Backend
	from, to jail.Plan
	old      *instance
	conns    *criu.Connections
	resumed  bool
}

func (r *rewired) KeepConnections() (kept, closed int, err error) {
	r.resumed = true
	return r.conns.Resume(r.b.networks.Path(r.to))
}

func (r *rewired) Undo() error {
	was, now := r.b.networks.Path(r.from), r.b.networks.Path(r.to)
	unplugged, err := netns.PullBack(now, was)
	if err == nil && unplugged {
		err = netns.Plug(string(base.LinkOf(r.from).Name), r.b.networks.Options(r.from))
	}
	// An unreachable connection times out. A connection in repair mode does not.
	return errors.Join(err, r.conns.GiveBack(was, r.resumed))
}

func (r *rewired) Close() error {
	r.conns.Close()
	return nil
}

// repairLink completes a handover of the network link that was interrupted by the end of a
// daemon: the jail gets a new link, and its connections leave TCP repair mode.
func (b *Backend) repairLink(ctx context.Context, p jail.Plan, cg *cgroup.Cgroup) error {
	if b.kind.sentry || p.Network == jail.Isolated {
		return nil
	}
	mended, err := netns.RepairLink(ctx, string(base.LinkOf(p).Name), b.networks.Options(p))
	if err != nil {
		return fmt.Errorf("repair the network link of %s: %w", p.ID, err)
	}
	if !mended {
		return nil
	}
	b.log.Warn("recreated the network link of a jail after an interrupted handover", "jail", p.ID)
	return criu.EndRepair(cg, b.networks.Path(p))
}
