package gateway

import (
	"testing"
	"time"
)

func TestSaverIsNotDueBeforeInit(t *testing.T) {
	var s saver
	want := AutosaveSettings{Steps: 2, Every: time.Minute}
	if reason, due := s.due(want, 100, time.Now()); due {
		t.Errorf("due before initSaver: %s, want not due", reason)
	}
	s.at, s.steps = time.Now(), 99
	if reason, due := s.due(want, 100, time.Now()); due {
		t.Errorf("due after 1 of 2 steps: %s, want not due", reason)
	}
	if reason, due := s.due(want, 101, time.Now()); !due || reason != "after 2 steps" {
		t.Errorf("due after 2 steps = %q, %v, want \"after 2 steps\", true", reason, due)
	}
}
