package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"filippo.io/age"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A harness is a Manager with its database, chain and key.
type harness struct {
	*run.Manager
	dir   string
	path  string // path of the database; "": in memory
	db    *store.Store
	chain *chain.Chain
	key   *age.X25519Identity
}

// newHarness returns a harness with a database in memory. change modifies the configuration of
// the Manager.
func newHarness(t testing.TB, change ...func(*run.Config)) *harness {
	t.Helper()
	return newHarnessAt(t, t.TempDir(), "", change...)
}

// newDiskHarness returns a harness whose database is a file.
func newDiskHarness(t testing.TB, change ...func(*run.Config)) *harness {
	t.Helper()
	dir := t.TempDir()
	return newHarnessAt(t, dir, filepath.Join(dir, "g.db"), change...)
}

func newHarnessAt(t testing.TB, dir, path string, change ...func(*run.Config)) *harness {
	t.Helper()
	h := &harness{dir: dir, path: path}
	var err error
	h.key, err = age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	h.open(t)
	h.Manager = h.manager(t, change...)
	return h
}

func (h *harness) open(t testing.TB) {
	t.Helper()
	var err error
	h.db, err = storetest.Open(t, h.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.db.Close() })
	key, err := chain.LoadKey(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	h.chain, err = chain.Open(t.Context(), chain.Config{Store: h.db.Chain(), Key: key, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.chain.Close() })
}

// manager opens another Manager on the same database.
func (h *harness) manager(t testing.TB, change ...func(*run.Config)) *run.Manager {
	t.Helper()
	cfg := run.Config{Store: h.db.Runs(), Chain: h.chain, Key: h.key}
	for _, c := range change {
		c(&cfg)
	}
	m, err := run.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return m
}

// must returns v and ends the test if err is not nil.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// start creates an active run.
func start(t testing.TB, m *run.Manager, q run.Request) run.Run {
	t.Helper()
	if q.Goal == "" {
		q.Goal = "tidy up"
	}
	return must(m.Create(t.Context(), q))(t)
}

func anyRun(run.Run) bool { return true }

// step begins a step and ends it as done.
func step(t testing.TB, m *run.Manager, rid id.Run, key string) run.Step {
	t.Helper()
	if _, fresh, err := m.Begin(t.Context(), rid, tool(key)); err != nil || !fresh {
		t.Fatalf("Begin(%s) = fresh %v, %v", key, fresh, err)
	}
	return must(m.End(t.Context(), rid, key, done(`"did `+key+`"`)))(t)
}

func tool(key string) run.StepRequest {
	return run.StepRequest{Key: key, Kind: run.Tool, Name: "exec", Input: json.RawMessage(`{"cmd":"` + key + `"}`)}
}

func done(output string) run.Outcome {
	return run.Outcome{State: run.StepDone, Output: json.RawMessage(output)}
}

// wantKind checks the kind of an error. what describes the call.
func wantKind(t testing.TB, what string, err error, kind fault.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s = %v, want %s", what, err, kind)
	}
}

// entries returns the bodies of the chain's entries of a run and of the given kinds.
func (h *harness) entries(t testing.TB, rid id.Run, kinds ...chain.Kind) []map[string]any {
	t.Helper()
	return h.entriesOf(t, chain.Query{Run: string(rid), Kinds: kinds})
}

func (h *harness) entriesOf(t testing.TB, q chain.Query) []map[string]any {
	t.Helper()
	list, err := h.chain.Entries(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	var bodies []map[string]any
	for _, e := range list {
		var body map[string]any
		if err := json.Unmarshal(e.Body, &body); err != nil {
			t.Fatal(err)
		}
		body["kind"], body["seq"], body["parent"], body["agent"] = e.Kind, e.Seq, e.Parent, e.Agent
		bodies = append(bodies, body)
	}
	return bodies
}

// events returns all events of a session.
func events(t testing.TB, m *run.Manager, sid string) []run.Event {
	t.Helper()
	return must(m.Events(context.Background(), sid, 0, 1000))(t)
}

// beginNew begins a step that must be new.
func (h *harness) beginNew(ctx context.Context, rid id.Run, q run.StepRequest) (run.Step, error) {
	s, fresh, err := h.Begin(ctx, rid, q)
	if err == nil && !fresh {
		err = errors.New("the step is not new")
	}
	return s, err
}
