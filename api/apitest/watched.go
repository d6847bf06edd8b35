package apitest

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
)

// Watched is an api.Observed with real event logs, whose events the test appends.
type Watched struct {
	t     testing.TB
	jails *Jails
	dir   string

	mu sync.Mutex
	// +checklocks:mu
	logs map[id.Jail]*eventlog.Log
}

// Watch returns event logs for jails. The cleanup of t closes them.
func Watch(t testing.TB, jails *Jails) *Watched {
	t.Helper()
	w := &Watched{t: t, jails: jails, dir: t.TempDir(), logs: map[id.Jail]*eventlog.Log{}}
	t.Cleanup(func() {
		w.mu.Lock()
		open := slices.Collect(maps.Keys(w.logs))
		w.mu.Unlock()
		for _, j := range open {
			w.Close(j)
		}
	})
	return w
}

// Log implements api.Observed.
func (w *Watched) Log(ctx context.Context, j id.Jail) (*eventlog.Log, error) {
	if _, err := w.jails.Get(ctx, j); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if l, ok := w.logs[j]; ok {
		return l, nil
	}
	if err := os.MkdirAll(w.logDir(j), 0o700); err != nil {
		return nil, err
	}
	l := eventlog.New(eventlog.Config{Dir: filepath.Join(w.logDir(j), "events"), Jail: j})
	if err := l.Open(); err != nil {
		return nil, err
	}
	w.logs[j] = l
	return l, nil
}

func (w *Watched) logDir(j id.Jail) string { return filepath.Join(w.dir, string(j)) }

// Status implements api.Observed.
func (w *Watched) Status(id.Jail) map[string]wire.Source {
	return map[string]wire.Source{"kernel": {Seen: 7, Throttled: 1}}
}

// Packets implements api.Observed.
func (w *Watched) Packets(j id.Jail) ([]string, error) {
	return filepath.Glob(filepath.Join(w.logDir(j), "packets*.pcapng"))
}

// PutPackets creates a capture file of a jail.
func (w *Watched) PutPackets(j id.Jail, name string, data []byte) {
	w.t.Helper()
	if err := os.MkdirAll(w.logDir(j), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.logDir(j), name), data, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// Append appends events to the log of a jail.
func (w *Watched) Append(j id.Jail, es ...event.Event) {
	w.t.Helper()
	l, err := w.Log(context.Background(), j)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range es {
		l.Append(&es[i])
	}
	if err := l.Flush(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

// Close closes the log of a jail, as its deletion does.
func (w *Watched) Close(j id.Jail) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.logs[j].Close(); err != nil {
		w.t.Errorf("close the log of %s: %v", j, err)
	}
	delete(w.logs, j)
}
