package snapshot

import (
	"context"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/observe/event"
)

// SpareConfig configures the frozen spares of the newest snapshots. A branch or rewind that finds a
// spare only has to thaw it.
type SpareConfig struct {
	Count    int   // per snapshot; 0 disables spares
	MemoryMB int64 // approximate limit of all spares together
}

// refillTime bounds the creation of spares for one snapshot.
const refillTime = time.Minute

// FillSpares creates frozen spares of a snapshot until there are count of them or the memory limit
// is reached.
func (ss *snapshots) FillSpares(ctx context.Context, sid id.Snapshot, count int) error {
	img, done, err := ss.image(ctx, sid)
	if err != nil {
		return err
	}
	defer done()
	if img.Images == "" {
		return nil
	}
	for ss.cfg.Jails.Copies(sid) < count && ss.haveMemory(img) {
		if err := ss.makeSpare(ctx, img); err != nil {
			return err
		}
	}
	return nil
}

func (ss *snapshots) makeSpare(ctx context.Context, img jail.Image) error {
	spec, err := Overrides{}.apply(img.Jail.Spec, 1, 1)
	if err != nil {
		return err
	}
	_, err = ss.cfg.Jails.Branch(ctx, img, jail.BranchOptions{
		Spec: spec, Number: 1, Op: event.OpBranch, Spare: true,
	})
	return err
}

// refill replaces used spares in the background.
func (ss *snapshots) refill(sid id.Snapshot) {
	if ss.cfg.Spares.Count == 0 || ss.ctx.Err() != nil {
		return
	}
	ss.wg.Go(func() {
		ss.refillMu.Lock() // one at a time, so that spares compete little with user requests
		defer ss.refillMu.Unlock()
		ctx, cancel := context.WithTimeout(ss.ctx, refillTime)
		defer cancel()
		warm := fault.Catch(func() error { return ss.FillSpares(ctx, sid, ss.cfg.Spares.Count) })
		if err := warm(); err != nil && ss.ctx.Err() == nil {
			ss.cfg.Log.Warn("cannot create a spare", "snapshot", sid, "err", err)
		}
	})
}

// haveMemory reports whether the memory limit permits one more spare. If not, it first drops
// the spares of the oldest snapshots.
func (ss *snapshots) haveMemory(img jail.Image) bool {
	for {
		ss.mu.Lock()
		var total int64
		var oldest *Snapshot
		for sid, s := range ss.all {
			n := int64(ss.cfg.Jails.Copies(sid))
			total += n * s.Stats.MemoryBytes
			if n > 0 && sid != img.Snapshot && (oldest == nil || byAge(*s, *oldest) < 0) {
				oldest = s
			}
		}
		var need int64
		if s := ss.all[img.Snapshot]; s != nil {
			need = s.Stats.MemoryBytes
		}
		ss.mu.Unlock()
		if total+need <= ss.cfg.Spares.MemoryMB<<20 {
			return true
		}
		if oldest == nil {
			return false
		}
		if err := ss.cfg.Jails.DropCopies(ss.ctx, oldest.ID); err != nil {
			ss.cfg.Log.Warn("cannot remove spares", "snapshot", oldest.ID, "err", err)
			return false
		}
	}
}
