package test_test

import (
	"testing"

	"glasshouse/api/wire"
)

// The init of a frozen jail does not respond to the next daemon. The daemon can rewind the jail
// regardless.
func TestRewindJailPausedByEarlierDaemon(t *testing.T) {
	h, j := counting(t)
	ctx := t.Context()
	first, err := h.TakeSnapshot(ctx, j, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	h.waitCount(j, h.count(j))
	if _, err := h.PauseJail(ctx, j); err != nil {
		t.Fatal(err)
	}
	h.kill()
	h.start()
	back, err := h.RewindJail(ctx, j, first.ID)
	if err != nil {
		t.Fatal(err)
	}
	if back.State != "running" {
		t.Errorf("jail is %s, want running", back.State)
	}
	h.waitCount(j, h.count(j))
}
