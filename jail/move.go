package jail

import (
	"context"
	"errors"
	"fmt"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe/event"
)

// A Departure says that a jail is moving to another node. Until EndMove, other operations on the
// jail return fault.Conflict.
type Departure struct {
	To    string `json:"to"`    // ID of the node
	State State  `json:"state"` // of the jail before
}

// moveOps are the operations on a jail that is moving.
var moveOps = map[string]bool{"jail.Depart": true, "jail.EndMove": true, "jail.Checkpoint": true, "jail.Rewind": true}

// checkDeparture returns fault.Conflict if a jail is moving.
func (j *Jail) checkDeparture(op string) error {
	if j.Departure == nil || moveOps[op] {
		return nil
	}
	return &fault.Error{Op: op, On: string(j.ID), Kind: fault.Conflict, Err: errors.New("the jail is moving to another node"), Remedy: "try again in a moment"}
}

// CanMove returns why a jail cannot move to another node, or nil.
func CanMove(j Jail) error {
	cannot := func(why string) error { return fault.Cannot("jail.CanMove", why, "leave the jail on its node") }
	switch {
	case len(j.Spec.Mounts) > 0 || j.Spec.Workspace != nil:
		return cannot("the jail uses directories of its host")
	case j.Spec.Network == Bridged:
		return cannot("the jail is in a network with other jails of its node")
	}
	return nil
}

// Depart records that a jail is moving to a node.
func (br *branches) Depart(ctx context.Context, jid id.Jail, to string) (Jail, error) {
	const op = "jail.Depart"
	return br.registry.withLock(ctx, jid, op, func(ctx context.Context, b Backend, e *entry) error {
		j := *e.jail.Load()
		if j.Departure != nil || j.State == Starting {
			return fault.Newf(fault.Conflict, op, string(jid), "the jail is moving or starting")
		}
		if err := CanMove(j); err != nil {
			return err
		}
		if _, ok := b.(Checkpointer); !ok {
			return fault.Cannot(op, "jails of the backend "+j.Spec.Backend+" cannot be snapshotted", "create the jail with --backend oci")
		}
		j.Departure = &Departure{to, j.State}
		return br.registry.save(ctx, e, j)
	})
}

// EndMove ends the departure of a jail. If the jail has moved, it is removed from this node, but
// keeps its grants. Otherwise it can be used here again.
func (br *branches) EndMove(ctx context.Context, jid id.Jail, moved bool) error {
	_, err := br.registry.withLock(ctx, jid, "jail.EndMove", func(ctx context.Context, b Backend, e *entry) error {
		j := *e.jail.Load()
		if j.Departure == nil {
			return fault.Newf(fault.Conflict, "jail.EndMove", string(jid), "the jail is not moving")
		}
		if moved {
			return br.lifecycle.destroy(ctx, b, e)
		}
		was := j.Departure.State
		j.Departure = nil
		l := e.live.Load()
		var err error
		switch {
		case l == nil:
		case was == Running && j.State == Paused:
			err = l.resume(ctx)
		case was == Paused && j.State == Running: // it was rewound
			err = l.pause(ctx)
		}
		if err != nil {
			return err
		}
		if l != nil {
			j.State = was
		}
		return br.registry.save(ctx, e, j)
	})
	return err
}

// An Arrival describes a jail that moves to this node.
type Arrival struct {
	State  State  // that it had
	Used   Used   // by it on the other node
	Events string // directory with its event log, which Arrive moves; "": none
}

// Arrive creates a jail that moves to this node, and whose state and record are in img. The jail is
// recorded and continues after commit has
// returned nil. If Arrive fails, this node does not have the jail.
func (br *branches) Arrive(ctx context.Context, img Image, a Arrival, commit func(ctx context.Context) error) (Jail, error) {
	const op = "jail.Arrive"
	j, state := img.Jail, a.State
	b, err := br.registry.backend(j.Spec)
	if err != nil {
		return Jail{}, err
	}
	cp, ok := b.(Checkpointer)
	if !ok {
		return Jail{}, fault.Cannot(op, "the backend "+j.Spec.Backend+" cannot make jails from snapshots", "use a jail with --backend oci")
	}
	if err := errors.Join(checkSupported(op, b, j.Spec), CanMove(j)); err != nil {
		return Jail{}, err
	}
	if _, err := br.registry.find(j.ID, op); err == nil {
		return Jail{}, fault.Newf(fault.Conflict, op, string(j.ID), "this node has the jail")
	}
	if err := br.registry.reserveName(j.Spec.Name, op); err != nil {
		return Jail{}, err
	}
	defer br.registry.releaseName(j.Spec.Name)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	// The demand of the token does not grow, although both nodes have the jail for a moment.
	reserved, err := br.registry.share(ctx, op, nil, j.Spec.Creator, (&Jail{Spec: j.Spec}).demand(), false)
	if err != nil {
		return Jail{}, err
	}
	defer reserved.release()
	j.IDs, err = br.ids.reserveIDs(ctx)
	if err != nil {
		return Jail{}, err
	}
	j.State, j.Boot, j.Link, j.Reason, j.Used = Creating, br.cfg.Boot, nil, "", a.Used
	j.Departure = &Departure{State: state} // until commit; see lifecycle.destroy
	j.InstanceID = id.NewJail()            // both nodes can be on one host
	from := source{reserved: reserved, events: a.Events, commit: commit, lineage: &Lineage{Op: event.OpMove, Snapshot: img.Snapshot, Parent: j.ID, ParentSeq: img.Seq}}
	to := Created
	if img.Images != "" && (state == Running || state == Paused) {
		to = state
		from.restore = func(ctx context.Context, p Plan) (Instance, error) { return cp.Restore(ctx, p, img.Images) }
		from.notifyResumed = func(ctx context.Context, j Jail) error { return br.observers.notifyResumed(ctx, j, img) }
	}
	e, err := br.lifecycle.createJail(ctx, b, j, from, to)
	if err != nil {
		return Jail{}, fmt.Errorf("continue jail %s on this node: %w", j.ID, err)
	}
	if l := e.live.Load(); l != nil && to == Running {
		l.restoreListener()
	}
	if state == Stopped || state == Failed {
		return br.lifecycle.Stop(ctx, j.ID, StopOptions{})
	}
	return e.withConditions(), nil
}
