package client_test

import (
	"errors"
	"testing"

	"glasshouse/api/apitest"
	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
)

func TestSnapshots(t *testing.T) {
	d := start(t, apitest.New())
	ctx := t.Context()
	j := d.running(t)
	s, err := d.TakeSnapshot(ctx, j, wire.TakeSnapshot{Name: "base"})
	if err != nil || s.Jail != j || s.Name != "base" {
		t.Fatalf("TakeSnapshot = %+v, %v", s, err)
	}
	if got, err := d.Snapshot(ctx, s.ID); err != nil || got.ID != s.ID || got.Usage == nil {
		t.Errorf("Snapshot = %+v, %v; want usage", got, err)
	}
	made, err := d.BranchSnapshot(ctx, s.ID, wire.Branch{Count: 2, Overrides: wire.Overrides{Name: "try"}})
	if err != nil || len(made.Jails) != 2 || made.Jails[1].Name != "try-2" {
		t.Fatalf("BranchSnapshot = %+v, %v", made, err)
	}
	both, err := d.BranchJail(ctx, j, wire.Branch{Count: 1})
	if err != nil || both.Snapshot == nil || len(both.Jails) != 1 {
		t.Fatalf("BranchJail = %+v, %v", both, err)
	}
	if back, err := d.RestoreSnapshot(ctx, s.ID, wire.Overrides{}); err != nil || back.Origin == nil || back.Origin.Snapshot != s.ID {
		t.Errorf("RestoreSnapshot = %+v, %v", back, err)
	}
	if back, err := d.RewindJail(ctx, j, s.ID); err != nil || back.Nearest != s.ID {
		t.Errorf("RewindJail = %+v, %v", back, err)
	}
	if n, err := d.WarmSnapshot(ctx, s.ID, 2); err != nil || n != 2 {
		t.Errorf("WarmSnapshot = %d, %v; want 2", n, err)
	}
	for range 150 { // more than one page
		if _, err := d.TakeSnapshot(ctx, j, wire.TakeSnapshot{}); err != nil {
			t.Fatal(err)
		}
	}
	other := d.running(t)
	if _, err := d.TakeSnapshot(ctx, other, wire.TakeSnapshot{}); err != nil {
		t.Fatal(err)
	}
	all, err := client.Collect(d.Snapshots(ctx, client.SnapshotFilter{}))
	if err != nil || len(all) != 153 || all[0].Usage != nil {
		t.Errorf("Snapshots = %d, %v; want 153 without usage", len(all), err)
	}
	some, err := client.Collect(d.Snapshots(ctx, client.SnapshotFilter{Jail: other, Usage: true}))
	if err != nil || len(some) != 1 || some[0].Usage == nil {
		t.Errorf("Snapshots of one jail = %+v, %v; want one with usage", some, err)
	}
	trees, err := client.Collect(d.Lineage(ctx, ""))
	if err != nil || len(trees) != 2 || len(trees[0].Snapshots) != 152 || len(trees[0].Snapshots[0].Jails) != 3 {
		t.Errorf("Lineage = %d trees, %v", len(trees), err)
	}
	if one, err := client.Collect(d.Lineage(ctx, made.Jails[0].ID)); err != nil || len(one) != 1 || one[0].ID != j {
		t.Errorf("Lineage of a branch = %+v, %v; want the tree of %s", one, err, j)
	}
	if err := d.DeleteSnapshot(ctx, s.ID); err != nil {
		t.Error(err)
	}
	if _, err := d.BranchSnapshot(ctx, s.ID, wire.Branch{Count: 1}); !errors.Is(err, fault.NotFound) {
		t.Errorf("BranchSnapshot of a deleted snapshot = %v, want not found", err)
	}
	if err := d.DeleteJailAndSnapshots(ctx, j); err != nil {
		t.Error(err)
	}
	if left, err := client.Collect(d.Snapshots(ctx, client.SnapshotFilter{})); err != nil || len(left) != 1 {
		t.Errorf("%d snapshots after deletion, %v; want only that of the other jail", len(left), err)
	}
}
