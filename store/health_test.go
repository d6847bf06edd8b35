package store_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/store/postgrestest"
)

func TestHealth(t *testing.T) {
	if h := got(open(t, filepath.Join(t.TempDir(), "g.db")).Health(t.Context()))(t); h.Latency <= 0 || h.Ahead != 0 || h.Lossy != "" {
		t.Errorf("Health of SQLite = %+v, want only a latency", h)
	}
	h := got(open(t, postgrestest.Start(t).URL(t)).Health(t.Context()))(t)
	if h.Latency <= 0 || h.Latency > time.Minute || h.Ahead.Abs() > h.Latency {
		t.Errorf("Health = %+v, want the clock of the host within the latency", h)
	}
	// Test servers do not write to disk.
	if !strings.Contains(h.Lossy, "fsync is off") {
		t.Errorf("Health of a server without fsync = %q, want a reason", h.Lossy)
	}
}
