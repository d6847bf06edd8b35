package test_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
)

// TestDaemonKillsDuringSnapshots kills the daemon at random moments while a jail is
// snapshotted in both ways, branched and rewound. Each acknowledged snapshot exists, each other
// one is complete or absent, and the jail continues to count.
func TestDaemonKillsDuringSnapshots(t *testing.T) {
	h, j := counting(t)
	ctx := t.Context()
	first, err := h.TakeSnapshot(ctx, j, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		busy, stop := context.WithCancel(ctx)
		var work sync.WaitGroup
		var mu sync.Mutex
		answered := map[string]bool{string(first.ID): true}
		for n := range 2 {
			work.Go(func() {
				for busy.Err() == nil {
					s, err := h.TakeSnapshot(busy, j, wire.TakeSnapshot{Layering: []string{"copied", "stacked"}[n]})
					if err != nil {
						continue
					}
					mu.Lock()
					answered[string(s.ID)] = true
					mu.Unlock()
					h.BranchSnapshot(busy, s.ID, wire.Branch{Count: 2})
				}
			})
		}
		work.Go(func() {
			for busy.Err() == nil {
				time.Sleep(100 * time.Millisecond)
				h.RewindJail(busy, j, first.ID)
			}
		})
		time.Sleep(time.Duration(200+rand.IntN(900)) * time.Millisecond)
		h.kill()
		stop()
		work.Wait()
		h.start()

		snaps, err := client.Collect(h.Snapshots(ctx, client.SnapshotFilter{}))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("round %d: %d snapshots were acknowledged, %d exist", round, len(answered), len(snaps))
		there := map[string]bool{}
		for _, s := range snaps {
			there[string(s.ID)] = true
		}
		for sid := range answered {
			if !there[sid] {
				t.Errorf("round %d: acknowledged snapshot %s is lost", round, sid)
			}
		}
		h.waitCount(j, h.count(j))
		jails, err := client.Collect(h.Jails(ctx, client.JailFilter{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range jails {
			if k.ID == j {
				continue
			}
			if k.State == "running" {
				h.waitCount(k.ID, 0)
			}
			if err := h.DeleteJail(ctx, k.ID); err != nil {
				t.Errorf("round %d: delete %s, which was %s: %v", round, k.ID, k.State, err)
			}
		}
		last := snaps[len(snaps)-1]
		made, err := h.BranchSnapshot(ctx, last.ID, wire.Branch{Count: 1})
		if err != nil {
			t.Errorf("round %d: branch of %s: %v", round, last.ID, err)
			continue
		}
		h.waitCount(made.Jails[0].ID, 0)
		if err := h.DeleteJail(ctx, made.Jails[0].ID); err != nil {
			t.Error(err)
		}
		for _, s := range snaps {
			if s.ID != first.ID {
				if err := h.DeleteSnapshot(ctx, s.ID); err != nil {
					t.Errorf("round %d: delete %s: %v", round, s.ID, err)
				}
			}
		}
	}
}
