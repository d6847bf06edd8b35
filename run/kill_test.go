package run_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/id"
	"glasshouse/run"
	"glasshouse/store"
)

// A deadline kills a process at one of its writes: it is the last, and it was
// carried out or it was not. What comes after it does not happen.
type deadline struct {
	left   int  // writes until then
	after  bool // the last one is carried out
	killed bool
}

var errKilled = errors.New("killed")

// at carries out a write, unless the process is dead.
func (d *deadline) at(write func() error) error {
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
	*deadline
}

func (s dyingStore) Write(ctx context.Context, c *run.Change) error {
	return s.at(func() error { return s.Store.Write(ctx, c) })
}

func (s dyingStore) Paid(ctx context.Context, r run.Record, entry int64) error {
	return s.at(func() error { return s.Store.Paid(ctx, r, entry) })
}

type dyingChain struct {
	run.Chain
	*deadline
}

func (c dyingChain) Append(ctx context.Context, e chain.Entry) (added chain.Entry, err error) {
	err = c.at(func() error {
		added, err = c.Chain.Append(ctx, e)
		return err
	})
	return added, err
}

// A world is what is outside of a session, where what was done stays done, and done
// twice is once too often.
type world struct {
	sid string
	did map[string]int
}

// errand is what an agent does with a run, from wherever it is: it may be called as
// often as it takes.
func (w world) errand(ctx context.Context, m *run.Manager) error {
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
		if r, err = m.Get(ctx, r.ID); err != nil {
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

// step does one thing in the world, once: what was in flight is looked for there.
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

func TestKilledAtAnyWriteNothingIsLostOrDoneTwice(t *testing.T) {
	h := newHouse(t)
	for _, after := range []bool{false, true} {
		for n := 1; ; n++ {
			if n > 200 {
				t.Fatal("it never comes to its end")
			}
			w := world{fmt.Sprintf("s%v-%d", after, n), map[string]int{}}
			d := &deadline{left: n, after: after}
			m := h.manager(t, named("w"), func(c *run.Config) { c.Store, c.Chain = dyingStore{c.Store, d}, dyingChain{c.Chain, d} })
			err := w.errand(t.Context(), m)
			if !d.killed {
				if err != nil {
					t.Fatal(err)
				}
				break
			}
			m = h.manager(t, named("w")) // as the daemon that comes after
			if err := w.errand(t.Context(), m); err != nil {
				t.Fatalf("killed at write %d (carried out: %v), and then: %v", n, after, err)
			}
			if !asIfNothingHadBeen(t, h, m, w) {
				t.Fatalf("killed at write %d (carried out: %v)", n, after)
			}
		}
	}
}

// asIfNothingHadBeen reports whether an errand ended as one that was not disturbed.
func asIfNothingHadBeen(t *testing.T, h *house, m *run.Manager, w world) bool {
	t.Helper()
	ctx := t.Context()
	list := must(m.List(ctx, run.Filter{Session: w.sid}))(t)
	if len(list) != 1 || list[0].State != run.Done || list[0].Steps != 3 || list[0].Checkpoints != 1 || string(list[0].Result) != `"result"` {
		t.Errorf("the runs are %+v", list)
		return false
	}
	r := list[0]
	if len(w.did) != 3 || w.did["k0"] != 1 || w.did["k1"] != 1 || w.did["k2"] != 1 {
		t.Errorf("in the world was done %v", w.did)
	}
	for _, dir := range []run.Dir{run.In, run.Out} {
		if list := must(m.Messages(ctx, w.sid, dir, 0, 0))(t); len(list) != 1 || list[0].Seq != 1 {
			t.Errorf("%s are %+v", dir, list)
		}
	}
	if c := must(m.Checkpoint(ctx, r.Checkpoint))(t); c.Entry == 0 || r.Entry == 0 {
		t.Error("the chain's entries are not written on what they record")
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
				t.Errorf("twice in the chain: %v", e)
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
			t.Errorf("%s is told %d times, and recorded %d times", c.event, n, recorded[c.kind])
		}
	}
	if n := recorded[chain.RunMoved] + recorded[chain.RunEnded]; n != count[run.RunMoved] || recorded[chain.RunEnded] != 1 {
		t.Errorf("moves are told %d times, and recorded %d times, %d of them ends", count[run.RunMoved], n, recorded[chain.RunEnded])
	}
	if count[run.StepBegan] != 3 || count[run.StepEnded] != 3 {
		t.Errorf("steps are told: %v", count)
	}
	if left := must(h.db.Runs().Owed(ctx, "w", 100))(t); len(left) != 0 {
		t.Errorf("the chain is still owed %+v", left)
	}
	return !t.Failed()
}

// broken is a chain that takes nothing while it is.
type broken struct {
	run.Chain
	yes bool
}

func (c *broken) Append(ctx context.Context, e chain.Entry) (chain.Entry, error) {
	if c.yes {
		return chain.Entry{}, errors.New("the disk is full")
	}
	return c.Chain.Append(ctx, e)
}

func TestWhatCannotBeRecordedStopsTheSession(t *testing.T) {
	b := &broken{}
	h := newHouse(t, func(c *run.Config) { b.Chain = c.Chain; c.Chain = b })
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s"})
	other := start(t, h.Manager, run.Request{Session: "other"})
	b.yes = true
	_, err := h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ByOperator})
	wantKind(t, "a move that is not recorded", err, "unavailable")
	_, _, err = h.Begin(ctx, r.ID, tool("k"))
	wantKind(t, "a step after it", err, "unavailable")
	step(t, h.Manager, other.ID, "k") // nothing of it is to be recorded
	b.yes = false
	must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)

	// Whoever is told that it failed may ask again, and is at it.
	poor := start(t, h.Manager, run.Request{Session: "s", Limits: budget.Amounts{budget.Steps: 10, budget.Tokens: 10}})
	hold := must(must(h.Budget(ctx, poor.ID))(t).Reserve(budget.Amounts{budget.Tokens: 9}))(t)
	hold.Commit(budget.Amounts{budget.Tokens: 9})
	b.yes = true
	_, _, err = h.Begin(ctx, poor.ID, tool("k"))
	wantKind(t, "a step with which is told what is spent", err, "unavailable")
	_, err = h.Claim(ctx, poor.ID)
	wantKind(t, "a claim", err, "unavailable")
	b.yes = false
	if s, fresh, err := h.Begin(ctx, poor.ID, tool("k")); err != nil || fresh || s.Busy || s.State != run.Begun {
		t.Errorf("asked again the step is %+v, fresh %v, %v", s, fresh, err)
	}
	must(h.Claim(ctx, poor.ID))(t)
	must(h.End(ctx, poor.ID, "k", done("1")))(t)
	if poor = must(h.Get(ctx, poor.ID))(t); poor.Budget.Consumed[budget.Steps] != 1 || len(poor.Budget.Held) != 0 {
		t.Errorf("its budget is %+v", poor.Budget)
	}
	var to []any
	for _, e := range h.entries(t, r.ID, chain.RunMoved) {
		to = append(to, e["to"])
	}
	if !slices.Equal(to, []any{"paused", "active"}) {
		t.Errorf("the chain says it became %v", to)
	}
}

