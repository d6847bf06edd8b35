package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/id"
	"glasshouse/internal/killtest"
	"glasshouse/policy/chain"
	"glasshouse/store"
)

// A killSwitch simulates a process that is killed at one of its writes. That write may or may
// not be applied; all later ones fail.
type killSwitch struct {
	left   int  // number of writes up to the kill
	after  bool // the last write is applied
	killed bool
}

var errKilled = errors.New("killed")

// do performs a write unless the process was killed.
func (d *killSwitch) do(write func() error) error {
	if d.killed {
		return errKilled
	}
	if d.left--; d.left > 0 {
		return write()
	}
	d.killed = true
	if d.after {
		if err := write(); err != nil {
			return err
		}
	}
	return errKilled
}

type dyingStore struct {
	run.Store
	*killSwitch
}

func (s dyingStore) Write(ctx context.Context, c *run.Change) error {
	return s.do(func() error { return s.Store.Write(ctx, c) })
}

func (s dyingStore) MarkRecorded(ctx context.Context, r run.Record, entry int64) error {
	return s.do(func() error { return s.Store.MarkRecorded(ctx, r, entry) })
}

type dyingChain struct {
	run.Chain
	*killSwitch
}

func (c dyingChain) Append(ctx context.Context, e chain.Entry) (added chain.Entry, err error) {
	err = c.do(func() error {
		added, err = c.Chain.Append(ctx, e)
		return err
	})
	return added, err
}

// A world contains the side effects of a session. They survive a kill, and each must happen
// exactly once.
type world struct {
	sid string
	did map[string]int
}

// work does the work of an agent in a run, from any intermediate state. It may be called
// repeatedly.
func (w world) work(ctx context.Context, m *run.Manager) error {
	if _, err := m.Open(ctx, run.Session{ID: w.sid, Budget: budget.State{Limits: budget.Amounts{budget.Steps: 100}}}); err != nil {
		return err
	}
	if _, err := m.Send(ctx, run.Message{Session: w.sid, Text: "go", Key: "m1"}); err != nil {
		return err
	}
	r, err := m.Create(ctx, run.Request{Session: w.sid, Goal: "g", Key: "r1", Limits: budget.Amounts{budget.Steps: 4}})
	if err != nil || r.State == run.Done {
		return err
	}
	if r.State == run.Paused {
		if _, err := m.Move(ctx, r.ID, run.Move{To: run.Active, Version: r.Version}); err != nil {
			return err
		}
	}
	for n := range 3 {
		if err := w.step(ctx, m, r.ID, fmt.Sprint("k", n)); err != nil {
			return err
		}
		r, err = m.Get(ctx, r.ID)
		if err != nil {
			return err
		}
		if n == 1 && r.Checkpoints == 0 {
			if _, err := m.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{State: json.RawMessage(`1`)}); err != nil {
				return err
			}
			if _, err := m.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.AtCheckpoint}); err != nil {
				return err
			}
			if _, err := m.Move(ctx, r.ID, run.Move{To: run.Active}); err != nil {
				return err
			}
		}
	}
	if _, err := m.Post(ctx, run.Message{Session: w.sid, Run: r.ID, Text: "done", Key: "m2"}, "web"); err != nil {
		return err
	}
	_, err = m.Finish(ctx, r.ID, run.Finish{Result: json.RawMessage(`"result"`)})
	return err
}

// step performs one side effect exactly once. It looks for the side effect of a step in
// flight.
func (w world) step(ctx context.Context, m *run.Manager, rid id.Run, key string) error {
	s, fresh, err := m.Begin(ctx, rid, tool(key))
	if err != nil || s.State != run.Begun {
		return err
	}
	if fresh || w.did[key] == 0 {
		w.did[key]++
	}
	_, err = m.End(ctx, rid, key, done(`"`+key+`"`))
	return err
}

