package jail

import (
	"errors"
	"testing"

	"glasshouse/fault"
)

func TestEveryStateIsInTheTableAndOnlyDeletingIsFinal(t *testing.T) {
	for s, to := range next {
		for _, n := range to {
			if _, ok := next[n]; !ok {
				t.Errorf("%s leads to %s, which is not in the table", s, n)
			}
		}
		if (len(to) == 0) != (s == Deleting) {
			t.Errorf("%s leads to %v; only deleting is the end", s, to)
		}
	}
	for s := range next {
		if s.live() && s != Spare && !s.visible() {
			t.Errorf("%s has an init but is never shown", s)
		}
	}
}

func TestMoveRefusesWhatTheTableDoesNotList(t *testing.T) {
	j := &Jail{ID: "j-1", State: Stopped}
	if err := j.move(Paused, "jail.Pause"); !errors.Is(err, fault.Conflict) || j.State != Stopped {
		t.Errorf("stopped to paused = %v, state %s; want a conflict and no change", err, j.State)
	}
	if err := j.move(Starting, "jail.Start"); err != nil || j.State != Starting {
		t.Errorf("stopped to starting = %v, state %s", err, j.State)
	}
}