func TestWhatADaemonThatNeverComesBackOwedOthersPay(t *testing.T) {
	h := newHouse(t)
	d := &deadline{left: 2} // its first write is carried out, and not recorded
	m := h.manager(t, named("gone"), func(c *run.Config) { c.Store, c.Chain = dyingStore{c.Store, d}, dyingChain{c.Chain, d} })
	if _, err := m.Open(t.Context(), run.Session{ID: "s"}); err == nil {
		t.Fatal("it was not killed")
	}
	if n := len(h.entries(t, "", chain.SessionOpened)); n != 0 {
		t.Fatalf("it is recorded %d times", n)
	}
	h.manager(t, named("at once"))
	if n := len(h.entries(t, "", chain.SessionOpened)); n != 0 {
		t.Errorf("another pays at once what may still be paid: %d entries", n)
	}
	now := time.Now().Add(time.Hour)
	owed := must(h.db.Runs().TakeOwed(t.Context(), "later", now, now, 10))(t)
	if len(owed) != 1 || owed[0].Kind != chain.SessionOpened {
		t.Fatalf("it owed %+v", owed)
	}
	if again := must(h.db.Runs().TakeOwed(t.Context(), "third", now, now, 10))(t); len(again) != 0 {
		t.Errorf("a third takes it too: %+v", again)
	}
	h.manager(t, named("later"))
	if n := len(h.entries(t, "", chain.SessionOpened)); n != 1 {
		t.Errorf("it is recorded %d times", n)
	}
	if s := must(h.Session(t.Context(), "s"))(t); s.Entry != 0 {
		t.Error("the entry of one chain is taken for one of the other")
	}
}

