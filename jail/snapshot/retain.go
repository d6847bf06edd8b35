package snapshot

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// retain removes the automatic snapshots of a jail that exceed its retention policy, and the
// oldest automatic snapshots of all jails while they exceed the disk limit. Snapshots that a
// user requested are kept. Snapshots in use are skipped until the next call.
func (ss *snapshots) retain(ctx context.Context, jid id.Jail) error {
	ss.retainMu.Lock()
	defer ss.retainMu.Unlock()
	j, err := ss.cfg.Jails.Get(ctx, jid)
	if err != nil {
		return err
	}
	list := ss.automaticOnes(jid)
	stay := keptByPolicy(list, j.Spec.Snapshots.Keep)
	removed := false
	for _, s := range list {
		if !stay[s.ID] {
			gone, err := ss.expire(ctx, s.ID)
			if err != nil {
				return fmt.Errorf("expire snapshot %s: %w", s.ID, err)
			}
			removed = removed || gone
		}
	}
	over, err := ss.enforceDiskLimit(ctx)
	if removed || over {
		_, more := ss.images.GC(ctx)
		err = errors.Join(err, more)
	}
	return err
}

// expire deletes a snapshot unless it is in use, and reports whether it was deleted.
func (ss *snapshots) expire(ctx context.Context, sid id.Snapshot) (bool, error) {
	err := ss.Delete(ctx, sid)
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// automaticOnes returns the automatic snapshots of a jail, or of all if jid is "", newest first.
func (ss *snapshots) automaticOnes(jid id.Jail) []*Snapshot {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var list []*Snapshot
	for _, s := range ss.all {
		if s.Reason.Automatic() && (jid == "" || s.Jail.ID == jid) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *Snapshot) int { return byAge(*b, *a) })
	return list
}

// keptByPolicy returns the snapshots of a list, newest first, that a policy keeps: the last
// ones, and the last one of each of the newest hours and days that have one, in UTC.
func keptByPolicy(list []*Snapshot, keep jail.Keep) map[id.Snapshot]bool {
	stay := map[id.Snapshot]bool{}
	for i, s := range list {
		if i < keep.Last {
			stay[s.ID] = true
		}
	}
	for _, period := range []struct {
		n    int
		name string
	}{{keep.Hourly, "2006-01-02 15"}, {keep.Daily, time.DateOnly}} {
		had := map[string]bool{}
		for _, s := range list {
			at := s.Created.UTC().Format(period.name)
			if !had[at] && len(had) < period.n {
				had[at] = true
				stay[s.ID] = true
			}
		}
	}
	return stay
}

// enforceDiskLimit removes the oldest automatic snapshots while all of them exceed the disk
// limit, and reports whether it removed any.
func (ss *snapshots) enforceDiskLimit(ctx context.Context) (removed bool, err error) {
	if ss.cfg.DiskMB == 0 {
		return false, nil
	}
	list := ss.automaticOnes("")
	for len(list) > 0 {
		bytes, err := ss.diskUsage(list)
		if err != nil || bytes <= ss.cfg.DiskMB<<20 {
			return removed, err
		}
		oldest := list[len(list)-1]
		list = list[:len(list)-1]
		gone, err := ss.expire(ctx, oldest.ID)
		if err != nil {
			return removed, fmt.Errorf("expire snapshot %s: %w", oldest.ID, err)
		}
		removed = removed || gone
	}
	return removed, nil
}

// diskUsage returns the space that would be freed by deleting the given snapshots. Of the
// memory images that they share, it counts only the largest shared size, once.
func (ss *snapshots) diskUsage(list []*Snapshot) (int64, error) {
	ours := map[id.Snapshot]bool{}
	for _, s := range list {
		ours[s.ID] = true
	}
	needed := ss.layersOfOthers(func(s *Snapshot) bool { return ours[s.ID] })
	var total, shared int64
	for _, s := range list {
		for _, layer := range s.Jail.Sealed {
			if needed[layer] {
				continue
			}
			needed[layer] = true
			n, err := blocks(layer)
			if err != nil && !errors.Is(err, fault.NotFound) {
				return 0, err
			}
			total += n
		}
		if !s.Memory {
			continue
		}
		u, err := ss.images.Size(filepath.Join(ss.dir(s.Jail.ID, s.ID), imagesDir))
		if errors.Is(err, fault.NotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return 0, fmt.Errorf("measure the memory images of snapshot %s: %w", s.ID, err)
		}
		total, shared = total+u.Own, max(shared, u.Shared)
	}
	return total + shared, nil
}
