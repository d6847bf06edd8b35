package snapshot

import (
	"context"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
)

// FlattenAt has layers merged beyond n for the length of a test.
func FlattenAt(t *testing.T, n int) {
	was := flattenAt
	flattenAt = n
	t.Cleanup(func() { flattenAt = was })
}

// Strike has the clock strike at a time, and returns when what is due is taken
// and what is not kept is gone.
func (k *Keeper) Strike(t *testing.T, now time.Time) {
	t.Helper()
	k.strike(now)
	k.Retain(t)
}

// Retain returns when the automatic snapshots that are not kept are gone.
func (k *Keeper) Retain(t *testing.T) {
	t.Helper()
	for _, s := range k.automatic("") {
		if err := k.retain(t.Context(), s.Jail.ID); err != nil {
			t.Error(err)
		}
	}
}

// Flattened returns when nothing stands on too many layers.
func (k *Keeper) Flatten(ctx context.Context) error { return k.flattenDeep(ctx) }

// Rest returns until when no automatic snapshot of a jail is tried.
func (k *Keeper) Rest(jid id.Jail) time.Time {
	a := k.auto(jid)
	k.mu.Lock()
	defer k.mu.Unlock()
	return a.rest
}

// Kept returns which of snapshots taken at these times, newest first, stay.
func Kept(times []time.Time, keep jail.Keep) (stay []time.Time) {
	var list []*Snapshot
	for _, at := range times {
		list = append(list, &Snapshot{ID: id.NewSnapshot(), Created: at})
	}
	all := kept(list, keep)
	for _, s := range list {
		if all[s.ID] {
			stay = append(stay, s.Created)
		}
	}
	return stay
}

var (
	InCommand = func(rule string, argv ...string) bool {
		return matching([]string{rule}, func(words []string) bool { return inCommand(words, argv) }) != ""
	}
	InProgram = func(rule string, argv ...string) bool {
		return matching([]string{rule}, func(words []string) bool { return inProgram(words, argv) }) != ""
	}
	Fits = fits
)

// TakeHeld takes a snapshot in which a process is where it is held.
func (k *Keeper) TakeHeld(ctx context.Context, jid id.Jail, how jail.Layering, held *jail.Held) (Snapshot, error) {
	return k.Take(ctx, jid, TakeOptions{Layering: how, held: held})
}
