package client

import (
	"context"
	"iter"
	"net/url"

	"glasshouse/api/wire"
	"glasshouse/id"
)

func snapshotPath(s id.Snapshot, rest string) string {
	return "/snapshots/" + url.PathEscape(string(s)) + rest
}

// TakeSnapshot takes a snapshot of a jail. It is retried if the connection breaks, and takes
// only one snapshot.
func (c *Client) TakeSnapshot(ctx context.Context, j id.Jail, r wire.TakeSnapshot) (wire.Snapshot, error) {
	var s wire.Snapshot
	err := c.once(ctx, request{method: "POST", path: jailPath(j, "/snapshot"), json: r}, &s)
	return s, err
}

// Snapshot returns a snapshot with its disk usage.
func (c *Client) Snapshot(ctx context.Context, s id.Snapshot) (wire.Snapshot, error) {
	var out wire.Snapshot
	err := c.do(ctx, request{method: "GET", path: snapshotPath(s, "")}, &out)
	return out, err
}

// SnapshotFilter selects snapshots. The zero value selects all snapshots.
type SnapshotFilter struct {
	Jail  id.Jail // only snapshots of this jail
	Usage bool    // include the disk usage of each snapshot
}

// Snapshots yields the snapshots that match f, oldest first.
func (c *Client) Snapshots(ctx context.Context, f SnapshotFilter) iter.Seq2[wire.Snapshot, error] {
	path := "/snapshots"
	if f.Jail != "" {
		path = jailPath(f.Jail, path)
	}
	return pages[wire.Snapshot](ctx, c, path, flags("usage", f.Usage))
}

// RestoreSnapshot restores a snapshot as a new jail.
func (c *Client) RestoreSnapshot(ctx context.Context, s id.Snapshot, r wire.Overrides) (wire.Jail, error) {
	var j wire.Jail
	err := c.once(ctx, request{method: "POST", path: snapshotPath(s, "/restore"), json: r}, &j)
	return j, err
}

// BranchSnapshot branches (forks) jails from a snapshot. It fails only if no jail could be
// created; made.Errors lists the other failures.
func (c *Client) BranchSnapshot(ctx context.Context, s id.Snapshot, r wire.Branch) (wire.Branches, error) {
	var made wire.Branches
	err := c.once(ctx, request{method: "POST", path: snapshotPath(s, "/branch"), json: r}, &made)
	return made, err
}

// BranchJail takes a snapshot of a jail and branches jails from it.
func (c *Client) BranchJail(ctx context.Context, j id.Jail, r wire.Branch) (wire.Branches, error) {
	var made wire.Branches
	err := c.once(ctx, request{method: "POST", path: jailPath(j, "/branch"), json: r}, &made)
	return made, err
}

// RewindJail rewinds a jail to a snapshot.
func (c *Client) RewindJail(ctx context.Context, j id.Jail, s id.Snapshot) (wire.Jail, error) {
	return c.RewindJailTo(ctx, j, wire.Rewind{Snapshot: s})
}

// RewindJailTo is like RewindJail, with all options.
func (c *Client) RewindJailTo(ctx context.Context, j id.Jail, b wire.Rewind) (wire.Jail, error) {
	return c.moveJail(ctx, j, "/rewind", b)
}

// WarmSnapshot creates frozen copies of a snapshot in advance and returns the number of
// copies that are ready.
func (c *Client) WarmSnapshot(ctx context.Context, s id.Snapshot, count int) (int, error) {
	var w wire.Warmed
	err := c.do(ctx, request{method: "POST", path: snapshotPath(s, "/warm"), json: wire.Warm{Count: count}}, &w)
	return w.Copies, err
}

// DeleteSnapshot deletes a snapshot. Data that jails and other snapshots use is kept.
func (c *Client) DeleteSnapshot(ctx context.Context, s id.Snapshot) error {
	return c.do(ctx, request{method: "DELETE", path: snapshotPath(s, "")}, nil)
}

// DeleteJailAndSnapshots deletes a jail and all its snapshots.
func (c *Client) DeleteJailAndSnapshots(ctx context.Context, j id.Jail) error {
	return c.do(ctx, request{method: "DELETE", path: jailPath(j, ""), query: flags("snapshots", true)}, nil)
}

// Lineage yields the lineage trees, or, if j is not empty, the tree that contains j.
func (c *Client) Lineage(ctx context.Context, j id.Jail) iter.Seq2[wire.LineageJail, error] {
	q := url.Values{}
	if j != "" {
		q.Set("jail", string(j))
	}
	return pages[wire.LineageJail](ctx, c, "/lineage", q)
}
