package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// errHandedOver is the cause of the end of a supervision whose run continues on another node.
var errHandedOver = errors.New("another node continues the run")

// handOverTimeout limits how long HandOver waits until the other node continues the runs.
const handOverTimeout = 3 * time.Minute

// HandOver lets the daemon of another node continue the runs of a session. They continue as after
// the loss of this host, but nothing is lost: their jails are paused with a checkpoint, which the
// other node restores from the object store. The paused jails are stopped when it has. After an error
// the runs continue on this node, unless the other node has begun.
func (g *Gateway) HandOver(ctx context.Context, sid, node string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, handOverTimeout, fault.Newf(fault.Timeout, "gateway.HandOver", sid, "the other node has not continued the session within %v", handOverTimeout))
	defer cancel()
	runs, err := g.runsToHandOver(ctx, sid)
	if err != nil {
		return err
	}
	for _, r := range runs {
		stay := g.supervisions.leave(r.ID)
		if stay == nil {
			return fault.Newf(fault.Conflict, "gateway.HandOver", string(r.ID), "the run is being handed over")
		}
		defer stay()
	}
	err = g.suspend(ctx, runs)
	if err == nil {
		err = g.assignTo(ctx, sid, node, runs)
	}
	if err != nil {
		return errors.Join(err, g.continueHere(context.WithoutCancel(ctx), runs))
	}
	return g.awaitHandOver(ctx, runs)
}

// runsToHandOver returns the runs of a session that this daemon supervises.
func (g *Gateway) runsToHandOver(ctx context.Context, sid string) (runs []run.Run, err error) {
	const op = "gateway.HandOver"
	cannot := func(why string) error { return fault.Cannot(op, why, "leave the jail on its node") }
	if g.cfg.Remote == nil || g.cfg.Snapshots == nil {
		return nil, fault.Cannot(op, "the jails of agents move through the object store, and the daemon has none", "set gateway.objects for all daemons")
	}
	for _, sup := range g.supervisions.list() {
		r, err := g.cfg.Runs.Get(ctx, sup.run)
		if err != nil {
			return nil, err
		}
		if r.Session != sid || r.State.Ended() {
			continue
		}
		j, err := g.cfg.Jails.Get(ctx, r.Jail)
		if err != nil || !isDedicatedJail(j, r) {
			return nil, cannot(fmt.Sprintf("run %s of session %s has no jail of its own yet", r.ID, sid))
		}
		if ag, err := g.agentOf(r.Agent); err != nil || ag.Spawner != InJail {
			return nil, cannot(fmt.Sprintf("the agent of run %s works outside of the jail", r.ID))
		}
		if j.State != jail.Running {
			return nil, fault.Newf(fault.Conflict, op, string(j.ID), "the jail is %s", j.State)
		}
		runs = append(runs, r)
	}
	if len(runs) == 0 {
		return nil, cannot("the jail belongs to an agent, and no run of its session is active here")
	}
	return runs, nil
}

// suspend pauses runs with a checkpoint in the object store, and ends their supervision.
func (g *Gateway) suspend(ctx context.Context, runs []run.Run) error {
	for _, r := range runs {
		c, err := g.checkpointAndPause(ctx, r.ID, "moving to another node", "gateway", nil, true)
		if err != nil {
			return fmt.Errorf("take a checkpoint of run %s: %w", r.ID, err)
		}
		if c.Snapshot == "" {
			return fault.Newf(fault.Unsupported, "gateway.HandOver", string(r.Jail), "%s", c.Reason)
		}
		if err := g.storeNewest(ctx, r.ID); err != nil {
			return err
		}
		now, err := g.cfg.Runs.Get(ctx, r.ID)
		if err == nil && now.Remote != c.ID {
			err = fault.Newf(fault.Conflict, "gateway.HandOver", string(r.ID), "the run changed while it was copied; try again")
		}
		if err != nil {
			return err
		}
	}
	for _, r := range runs {
		if err := g.supervisions.stop(ctx, r.ID); err != nil {
			return err
		}
	}
	return nil
}

// assignTo lets a node continue the runs of a session when this daemon executes no step of them: a model
// may still be answering, and its answer is stored for the repeated request.
func (g *Gateway) assignTo(ctx context.Context, sid, node string, runs []run.Run) error {
	for {
		for _, r := range runs {
			if err := g.cfg.Runs.Release(ctx, r.ID); err != nil {
				return err
			}
		}
		done, err := g.cfg.Runs.Assign(ctx, sid, node)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// continueHere continues runs that were not handed over.
func (g *Gateway) continueHere(ctx context.Context, runs []run.Run) (err error) {
	for _, r := range runs {
		if _, rerr := g.cfg.Jails.Resume(ctx, r.Jail); rerr != nil && !errors.Is(rerr, fault.Conflict) {
			err = errors.Join(err, fmt.Errorf("resume jail %s: %w", r.Jail, rerr))
		}
	}
	return err
}

// awaitHandOver waits until another node has restored the jails of runs, and stops those of this node.
func (g *Gateway) awaitHandOver(ctx context.Context, runs []run.Run) error {
	for _, r := range runs {
		for {
			now, err := g.cfg.Runs.Get(ctx, r.ID)
			if err == nil && (now.Jail != r.Jail || now.State.Ended()) {
				break
			}
			select {
			case <-ctx.Done():
				return errors.Join(context.Cause(ctx), err)
			case <-time.After(100 * time.Millisecond):
			}
		}
		g.endpoints.release(r.Jail, r.ID)
		if err := g.stopJail(context.WithoutCancel(ctx), r.Jail); err != nil {
			g.cfg.Log.Warn("could not stop the jail of a run that another node continues", "run", r.ID, "jail", r.Jail, "err", err)
		}
	}
	return nil
}

// leave keeps this daemon from supervising a run, which is about to leave it, until stay is called. It
// returns nil if the run is about to leave already.
func (su *supervisions) leave(r id.Run) (stay func()) {
	su.mu.Lock()
	defer su.mu.Unlock()
	if su.leaving[r] {
		return nil
	}
	su.leaving[r] = true
	return func() {
		su.mu.Lock()
		delete(su.leaving, r)
		su.mu.Unlock()
		su.Wake()
	}
}

// stop ends the supervision of a run and waits for its end.
func (su *supervisions) stop(ctx context.Context, r id.Run) error {
	for {
		sup := su.of(r)
		if sup == nil {
			return nil
		}
		sup.end(errHandedOver)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
