package test_test

import (
	"testing"

	"glasshouse/api/wire"
)

// A jail that is frozen when its daemon dies cannot be asked anything by the next one. It
// goes back all the same.
func TestAJailThatAnEarlierDaemonPausedGoesBack(t *testing.T) {
	h, j := counting(t)
	ctx := t.Context()
	first, err := h.TakeSnapshot(ctx, j, wire.TakeSnapshot{})
	if err != nil {
		t.Fatal(err)
	}
	h.countsOn(j, h.count(j))
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
		t.Errorf("it is %s", back.State)
	}
	h.countsOn(j, h.count(j))
}
