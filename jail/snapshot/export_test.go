package snapshot

import (
	"context"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
)

// FlattenAt sets flattenAt for the duration of a test.
func FlattenAt(t *testing.T, n int) {
	was := flattenAt
	flattenAt = n
	t.Cleanup(func() { flattenAt = was })
}

// TakeDue takes the snapshots that are due at now, and returns after expired ones were
// removed.
func (k *Manager) TakeDue(t *testing.T, now time.Time) {
	t.Helper()
	k.takeDue(now)
	k.Retain(t)
}

// Retain removes expired automatic snapshots.
func (k *Manager) Retain(t *testing.T) {
	t.Helper()
	for _, s := range k.automaticOnes("") {
		if err := k.retain(t.Context(), s.Jail.ID); err != nil {
			t.Error(err)
		}
	}
}

// Flatten merges all stacks with too many layers.
func (k *Manager) Flatten(ctx context.Context) error { return k.flattenDeep(ctx) }

// RetryAfter returns the time before which no automatic snapshot of a jail is tried.
func (k *Manager) RetryAfter(jid id.Jail) time.Time {
	a := k.auto(jid)
	k.automatic.mu.Lock()
	defer k.automatic.mu.Unlock()
	return a.retryAfter
}

// Kept returns which of the snapshots taken at the given times, newest first, a policy keeps.
func Kept(times []time.Time, keep jail.Keep) (stay []time.Time) {
	var list []*Snapshot
	for _, at := range times {
		list = append(list, &Snapshot{ID: id.NewSnapshot(), Created: at})
	}
	all := keptByPolicy(list, keep)
	for _, s := range list {
		if all[s.ID] {
			stay = append(stay, s.Created)
		}
	}
	return stay
}

var (
	InCommand = func(rule string, argv ...string) bool {
		return matching([]string{rule}, func(words []string) bool { return mayRun(words, argv) }) != ""
	}
	InProgram = func(rule string, argv ...string) bool {
		return matching([]string{rule}, func(words []string) bool { return matchesProgram(words, argv) }) != ""
	}
	Fits = checkHost
)

// TakeStopped takes a snapshot with a process stopped at its position.
func (k *Manager) TakeStopped(ctx context.Context, jid id.Jail, how jail.Layering, stopped *jail.StoppedProcess) (Snapshot, error) {
	return k.Take(ctx, jid, TakeOptions{Layering: how, stopped: stopped})
}
