package snapshot

import (
	"context"
	"time"

	"glasshouse/event"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// Copies says how many frozen copies of the newest snapshots wait, so that a
// branch or a rewind need only thaw one.
type Copies struct {
	Count    int   // of each snapshot; 0 is none
	MemoryMB int64 // of all together, about
}

// refillTime bounds the making of one copy.
const refillTime = time.Minute

// Warm has frozen copies of a snapshot made until count wait, or there is no
// memory for more.
func (k *Keeper) Warm(ctx context.Context, sid id.Snapshot, count int) error {
	img, done, err := k.image(ctx, sid)
	if err != nil {
		return err
	}
	defer done()
	if img.Images == "" {
		return nil
	}
	for k.cfg.Jails.Copies(sid) < count && k.room(img) {
		if err := k.copy(ctx, img); err != nil {
			return err
		}
	}
	return nil
}

func (k *Keeper) copy(ctx context.Context, img jail.Image) error {
	spec, err := Overrides{}.apply(img.Jail.Spec, 1, 1)
	if err != nil {
		return err
	}
	_, err = k.cfg.Jails.Branch(ctx, img, jail.BranchOptions{
		Spec: spec, Number: 1, Op: event.OpBranch, Spare: true,
	})
	return err
}

// refill makes copies in the background in place of those that were taken.
func (k *Keeper) refill(sid id.Snapshot) {
	if k.cfg.Copies.Count == 0 || k.ctx.Err() != nil {
		return
	}
	k.wg.Go(func() {
		k.refilling.Lock() // one after the other: they never compete with what somebody waits for
		defer k.refilling.Unlock()
		ctx, cancel := context.WithTimeout(k.ctx, refillTime)
		defer cancel()
		warm := fault.Catch(func() error { return k.Warm(ctx, sid, k.cfg.Copies.Count) })
		if err := warm(); err != nil && k.ctx.Err() == nil {
			k.cfg.Log.Warn("no copy made ahead of need", "snapshot", sid, "err", err)
		}
	})
}

// room reports whether there is memory for one more copy. If there is not, those
// of the oldest snapshots go first.
func (k *Keeper) room(img jail.Image) bool {
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
		if total+need <= k.cfg.Copies.MemoryMB<<20 {
			return true
		}
		if oldest == nil {
			return false
		}
		if err := k.cfg.Jails.DropCopies(k.ctx, oldest.ID); err != nil {
			k.cfg.Log.Warn("copies not removed", "snapshot", oldest.ID, "err", err)
			return false
		}
	}
}
