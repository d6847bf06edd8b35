package apitest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// Snapshots is an api.Snapshots over Jails. It keeps only records of the snapshots, and of the
// jails created from them.
type Snapshots struct {
	Fail func(op string) error // error of an operation; for branches, op is "branch 1" and so on

	jails *Jails

	mu sync.Mutex
	// +checklocks:mu
	all []snapshot.Snapshot // oldest first
	// +checklocks:mu
	last map[id.Jail]id.Snapshot
	// +checklocks:mu
	copies map[id.Snapshot]int
	// +checklocks:mu
	gone []id.Jail // arguments of JailDeleted
}

// Snapshot returns the snapshots of jails.
func Snapshot(jails *Jails) *Snapshots {
	return &Snapshots{jails: jails, last: map[id.Jail]id.Snapshot{}, copies: map[id.Snapshot]int{}}
}

// Gone returns the jails for which JailDeleted was called.
func (k *Snapshots) Gone() []id.Jail {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.gone)
}

func (k *Snapshots) fail(op string) error {
	if k.Fail == nil {
		return nil
	}
	return k.Fail(op)
}

// Take implements api.Snapshots.
func (k *Snapshots) Take(ctx context.Context, jid id.Jail, o snapshot.TakeOptions) (snapshot.Snapshot, error) {
	j, err := k.jails.Get(ctx, jid)
	if err == nil {
		err = k.fail("take")
	}
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	s := snapshot.Snapshot{
		ID: id.NewSnapshot(), Jail: j, Name: o.Name, Labels: o.Labels, Reason: o.Reason, Trigger: o.Trigger, Created: time.Now(),
		Memory: j.State == jail.Running || j.State == jail.Paused, Seq: 7, Paused: 12345 * time.Microsecond, Layering: o.Layering,
		Stats: jail.Stats{MemoryBytes: 64 << 20, PIDs: 3}, Host: snapshot.Host{Arch: "amd64", Kernel: "6.1", CPU: "one"},
	}
	if s.Reason == "" {
		s.Reason = snapshot.Requested
	}
	if o.Stop {
		if _, err := k.jails.Stop(ctx, jid, jail.StopOptions{}); err != nil {
			return snapshot.Snapshot{}, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s.Parent = k.last[jid]
	k.all, k.last[jid] = append(k.all, s), s.ID
	return s, nil
}

// index returns the index of a snapshot in k.all. The caller holds k.mu.
//
// +checklocks:k.mu
func (k *Snapshots) index(sid id.Snapshot) (int, error) {
	i := slices.IndexFunc(k.all, func(s snapshot.Snapshot) bool { return s.ID == sid })
	if i < 0 {
		return 0, fault.Newf(fault.NotFound, "apitest.index", string(sid), "no such snapshot")
	}
	return i, nil
}

// Get implements api.Snapshots.
func (k *Snapshots) Get(_ context.Context, sid id.Snapshot) (snapshot.Snapshot, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i, err := k.index(sid)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	return k.all[i], nil
}

// List implements api.Snapshots.
func (k *Snapshots) List(_ context.Context, o snapshot.ListOptions) ([]snapshot.Snapshot, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := slices.Clone(k.all)
	if o.After != "" {
		i, err := k.index(o.After)
		if err != nil {
			return nil, fault.Fieldf("snapshot.List", "after", "snapshot %s is gone", o.After)
		}
		list = list[i+1:]
	}
	list = slices.DeleteFunc(list, func(s snapshot.Snapshot) bool { return o.Jail != "" && s.Jail.ID != o.Jail })
	if o.Limit > 0 && len(list) > o.Limit {
		list = list[:o.Limit]
	}
	return list, nil
}

// Usage implements api.Snapshots.
func (k *Snapshots) Usage(ctx context.Context, sid id.Snapshot) (snapshot.Usage, error) {
	_, err := k.Get(ctx, sid)
	return snapshot.Usage{Own: 3 << 20, Shared: 5 << 20}, err
}

// LastOf implements api.Snapshots.
func (k *Snapshots) LastOf(jid id.Jail) id.Snapshot {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last[jid]
}

// Spares implements api.Snapshots.
func (k *Snapshots) Spares(sid id.Snapshot) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.copies[sid]
}

// Delete implements api.Snapshots.
func (k *Snapshots) Delete(_ context.Context, sid id.Snapshot) error {
	if err := k.fail("delete"); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	i, err := k.index(sid)
	if err == nil {
		k.all = slices.Delete(k.all, i, i+1)
	}
	return err
}

// JailDeleted implements api.Snapshots.
func (k *Snapshots) JailDeleted(_ context.Context, jid id.Jail) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gone = append(k.gone, jid)
	return k.fail("abandoned")
}

