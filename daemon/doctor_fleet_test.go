package daemon

import (
	"errors"
	"testing"
	"time"

	"glasshouse/store"
)

func TestFleetProbes(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	ms := time.Millisecond
	for name, tt := range map[string]struct{ got, want, detail string }{
		"fast database":           {databaseProbe(store.Health{Latency: ms}, nil).Status, "ok", databaseProbe(store.Health{Latency: ms}, nil).Detail},
		"slow database":           {databaseProbe(store.Health{Latency: 80 * ms}, nil).Status, "warning", ""},
		"database without fsync":  {databaseProbe(store.Health{Latency: ms, Lossy: "fsync is off"}, nil).Status, "warning", ""},
		"no database":             {databaseProbe(store.Health{}, errors.New("refused")).Status, "unsupported", ""},
		"same clock":              {clockProbe(store.Health{Latency: ms, Ahead: 2 * ms}).Status, "ok", ""},
		"clock 3 s ahead":         {clockProbe(store.Health{Latency: ms, Ahead: -3 * time.Second}).Status, "ok", clockProbe(store.Health{Latency: ms, Ahead: -3 * time.Second}).Detail},
		"clock 60 s behind":       {clockProbe(store.Health{Latency: ms, Ahead: time.Minute}).Status, "warning", clockProbe(store.Health{Latency: ms, Ahead: time.Minute}).Detail},
		"new certificate":         {certificateProbe(now.Add(20*time.Hour), now).Status, "ok", ""},
		"certificate not renewed": {certificateProbe(now.Add(5*time.Hour), now).Status, "warning", ""},
		"expired certificate":     {certificateProbe(now.Add(-time.Hour), now).Status, "unsupported", ""},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: status %s, want %s", name, tt.got, tt.want)
		}
		detail := map[string]string{"fast database": "answers in 1.0 ms", "clock 3 s ahead": "3s ahead of the database", "clock 60 s behind": "1m0s behind the database"}[name]
		if tt.detail != detail {
			t.Errorf("%s: detail %q, want %q", name, tt.detail, detail)
		}
	}
	for _, p := range (&Daemon{}).probeFleet(t.Context()) {
		t.Errorf("probe %s of a daemon that shares no database, want none", p.Name)
	}
}
