package jail

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"glasshouse/fault"
)

// HostIDs allocates host ids to a Manager that no other daemon on the host uses.
type HostIDs interface {
	// Keep claims the ranges that contain the ids of jails and releases all others. It returns
	// the claimed ranges, without ids that belong to another daemon.
	Keep(ctx context.Context, used []IDRange) (kept []IDRange, err error)

	// More claims an additional range with ids for at least one jail.
	More(ctx context.Context) (IDRange, error)
}

// fixedIDs is one range for all jails of the only Manager on the host.
type fixedIDs struct {
	first uint32
	taken bool
}

func (f *fixedIDs) Keep(_ context.Context, used []IDRange) ([]IDRange, error) { return used, nil }

func (f *fixedIDs) More(context.Context) (IDRange, error) {
	if f.taken {
		return IDRange{}, fault.Newf(fault.Exhausted, "jail.Create", "", "all %d blocks of user ids are in use", maxJails)
	}
	f.taken = true
	return IDRange{First: f.first, Count: maxJails * idsPerJail}, nil
}

// contains reports whether all ids of o are in r.
func (r IDRange) contains(o IDRange) bool {
	return r.First <= o.First && uint64(o.First)+uint64(o.Count) <= uint64(r.First)+uint64(r.Count)
}

// idBlocks are the blocks of host ids that jails have.
type idBlocks struct {
	*core

	mu sync.Mutex
	// +checklocks:mu
	used map[uint32]struct{} // first ids of the blocks in use
	// +checklocks:mu
	ranges []IDRange // host ids that jails may have
	// +checklocks:mu
	lostIDs []IDRange // recorded ids of jails that another daemon has claimed
}

// keepUsed returns the claims on ids that no jail uses.
func (ib *idBlocks) keepUsed() error {
	ib.mu.Lock()
	defer ib.mu.Unlock()
	var used []IDRange
	for first := range ib.used {
		used = append(used, IDRange{First: first, Count: idsPerJail})
	}
	if _, err := ib.cfg.IDs.Keep(context.Background(), used); err != nil {
		return fmt.Errorf("return the claims on unused host ids: %w", err)
	}
	return nil
}

// claimIDs claims the ids of all recorded jails.
func (ib *idBlocks) claimIDs(ctx context.Context, all []Jail) error {
	var used []IDRange
	for _, j := range all {
		used = append(used, j.ranges()...)
	}
	kept, err := ib.cfg.IDs.Keep(ctx, used)
	if err != nil {
		return fmt.Errorf("claim host ids: %w", err)
	}
	ib.mu.Lock()
	defer ib.mu.Unlock()
	ib.ranges, ib.lostIDs = kept, nil
	for _, u := range used {
		ib.used[u.First] = struct{}{}
		if !slices.ContainsFunc(kept, func(r IDRange) bool { return r.contains(u) }) {
			ib.cfg.Log.Warn("another daemon on this host uses the host ids of a jail; the jail gets others when it starts the next time", "first", u.First)
			ib.lostIDs = append(ib.lostIDs, u)
		}
	}
	return nil
}

// reserveIDs reserves the lowest free block of host ids.
func (ib *idBlocks) reserveIDs(ctx context.Context) (IDRange, error) {
	ib.mu.Lock()
	defer ib.mu.Unlock()
	for {
		if r, ok := ib.freeIDsLocked(); ok {
			return r, nil
		}
		more, err := ib.cfg.IDs.More(ctx)
		if err != nil {
			return IDRange{}, err
		}
		ib.ranges = append(ib.ranges, more)
	}
}

// freeIDsLocked reserves a block in the ranges that are already claimed.
//
// +checklocks:ib.mu
func (ib *idBlocks) freeIDsLocked() (IDRange, bool) {
	for _, r := range ib.ranges {
		for n := range r.Count / idsPerJail {
			first := r.First + n*idsPerJail
			if _, used := ib.used[first]; !used {
				ib.used[first] = struct{}{}
				return IDRange{First: first, Count: idsPerJail}, true
			}
		}
	}
	return IDRange{}, false
}

// replaceLostIDs assigns other ids to a jail that does not run if another daemon has claimed
// its ids. The files do not change, because ids on disk are those in the jail.
func (ib *idBlocks) replaceLostIDs(ctx context.Context, j *Jail) error {
	ib.mu.Lock()
	lost := slices.Contains(ib.lostIDs, j.IDs)
	ib.mu.Unlock()
	if !lost {
		return nil
	}
	ids, err := ib.reserveIDs(ctx)
	if err != nil {
		return err
	}
	j.IDs = ids
	return nil
}

func (ib *idBlocks) releaseIDs(r IDRange) {
	ib.mu.Lock()
	defer ib.mu.Unlock()
	delete(ib.used, r.First)
}

// releaseUnusedIDs releases the id ranges that was has and now does not have.
func (ib *idBlocks) releaseUnusedIDs(was, now Jail) {
	for _, r := range was.ranges() {
		if !slices.Contains(now.ranges(), r) {
			ib.releaseIDs(r)
		}
	}
}

// ranges returns the ranges of host ids that the jail uses. The record of a pending instance
// has none.
func (j *Jail) ranges() []IDRange {
	var all []IDRange
	if j.IDs.Count > 0 {
		all = append(all, j.IDs)
	}
	if j.Link != nil {
		all = append(all, j.Link.IDs)
	}
	return all
}