// TestMain lets the test binary be the daemon that is killed.
func TestMain(m *testing.M) {
	if where := os.Getenv("RUN_TEST_DAEMON"); where != "" {
		if err := daemon(where); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// daemon carries out runs without end: the one that it finds, and then others. It
// says what it is sure of. The world is a file: what is done is a line of it.
func daemon(where string) error {
	ctx := context.Background()
	db, err := store.Open(ctx, where)
	if err != nil {
		return err
	}
	key, err := chain.LoadKey(filepath.Dir(where))
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
			if err := line(ctx, m, where, r, fmt.Sprint("k", k)); err != nil {
				return err
			}
		}
		if r, err = m.Get(ctx, r.ID); err == nil && r.State != run.Done {
			r, err = m.Finish(ctx, r.ID, run.Finish{Result: json.RawMessage(`1`)})
		}
		if err != nil {
			return err
		}
		fmt.Println("done", r.ID, r.Journal)
	}
}

// line is a step that writes a line to the world, once.
func line(ctx context.Context, m *run.Manager, where string, r run.Run, key string) error {
	s, fresh, err := m.Begin(ctx, r.ID, tool(key))
	if err != nil || s.State != run.Begun {
		return err
	}
	text := fmt.Sprintf("%s %s\n", r.ID, key)
	world, err := os.ReadFile(where + ".world")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if fresh || !strings.Contains(string(world), text) {
		f, err := os.OpenFile(where+".world", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
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

func TestADaemonThatIsKilledAgainAndAgainDoesEverythingOnce(t *testing.T) {
	h := houseOnDisk(t)
	sure := map[string]string{}
	if err := errors.Join(h.Close(), h.chain.Close(), h.db.Close()); err != nil {
		t.Fatal(err)
	}
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "RUN_TEST_DAEMON="+h.where)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := 0
		for said := bufio.NewScanner(out); said.Scan(); { // on after the kill, to what the pipe still holds
			word := strings.Fields(said.Text())
			if before, known := sure[word[1]]; known && before != word[2] {
				t.Errorf("%s is done again, otherwise", word[1])
			}
			sure[word[1]] = word[2]
			if lines++; lines == 4+3*round {
				time.AfterFunc(time.Duration(round)*3*time.Millisecond, func() { cmd.Process.Kill() })
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
		if lines < 4 {
			t.Fatalf("the daemon ended after %d lines", lines)
		}
	}
	h.open(t)
	m := h.manager(t, named("w"))
	world := must(os.ReadFile(h.where + ".world"))(t)
	for rid, journal := range sure {
		r := must(m.Get(t.Context(), id.Run(rid)))(t)
		if r.State != run.Done || r.Steps != 3 || r.Journal != journal {
			t.Errorf("what was done is now %+v", r)
		}
		for k := range 3 {
			if n := strings.Count(string(world), fmt.Sprintf("%s k%d\n", rid, k)); n != 1 {
				t.Errorf("step k%d of %s was done %d times", k, rid, n)
			}
		}
		for _, kind := range []chain.Kind{chain.RunStarted, chain.RunEnded} {
			if n := len(h.entries(t, r.ID, kind)); n != 1 {
				t.Errorf("%s has %d entries %s", rid, n, kind)
			}
		}
	}
}
