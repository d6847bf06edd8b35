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
func (k *Manager) FillSpares(ctx context.Context, sid id.Snapshot, count int) error {
	img, done, err := k.image(ctx, sid)
	if err != nil {
		return err
	}
	defer done()
	if img.Images == "" {
		return nil
	}
	for k.cfg.Jails.Copies(sid) < count && k.haveMemory(img) {
		if err := k.makeSpare(ctx, img); err != nil {
			return err
		}
	}
	return nil
}

func (k *Manager) makeSpare(ctx context.Context, img jail.Image) error {
	spec, err := Overrides{}.apply(img.Jail.Spec, 1, 1)
	if err != nil {
		return err
	}
	_, err = k.cfg.Jails.Branch(ctx, img, jail.BranchOptions{
		Spec: spec, Number: 1, Op: event.OpBranch, Spare: true,
	})
	return err
}

// refill replaces used spares in the background.
func (k *Manager) refill(sid id.Snapshot) {
	if k.cfg.Spares.Count == 0 || k.ctx.Err() != nil {
		return
	}
	k.wg.Go(func() {
		k.refillMu.Lock() // one at a time, so that spares compete little with user requests
		defer k.refillMu.Unlock()
		ctx, cancel := context.WithTimeout(k.ctx, refillTime)
		defer cancel()
		warm := fault.Catch(func() error { return k.FillSpares(ctx, sid, k.cfg.Spares.Count) })
		if err := warm(); err != nil && k.ctx.Err() == nil {
			k.cfg.Log.Warn("cannot create a spare", "snapshot", sid, "err", err)
		}
	})
}

// haveMemory reports whether the memory limit permits one more spare. If not, it first drops
// the spares of the oldest snapshots.
func (k *Manager) haveMemory(img jail.Image) bool {
	for {
		k.mu.Lock()
		var total int64
		var oldest *Snapshot
		for sid, s := range k.all {
			n := int64(k.cfg.Jails.Copies(sid))
			total += n * s.Stats.MemoryBytes
			if n > 0 && sid != img.Snapshot && (oldest == nil || byAge(*s, *oldest) < 0) {
				oldest = s
			}
		}
		var need int64
		if s := k.all[img.Snapshot]; s != nil {
			need = s.Stats.MemoryBytes
		}
		k.mu.Unlock()
		if total+need <= k.cfg.Spares.MemoryMB<<20 {
			return true
		}
		if oldest == nil {
			return false
		}
		if err := k.cfg.Jails.DropCopies(k.ctx, oldest.ID); err != nil {
			k.cfg.Log.Warn("cannot remove spares", "snapshot", oldest.ID, "err", err)
			return false
		}
	}
}