func TestKillAtEveryWrite(t *testing.T) {
	h := newHarness(t)
	for _, after := range []bool{false, true} {
		for n := 1; ; n++ {
			if n > 200 {
				t.Fatal("the work does not finish within 200 writes")
			}
			w := world{fmt.Sprintf("s%v-%d", after, n), map[string]int{}}
			d := &killSwitch{left: n, after: after}
			m := h.manager(t, named("w"), func(c *run.Config) { c.Store, c.Chain = dyingStore{c.Store, d}, dyingChain{c.Chain, d} })
			err := w.work(t.Context(), m)
			if !d.killed {
				if err != nil {
					t.Fatal(err)
				}
				break
			}
			m = h.manager(t, named("w")) // the restarted daemon
			if err := w.work(t.Context(), m); err != nil {
				t.Fatalf("work after a kill at write %d (applied: %v) = %v", n, after, err)
			}
			if !completedNormally(t, h, m, w) {
				t.Fatalf("wrong result after a kill at write %d (applied: %v)", n, after)
			}
		}
	}
}

// completedNormally reports whether the result is the same as without a kill.
func completedNormally(t *testing.T, h *harness, m *run.Manager, w world) bool {
	t.Helper()
	ctx := t.Context()
	list := must(m.List(ctx, run.Filter{Session: w.sid}))(t)
	if len(list) != 1 || list[0].State != run.Done || list[0].Steps != 3 || list[0].Checkpoints != 1 || string(list[0].Result) != `"result"` {
		t.Errorf("runs = %+v", list)
		return false
	}
	r := list[0]
	if len(w.did) != 3 || w.did["k0"] != 1 || w.did["k1"] != 1 || w.did["k2"] != 1 {
		t.Errorf("side effects = %v, want each step once", w.did)
	}
	for _, dir := range []run.Dir{run.In, run.Out} {
		if list := must(m.Messages(ctx, w.sid, dir, 0, 0))(t); len(list) != 1 || list[0].Seq != 1 {
			t.Errorf("messages %s = %+v, want 1", dir, list)
		}
	}
	if c := must(m.Checkpoint(ctx, r.Checkpoint))(t); c.Entry == 0 || r.Entry == 0 {
		t.Error("the entry numbers of the run or the checkpoint are not set")
	}
	count := map[run.EventKind]int{}
	for i, e := range events(t, m, w.sid) {
		if e.Seq != int64(i+1) {
			t.Errorf("event %d has number %d", i+1, e.Seq)
		}
		count[e.Kind]++
	}
	recorded := map[chain.Kind]int{}
	seen := map[any]bool{}
	for _, kind := range []chain.Kind{chain.SessionOpened, chain.RunStarted, chain.RunMoved, chain.RunEnded, chain.CheckpointTaken, chain.BudgetCharged} {
		for _, e := range h.entriesOf(t, chain.Query{Session: w.sid, Kinds: []chain.Kind{kind}}) {
			recorded[kind]++
			if seen[e["record"]] {
				t.Errorf("duplicate entry in the chain: %v", e)
			}
			seen[e["record"]] = true
		}
	}
	for _, c := range []struct {
		event  run.EventKind
		kind   chain.Kind
		least  int
		atMost int
	}{
		{run.SessionOpened, chain.SessionOpened, 1, 1},
		{run.RunCreated, chain.RunStarted, 1, 1},
		{run.CheckpointTaken, chain.CheckpointTaken, 1, 1},
		{run.BudgetWarned, chain.BudgetCharged, 1, 2},
	} {
		if n := count[c.event]; n < c.least || n > c.atMost || recorded[c.kind] != n {
			t.Errorf("%d events %s, %d entries", n, c.event, recorded[c.kind])
		}
	}
	if n := recorded[chain.RunMoved] + recorded[chain.RunEnded]; n != count[run.RunMoved] || recorded[chain.RunEnded] != 1 {
		t.Errorf("%d events of moves, %d entries, %d of them ends", count[run.RunMoved], n, recorded[chain.RunEnded])
	}
	if count[run.StepBegan] != 3 || count[run.StepEnded] != 3 {
		t.Errorf("events = %v, want 3 begun and ended steps", count)
	}
	if left := must(h.db.Runs().PendingRecords(ctx, "w", 100))(t); len(left) != 0 {
		t.Errorf("pending records = %+v, want none", left)
	}
	return !t.Failed()
}

