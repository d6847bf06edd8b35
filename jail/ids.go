package jail

import (
	"context"
	"fmt"
	"slices"

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

// claimIDs claims the ids of all recorded jails.
func (m *Manager) claimIDs(ctx context.Context, all []Jail) error {
	var used []IDRange
	for _, j := range all {
		used = append(used, j.ranges()...)
	}
	kept, err := m.cfg.IDs.Keep(ctx, used)
	if err != nil {
		return fmt.Errorf("claim host ids: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranges, m.lostIDs = kept, nil
	for _, u := range used {
		m.ids[u.First] = struct{}{}
		if !slices.ContainsFunc(kept, func(r IDRange) bool { return r.contains(u) }) {
			m.cfg.Log.Warn("another daemon on this host uses the host ids of a jail; the jail gets others when it starts the next time", "first", u.First)
			m.lostIDs = append(m.lostIDs, u)
		}
	}
	return nil
}

// reserveIDs reserves the lowest free block of host ids.
func (m *Manager) reserveIDs(ctx context.Context) (IDRange, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		if r, ok := m.freeIDsLocked(); ok {
			return r, nil
		}
		more, err := m.cfg.IDs.More(ctx)
		if err != nil {
			return IDRange{}, err
		}
		m.ranges = append(m.ranges, more)
	}
}

// freeIDsLocked reserves a block in the ranges that are already claimed.
//
// +checklocks:m.mu
func (m *Manager) freeIDsLocked() (IDRange, bool) {
	for _, r := range m.ranges {
		for n := range r.Count / idsPerJail {
			first := r.First + n*idsPerJail
			if _, used := m.ids[first]; !used {
				m.ids[first] = struct{}{}
				return IDRange{First: first, Count: idsPerJail}, true
			}
		}
	}
	return IDRange{}, false
}

// replaceLostIDs assigns other ids to a jail that does not run if another daemon has claimed
// its ids. The files do not change, because ids on disk are those in the jail.
func (m *Manager) replaceLostIDs(ctx context.Context, j *Jail) error {
	m.mu.Lock()
	lost := slices.Contains(m.lostIDs, j.IDs)
	m.mu.Unlock()
	if !lost {
		return nil
	}
	ids, err := m.reserveIDs(ctx)
	if err != nil {
		return err
	}
	j.IDs = ids
	return nil
}
