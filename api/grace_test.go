package api

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
)

func TestGraceOfStoppedJail(t *testing.T) {
	for body, want := range map[string]time.Duration{`{}`: 10 * time.Second, `{"grace_ms":0}`: 0, `{"grace_ms":1500}`: 1500 * time.Millisecond} {
		var b wire.StopJail
		if err := json.Unmarshal([]byte(body), &b); err != nil {
			t.Fatal(err)
		}
		if got, err := graceOf(b); err != nil || got != want {
			t.Errorf("%s: grace %v, %v, want %v", body, got, err, want)
		}
	}
	negative := int64(-1)
	if _, err := graceOf(wire.StopJail{GraceMS: &negative}); !errors.Is(err, fault.Invalid) {
		t.Errorf("a negative time: %v, want an invalid request", err)
	}
}