// A brokenChain is a chain whose Append fails if fail is set.
type brokenChain struct {
	run.Chain
	fail bool
}

func (c *brokenChain) Append(ctx context.Context, e chain.Entry) (chain.Entry, error) {
	if c.fail {
		return chain.Entry{}, errors.New("the disk is full")
	}
	return c.Chain.Append(ctx, e)
}

func TestUnrecordedChangeBlocksSession(t *testing.T) {
	b := &brokenChain{}
	h := newHarness(t, func(c *run.Config) { b.Chain = c.Chain; c.Chain = b })
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s"})
	other := start(t, h.Manager, run.Request{Session: "other"})
	b.fail = true
	_, err := h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ByOperator})
	wantKind(t, "Move without a working chain", err, "unavailable")
	_, _, err = h.Begin(ctx, r.ID, tool("k"))
	wantKind(t, "Begin after an unrecorded change", err, "unavailable")
	step(t, h.Manager, other.ID, "k") // needs no record
	b.fail = false
	must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)

	// The caller that got an error may begin the step again, and takes it over.
	poor := start(t, h.Manager, run.Request{Session: "s", Limits: budget.Amounts{budget.Steps: 10, budget.Tokens: 10}})
	hold := must(must(h.Budget(ctx, poor.ID))(t).Reserve(budget.Amounts{budget.Tokens: 9}))(t)
	hold.Commit(budget.Amounts{budget.Tokens: 9})
	b.fail = true
	_, _, err = h.Begin(ctx, poor.ID, tool("k"))
	wantKind(t, "Begin with a warning about the budget", err, "unavailable")
	_, err = h.Claim(ctx, poor.ID)
	wantKind(t, "Claim with a warning about the budget", err, "unavailable")
	b.fail = false
	if s, fresh, err := h.Begin(ctx, poor.ID, tool("k")); err != nil || fresh || s.Busy || s.State != run.Begun {
		t.Errorf("second Begin = %+v, fresh %v, %v", s, fresh, err)
	}
	must(h.Claim(ctx, poor.ID))(t)
	must(h.End(ctx, poor.ID, "k", done("1")))(t)
	poor = must(h.Get(ctx, poor.ID))(t)
	if poor.Budget.Consumed[budget.Steps] != 1 || len(poor.Budget.Held) != 0 {
		t.Errorf("budget = %+v", poor.Budget)
	}
	var to []any
	for _, e := range h.entries(t, r.ID, chain.RunMoved) {
		to = append(to, e["to"])
	}
	if !slices.Equal(to, []any{"paused", "active"}) {
		t.Errorf("moves in the chain = %v", to)
	}
}

func TestRecordsOfLostDaemonAreWrittenByOthers(t *testing.T) {
	h := newHarness(t)
	d := &killSwitch{left: 2} // the first write is applied, but its record is not appended
	m := h.manager(t, named("gone"), func(c *run.Config) { c.Store, c.Chain = dyingStore{c.Store, d}, dyingChain{c.Chain, d} })
	if _, err := m.Open(t.Context(), run.Session{ID: "s"}); err == nil {
		t.Fatal("the Manager was not killed")
	}
	if n := len(h.entries(t, "", chain.SessionOpened)); n != 0 {
		t.Fatalf("%d entries after the kill, want 0", n)
	}
	h.manager(t, named("early"))
	if n := len(h.entries(t, "", chain.SessionOpened)); n != 0 {
		t.Errorf("another Manager appends a recent record: %d entries", n)
	}
	now := time.Now().Add(time.Hour)
	pending := must(h.db.Runs().TakePendingRecords(t.Context(), "later", now, now, 10))(t)
	if len(pending) != 1 || pending[0].Kind != chain.SessionOpened {
		t.Fatalf("TakeOwed = %+v, want the record of the session", pending)
	}
	if again := must(h.db.Runs().TakePendingRecords(t.Context(), "third", now, now, 10))(t); len(again) != 0 {
		t.Errorf("second TakeOwed = %+v, want none", again)
	}
	h.manager(t, named("later"))
	if n := len(h.entries(t, "", chain.SessionOpened)); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
	if s := must(h.Session(t.Context(), "s"))(t); s.Entry != 0 {
		t.Error("the session has an entry number of another chain")
	}
}