// Restore implements api.Snapshots.
func (k *Snapshots) Restore(ctx context.Context, sid id.Snapshot, o snapshot.Overrides) (jail.Jail, error) {
	children, err := k.Branch(ctx, sid, 1, o)
	if err != nil {
		return jail.Jail{}, err
	}
	return children[0].Jail, children[0].Err
}

// Branch implements api.Snapshots.
func (k *Snapshots) Branch(ctx context.Context, sid id.Snapshot, count int, o snapshot.Overrides) ([]snapshot.BranchResult, error) {
	if count < 1 || count > snapshot.MaxBranches {
		return nil, fault.Fieldf("snapshot.Branch", "count", "%d is not between 1 and %d", count, snapshot.MaxBranches)
	}
	s, err := k.Get(ctx, sid)
	if err != nil {
		return nil, err
	}
	children := make([]snapshot.BranchResult, count)
	for i := range children {
		if children[i].Err = k.fail(fmt.Sprint("branch ", i+1)); children[i].Err == nil {
			children[i].Jail = k.branch(s, max(o.First, 1)+i, count, o)
		}
	}
	return children, nil
}

func (k *Snapshots) branch(s snapshot.Snapshot, n, count int, o snapshot.Overrides) jail.Jail {
	j := jail.Jail{
		ID: id.NewJail(), Spec: s.Jail.Spec, State: jail.Created, Created: time.Now(),
		Origin: &jail.Origin{Snapshot: s.ID, Jail: s.Jail.ID, Number: n},
	}
	if s.Memory {
		j.State = jail.Running
	}
	j.Spec.Name, j.Spec.Labels, j.Spec.Hostname = o.Name, o.Labels, o.Hostname
	if o.Name != "" && (count > 1 || o.First > 0) {
		j.Spec.Name = fmt.Sprintf("%s-%d", o.Name, n)
	}
	if o.Limits != nil {
		j.Spec.Limits = *o.Limits
	}
	if o.Creator != nil {
		j.Spec.Creator = *o.Creator
	}
	if o.Network != "" {
		j.Spec.Network = o.Network
	}
	k.jails.add(j)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last[j.ID] = s.ID
	return j
}

// BranchJail implements api.Snapshots.
func (k *Snapshots) BranchJail(ctx context.Context, jid id.Jail, count int, o snapshot.Overrides) (snapshot.Snapshot, []snapshot.BranchResult, error) {
	s, err := k.Take(ctx, jid, snapshot.TakeOptions{Reason: snapshot.Branched})
	if err != nil {
		return s, nil, err
	}
	children, err := k.Branch(ctx, s.ID, count, o)
	return s, children, err
}

// Rewind implements api.Snapshots.
func (k *Snapshots) Rewind(ctx context.Context, jid id.Jail, sid id.Snapshot, _ jail.RewindOptions) (jail.Jail, error) {
	s, err := k.Get(ctx, sid)
	if err != nil {
		return jail.Jail{}, err
	}
	to := jail.Stopped
	if s.Memory {
		to = jail.Running
	}
	j, err := k.jails.to("rewind", jid, to, jail.Created, jail.Running, jail.Paused, jail.Stopped)
	if err != nil {
		return jail.Jail{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last[jid] = sid
	return j, nil
}

// Undo implements api.Snapshots. The jail counts as changed.
func (k *Snapshots) Undo(ctx context.Context, jid id.Jail, o snapshot.UndoOptions) (jail.Jail, error) {
	sid := k.LastOf(jid)
	for n := 1; n < o.Steps && sid != ""; n++ {
		s, err := k.Get(ctx, sid)
		if err != nil {
			return jail.Jail{}, err
		}
		sid = s.Parent
	}
	if !o.Discard {
		if _, err := k.Take(ctx, jid, snapshot.TakeOptions{Reason: snapshot.Before, Trigger: "undo"}); err != nil {
			return jail.Jail{}, err
		}
	}
	return k.Rewind(ctx, jid, sid, o.RewindOptions)
}

// FillSpares implements api.Snapshots. It has a limit of three copies.
func (k *Snapshots) FillSpares(ctx context.Context, sid id.Snapshot, count int) error {
	if _, err := k.Get(ctx, sid); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.copies[sid] = min(count, 3)
	return k.fail("warm")
}
