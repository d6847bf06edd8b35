package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

const (
	snapshotPath = "/fleet/snapshot"
	hasPath      = "/fleet/has" // whether a node has a snapshot
)

// copies are the copies of snapshots of other nodes, from which this node creates jails. A copy is
// removed when its snapshot is deleted, or when it was not used for an hour and no jail of this node
// was created from it.
type copies struct {
	fleet interface {
		Self() string
		Owner(ctx context.Context, k fleet.Key) (node string, err error)
		Call(ctx context.Context, node, path string, in, out any) error
		Open(ctx context.Context, node, path string, in any) (io.ReadCloser, error)
	}
	snapshots snapshotCopies
	jails     interface {
		List(ctx context.Context, o jail.ListOptions) ([]jail.Jail, error)
	}
	log *slog.Logger

	mu sync.Mutex
	// +checklocks:mu
	copying map[id.Snapshot]chan struct{} // closed when the copy has ended
	// +checklocks:mu
	used map[id.Snapshot]time.Time
}

// snapshotCopies stores the copies. *snapshot.Manager implements it.
type snapshotCopies interface {
	Get(ctx context.Context, s id.Snapshot) (snapshot.Snapshot, error)
	Import(ctx context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Snapshot, error)
	List(ctx context.Context, o snapshot.ListOptions) ([]snapshot.Snapshot, error)
	Delete(ctx context.Context, s id.Snapshot) error
}

// Fetch copies a snapshot from the node that has it, unless there is a copy. It returns
// fault.NotFound if no node has it.
func (c *copies) Fetch(ctx context.Context, s id.Snapshot) error {
	owner, err := c.fleet.Owner(ctx, fleet.Key{Kind: fleet.Snapshot, ID: string(s)})
	if err != nil {
		return fault.New(fault.Unavailable, "copies.Fetch", string(s), err)
	}
	if owner == "" || owner == c.fleet.Self() {
		return c.deleted(ctx, s)
	}
	end, err := c.begin(ctx, s)
	if err != nil {
		return err
	}
	defer end()
	if _, err := c.snapshots.Get(ctx, s); !errors.Is(err, fault.NotFound) {
		return errors.Join(err, c.check(ctx, owner, s))
	}
	began := time.Now()
	body, err := c.fleet.Open(ctx, owner, snapshotPath, s)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = c.snapshots.Import(ctx, body, snapshot.ImportOptions{Copy: true})
	if err == nil {
		c.log.Info("copied a snapshot of another node", "snapshot", s, "node", owner, "duration", time.Since(began))
	}
	return err
}

// check returns fault.NotFound if a snapshot was deleted. The index of the fleet may still have it.
// A copy can be used while the other node does not answer.
func (c *copies) check(ctx context.Context, owner string, s id.Snapshot) error {
	exists := true
	if err := c.fleet.Call(ctx, owner, hasPath, s, &exists); err != nil || exists {
		return nil
	}
	return c.deleted(ctx, s)
}

// deleted removes the copy of a snapshot that was deleted, and returns fault.NotFound.
func (c *copies) deleted(ctx context.Context, s id.Snapshot) error {
	if err := c.remove(ctx, s); err != nil {
		return err
	}
	return fault.Newf(fault.NotFound, "copies.Fetch", string(s), "no such snapshot")
}

// remove removes a copy, unless it is in use.
func (c *copies) remove(ctx context.Context, s id.Snapshot) error {
	one, err := c.snapshots.Get(ctx, s)
	switch {
	case errors.Is(err, fault.NotFound):
		return nil
	case err != nil || one.Reason != snapshot.Copied:
		return err
	}
	return c.deleteUnused(ctx, s)
}

// deleteUnused deletes a snapshot of this node, unless it is in use or was deleted.
func (c *copies) deleteUnused(ctx context.Context, s id.Snapshot) error {
	err := c.snapshots.Delete(ctx, s)
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Conflict) {
		return nil
	}
	return err
}

// begin waits until no other request copies a snapshot.
func (c *copies) begin(ctx context.Context, s id.Snapshot) (end func(), err error) {
	for {
		c.mu.Lock()
		busy := c.copying[s]
		if busy == nil {
			done := make(chan struct{})
			c.copying[s], c.used[s] = done, time.Now()
			c.mu.Unlock()
			return func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				delete(c.copying, s)
				close(done)
			}, nil
		}
		c.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

const (
	copySweepInterval = time.Minute
	copyTime          = time.Hour // how long a copy is kept after its last use
)

// sweep removes what is not needed now.
func (c *copies) sweep(ctx context.Context) {
	if err := c.Sweep(ctx, time.Now()); err != nil && ctx.Err() == nil {
		c.log.Warn("could not remove copies of snapshots of other nodes; it is repeated", "err", err)
	}
}

// Sweep removes the copies that are not needed at a time, and the automatic snapshots of jails that
// have moved away and were deleted elsewhere.
func (c *copies) Sweep(ctx context.Context, now time.Time) error {
	jails, err := c.jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return err
	}
	here, origins := map[id.Jail]bool{}, map[id.Snapshot]bool{}
	for _, j := range jails {
		here[j.ID] = true
		if j.Origin != nil {
			origins[j.Origin.Snapshot] = true
		}
	}
	return errors.Join(c.sweepCopies(ctx, origins, now), c.sweepAutomatic(ctx, here))
}

// Leave removes the copies from which no jail of this node was created. A daemon without a fleet calls
// it, because nothing else removes the copies that it made in a fleet.
func (c *copies) Leave(ctx context.Context) error {
	jails, err := c.jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return err
	}
	list, err := c.snapshots.List(ctx, snapshot.ListOptions{Copies: true})
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range list {
		if !slices.ContainsFunc(jails, func(j jail.Jail) bool { return j.Origin != nil && j.Origin.Snapshot == s.ID }) {
			errs = append(errs, c.deleteUnused(ctx, s.ID))
		}
	}
	return errors.Join(errs...)
}

func (c *copies) sweepAutomatic(ctx context.Context, here map[id.Jail]bool) error {
	list, err := c.snapshots.List(ctx, snapshot.ListOptions{})
	if err != nil {
		return err
	}
	deleted := map[id.Jail]bool{}
	for _, s := range list {
		if here[s.Jail.ID] || !s.Reason.Automatic() {
			continue
		}
		if _, known := deleted[s.Jail.ID]; !known {
			owner, err := c.fleet.Owner(ctx, jailKey(s.Jail.ID))
			if err != nil {
				return err
			}
			deleted[s.Jail.ID] = owner == ""
		}
		if !deleted[s.Jail.ID] {
			continue
		}
		if err := c.deleteUnused(ctx, s.ID); err != nil {
			return err
		}
	}
	return nil
}

func (c *copies) sweepCopies(ctx context.Context, origins map[id.Snapshot]bool, now time.Time) error {
	list, err := c.snapshots.List(ctx, snapshot.ListOptions{Copies: true})
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range list {
		owner, err := c.fleet.Owner(ctx, fleet.Key{Kind: fleet.Snapshot, ID: string(s.ID)})
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if owner != "" && (origins[s.ID] || c.recent(s.ID, now)) {
			continue
		}
		errs = append(errs, c.remove(ctx, s.ID))
	}
	return errors.Join(errs...)
}

// recent reports whether a copy was used within the last hour. After a restart, the hour begins
// again.
func (c *copies) recent(s id.Snapshot, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.used[s]; !ok {
		c.used[s] = now
	}
	if now.Sub(c.used[s]) < copyTime {
		return true
	}
	delete(c.used, s)
	return false
}