func TestMain(m *testing.M) { killtest.Main(m, daemon) }

// daemon executes runs without end, beginning with an unfinished one, and prints each after it
// is done. The world is a file with one line per side effect.
func daemon(args []string) error {
	path := args[0]
	ctx := context.Background()
	db, err := store.Open(ctx, path)
	if err != nil {
		return err
	}
	key, err := chain.LoadKey(filepath.Dir(path))
	if err != nil {
		return err
	}
	c, err := chain.Open(ctx, chain.Config{Store: db.Chain(), Key: key, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	m, err := run.New(ctx, run.Config{Store: db.Runs(), Chain: c, Holder: "w"})
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		sid := fmt.Sprint("s", n)
		r, err := m.Create(ctx, run.Request{Session: sid, Goal: "g", Key: "k"})
		if err != nil {
			return err
		}
		for k := range 3 {
			if err := lineStep(ctx, m, path, r, fmt.Sprint("k", k)); err != nil {
				return err
			}
		}
		r, err = m.Get(ctx, r.ID)
		if err == nil && r.State != run.Done {
			r, err = m.Finish(ctx, r.ID, run.Finish{Result: json.RawMessage(`1`)})
		}
		if err != nil {
			return err
		}
		fmt.Println("done", r.ID, r.StepLogDigest)
	}
}

// lineStep executes a step that appends a line to the world once.
func lineStep(ctx context.Context, m *run.Manager, path string, r run.Run, key string) error {
	s, fresh, err := m.Begin(ctx, r.ID, tool(key))
	if err != nil || s.State != run.Begun {
		return err
	}
	text := fmt.Sprintf("%s %s\n", r.ID, key)
	world, err := os.ReadFile(path + ".world")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if fresh || !strings.Contains(string(world), text) {
		f, err := os.OpenFile(path+".world", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if _, err := f.WriteString(text); err != nil {
			return err
		}
		f.Close()
	}
	_, err = m.End(ctx, r.ID, key, done(`1`))
	return err
}

func TestRepeatedlyKilledDaemonDoesStepsOnce(t *testing.T) {
	h := newDiskHarness(t)
	confirmed := map[string]string{}
	if err := errors.Join(h.Close(), h.chain.Close(), h.db.Close()); err != nil {
		t.Fatal(err)
	}
	for round := range 5 {
		killtest.Start(t, h.path).KillAfter(4+3*round, time.Duration(round)*3*time.Millisecond, func(line string) {
			word := strings.Fields(line)
			if before, known := confirmed[word[1]]; known && before != word[2] {
				t.Errorf("run %s was executed again with a different step log", word[1])
			}
			confirmed[word[1]] = word[2]
		})
	}
	h.open(t)
	m := h.manager(t, named("w"))
	world := must(os.ReadFile(h.path + ".world"))(t)
	for rid, journal := range confirmed {
		r := must(m.Get(t.Context(), id.Run(rid)))(t)
		if r.State != run.Done || r.Steps != 3 || r.StepLogDigest != journal {
			t.Errorf("run = %+v, want done with the same step log", r)
		}
		for k := range 3 {
			if n := strings.Count(string(world), fmt.Sprintf("%s k%d\n", rid, k)); n != 1 {
				t.Errorf("step k%d of %s was executed %d times, want 1", k, rid, n)
			}
		}
		for _, kind := range []chain.Kind{chain.RunStarted, chain.RunEnded} {
			if n := len(h.entries(t, r.ID, kind)); n != 1 {
				t.Errorf("run %s has %d entries %s, want 1", rid, n, kind)
			}
		}
	}
}
