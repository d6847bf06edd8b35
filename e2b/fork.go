package e2b

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// A Fork is a new sandbox, or the error that prevented it.
type Fork struct {
	Sandbox Sandbox
	Err     error
}

// maxForks is the maximum number of sandboxes per call.
const maxForks = 100

// Fork creates count independent copies of a running sandbox, which keeps running. Single copies
// may fail.
func (s *Sandboxes) Fork(ctx context.Context, team id.Token, sandbox string, count int, d time.Duration) ([]Fork, error) {
	if err := (CreateOptions{Timeout: d}).check(); err != nil {
		return nil, err
	}
	if count < 1 || count > maxForks {
		return nil, invalid("count must be between 1 and %d", maxForks)
	}
	c, err := s.find(team, sandbox)
	if err != nil {
		return nil, err
	}
	var of Sandbox
	var snap snapshot.Snapshot
	err = s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		if b.State != Running {
			return notRunning(sandbox)
		}
		of = b
		snap, err = s.cfg.Snapshots.Take(ctx, b.Jail, snapshot.TakeOptions{Reason: snapshot.Branched, Labels: map[string]string{labelPause: b.ID}})
		if err != nil {
			return fmt.Errorf("take the snapshot to fork from: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	forks := make([]Fork, count)
	var wg sync.WaitGroup
	for i := range forks {
		wg.Go(func() { forks[i].Sandbox, forks[i].Err = s.fork(ctx, of, snap.ID, d) })
	}
	wg.Wait()
	if err := s.dropImage(context.WithoutCancel(ctx), snap.ID); err != nil { // otherwise the next daemon removes it
		s.cfg.Log.Warn("cannot remove the snapshot of a fork", "snapshot", snap.ID, "err", err)
	}
	return forks, nil
}

func notRunning(sandbox string) error {
	return fault.Newf(fault.Conflict, "e2b.notRunning", sandbox, "Sandbox %q is not running", short(sandbox))
}

// fork creates one copy of a sandbox, with its own id and tokens.
func (s *Sandboxes) fork(ctx context.Context, of Sandbox, sid id.Snapshot, d time.Duration) (Sandbox, error) {
	b := of
	b.ID, b.State, b.Jail, b.Timeout, b.Image = newID(), Creating, "", d, ""
	b.Metadata, b.Env = maps.Clone(of.Metadata), maps.Clone(of.Env)
	if of.Token != "" {
		b.Token = newToken()
	}
	b.addTrafficToken()
	return s.launch(ctx, b, func(ctx context.Context, b Sandbox) (jail.Jail, error) { return s.fromSnapshot(ctx, sid, b) })
}
