package gateway

import (
	"testing"
	"time"
)

func TestSaverIsNotDueBeforeInit(t *testing.T) {
	var s saver
	want := Saves{Steps: 2, Every: time.Minute}
	if reason, due := s.due(want, 100, time.Now()); due {
		t.Errorf("it keeps a run %s, of which it does not know when that was kept last", reason)
	}
	s.at, s.steps = time.Now(), 99
	if reason, due := s.due(want, 100, time.Now()); due {
		t.Errorf("it keeps a run %s", reason)
	}
	if reason, due := s.due(want, 101, time.Now()); !due || reason != "after 2 steps" {
		t.Errorf("after two steps: %q, %v", reason, due)
	}
}
