package budget_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/capability/budget"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

func open(t *testing.T, name string, parent *budget.Budget, limits budget.Amounts, warn func(budget.Warning)) *budget.Budget {
	t.Helper()
	b, err := budget.New(name, parent, budget.State{Limits: limits}, warn)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func reserve(t *testing.T, b *budget.Budget, worst budget.Amounts) *budget.Reservation {
	t.Helper()
	h, err := b.Reserve(worst)
	if err != nil {
		t.Fatalf("Reserve(%v) = %v, want it reserved", worst, err)
	}
	return h
}

func refused(t *testing.T, b *budget.Budget, worst budget.Amounts) *budget.Exceeded {
	t.Helper()
	before := b.State()
	h, err := b.Reserve(worst)
	e, ok := errors.AsType[*budget.Exceeded](err)
	if h != nil || !ok || !errors.Is(err, fault.Exhausted) || fault.RemedyOf(err) == "" {
		t.Fatalf("Reserve(%v) = %v, %v, want an Exceeded of kind Exhausted with a remedy", worst, h, err)
	}
	if diff := cmp.Diff(before, b.State()); diff != "" {
		t.Fatalf("a refused reservation changed the budget:\n%s", diff)
	}
	return e
}

// run is the example in the specification of the report.
var run = budget.Amounts{budget.Steps: 50, budget.Wall: 60000, budget.CPU: 30000, budget.Network: 10485760}

func TestReport(t *testing.T) {
	b := open(t, "run", nil, run, nil)
	h := reserve(t, b, budget.Amounts{budget.Steps: 1, budget.Wall: 2000, budget.Network: 50000})
	h.Commit(budget.Amounts{budget.Steps: 1, budget.Wall: 1234, budget.CPU: 150, budget.Network: 10240})

	got, err := json.Marshal(b.Report())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"run-budget-consumed":{"network-bytes":10240,"sandbox-cpu-ms":150,"steps":1,"wall-clock-ms":1234},` +
		`"run-budget-remaining":{"network-bytes":10475520,"sandbox-cpu-ms":29850,"steps":49,"wall-clock-ms":58766}}`
	if string(got) != want {
		t.Errorf("the report is\n%s, want\n%s", got, want)
	}
	wantValue := form.NewMap(
		form.Keyword("run-budget-consumed"), form.NewMap(
			form.Keyword("steps"), int64(1), form.Keyword("wall-clock-ms"), int64(1234),
			form.Keyword("sandbox-cpu-ms"), int64(150), form.Keyword("network-bytes"), int64(10240)),
		form.Keyword("run-budget-remaining"), form.NewMap(
			form.Keyword("steps"), int64(49), form.Keyword("wall-clock-ms"), int64(58766),
			form.Keyword("sandbox-cpu-ms"), int64(29850), form.Keyword("network-bytes"), int64(10475520)))
	if !form.Equal(b.Report().Value(), wantValue) {
		t.Errorf("as a value it is %v, want %v", b.Report().Value(), wantValue)
	}
}

func TestUnlimitedDimensionsAreMetered(t *testing.T) {
	b := open(t, "run", nil, budget.Amounts{budget.Steps: 2}, nil)
	reserve(t, b, budget.Amounts{budget.Tokens: 1 << 40}).Commit(budget.Amounts{budget.Tokens: 900, budget.Cost: 12})
	if diff := cmp.Diff(budget.Amounts{budget.Steps: 0, budget.Tokens: 900, budget.Cost: 12}, b.Consumed()); diff != "" {
		t.Errorf("Consumed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(budget.Amounts{budget.Steps: 2}, b.Remaining()); diff != "" {
		t.Errorf("Remaining (-want +got):\n%s", diff)
	}
}

func TestReservationAboveRemainderIsRefused(t *testing.T) {
	b := open(t, "run r-1", nil, run, nil)
	e := refused(t, b, budget.Amounts{budget.Steps: 1, budget.Wall: 60001})
	want := &budget.Exceeded{Budget: "run r-1", Dimension: budget.Wall, Needed: 60001, Remaining: 60000}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("refused with (-want +got):\n%s", diff)
	}
	if got, want := e.Error(), "needs up to 60001 wall-clock-ms, and 60000 remain"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

func TestConcurrentReservationsShareRemainder(t *testing.T) {
	b := open(t, "run", nil, budget.Amounts{budget.Wall: 100}, nil)
	first := reserve(t, b, budget.Amounts{budget.Wall: 70})
	e := refused(t, b, budget.Amounts{budget.Wall: 40})
	if got, want := e.Error(), "needs up to 40 wall-clock-ms, and 100 remain, of which 70 are reserved"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	first.Commit(budget.Amounts{budget.Wall: 10})
	reserve(t, b, budget.Amounts{budget.Wall: 90}).Release()
	reserve(t, b, budget.Amounts{budget.Wall: 90})
}

func TestReservationEndsOnce(t *testing.T) {
	b := open(t, "run", nil, budget.Amounts{budget.Steps: 10}, nil)
	h := reserve(t, b, budget.Amounts{budget.Steps: 4})
	h.Commit(budget.Amounts{budget.Steps: 3})
	h.Commit(budget.Amounts{budget.Steps: 3})
	h.Release()
	if got := b.Remaining()[budget.Steps]; got != 7 {
		t.Errorf("%d steps are left, want 7", got)
	}
	reserve(t, b, budget.Amounts{budget.Steps: 7})
}

func TestCommitAboveReservationCounts(t *testing.T) {
	b := open(t, "run", nil, budget.Amounts{budget.Network: 100}, nil)
	reserve(t, b, budget.Amounts{budget.Network: 10}).Commit(budget.Amounts{budget.Network: 130})
	if got := b.Report(); got.Consumed[budget.Network] != 130 || got.Remaining[budget.Network] != 0 {
		t.Errorf("the report is %v, want 130 consumed and nothing left", got)
	}
	refused(t, b, budget.Amounts{budget.Network: 1})
	reserve(t, b, budget.Amounts{budget.Steps: 1}) // a limit of an unused dimension cannot refuse the reservation
}

func TestBudgetsDrawFromParents(t *testing.T) {
	session := open(t, "session", nil, budget.Amounts{budget.Steps: 3, budget.Tokens: 1000}, nil)
	one := open(t, "run one", session, budget.Amounts{budget.Steps: 2}, nil)
	two := open(t, "run two", session, budget.Amounts{budget.Steps: 2}, nil)
	step := budget.Amounts{budget.Steps: 1}

	call := open(t, "call", one, budget.Amounts{budget.Wall: 500, budget.Steps: 1}, nil)
	reserve(t, call, step).Commit(budget.Amounts{budget.Steps: 1, budget.Tokens: 400})
	reserve(t, one, step).Commit(step)
	if e := refused(t, one, step); e.Budget != "run one" {
		t.Errorf("the third step of two was refused by %q, want the run", e.Budget)
	}
	reserve(t, two, step).Commit(step)
	if e := refused(t, two, step); e.Budget != "session" {
		t.Errorf("the fourth step of three was refused by %q, want the session", e.Budget)
	}
	if e := refused(t, two, budget.Amounts{budget.Tokens: 601}); e.Budget != "session" || e.Remaining != 600 {
		t.Errorf("601 tokens were refused as %+v, want by the session, with 600 left", e)
	}
	if got := session.Consumed(); got[budget.Steps] != 3 || got[budget.Tokens] != 400 {
		t.Errorf("the session has spent %v, want what its runs have", got)
	}
}

func TestEachThresholdWarnsOnce(t *testing.T) {
	var got []budget.Warning
	b := open(t, "run", nil, budget.Amounts{budget.Steps: 10}, func(w budget.Warning) { got = append(got, w) })
	for range 12 {
		h, err := b.Reserve(nil)
		if err != nil {
			t.Fatal(err)
		}
		h.Commit(budget.Amounts{budget.Steps: 1})
	}
	want := []budget.Warning{
		{Budget: "run", Dimension: budget.Steps, Percent: 50, Consumed: 5, Limit: 10},
		{Budget: "run", Dimension: budget.Steps, Percent: 80, Consumed: 8, Limit: 10},
		{Budget: "run", Dimension: budget.Steps, Percent: 100, Consumed: 10, Limit: 10},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warned (-want +got):\n%s", diff)
	}
}

func TestParentWarns(t *testing.T) {
	var got []string
	warn := func(w budget.Warning) { got = append(got, w.Budget) }
	session := open(t, "session", nil, budget.Amounts{budget.Steps: 2}, warn)
	r := open(t, "run", session, budget.Amounts{budget.Steps: 100}, warn)
	reserve(t, r, nil).Commit(budget.Amounts{budget.Steps: 1})
	if diff := cmp.Diff([]string{"session"}, got); diff != "" {
		t.Errorf("warned of (-want +got):\n%s", diff)
	}
}

func TestRestoredStateKeepsReservations(t *testing.T) {
	b := open(t, "run", nil, budget.Amounts{budget.Steps: 10, budget.Wall: 1000}, nil)
	reserve(t, b, budget.Amounts{budget.Steps: 1}).Commit(budget.Amounts{budget.Steps: 6, budget.Cost: 77})
	reserve(t, b, budget.Amounts{budget.Wall: 300}) // in progress when the daemon is killed

	kept, err := json.Marshal(b.State())
	if err != nil {
		t.Fatal(err)
	}
	var s budget.State
	if err := json.Unmarshal(kept, &s); err != nil {
		t.Fatal(err)
	}
	var warned []int
	again, err := budget.New("run", nil, s, func(w budget.Warning) { warned = append(warned, w.Percent) })
	if err != nil {
		t.Fatal(err)
	}
	want := budget.Report{
		Consumed:  budget.Amounts{budget.Steps: 6, budget.Wall: 300, budget.Cost: 77},
		Remaining: budget.Amounts{budget.Steps: 4, budget.Wall: 700},
	}
	if diff := cmp.Diff(want, again.Report()); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	reserve(t, again, nil).Commit(budget.Amounts{budget.Steps: 2})
	if diff := cmp.Diff([]int{80}, warned); diff != "" {
		t.Errorf("warned after a restart (-want +got):\n%s", diff)
	}
}

func TestInvalidAmountsAreRefused(t *testing.T) {
	for _, s := range []budget.State{
		{Limits: budget.Amounts{"step": 1}},
		{Limits: budget.Amounts{budget.Steps: -1}},
		{Consumed: budget.Amounts{budget.Steps: -1}},
		{Held: budget.Amounts{budget.Steps: -1}},
	} {
		if _, err := budget.New("run", nil, s, nil); !errors.Is(err, fault.Invalid) || fault.FieldOf(err) == "" {
			t.Errorf("New(%v) = %v, want invalid with a field", s, err)
		}
	}
	b := open(t, "run", nil, run, nil)
	if _, err := b.Reserve(budget.Amounts{budget.Steps: -5}); !errors.Is(err, fault.Invalid) {
		t.Errorf("reserving less than nothing = %v, want invalid", err)
	}
}

func TestConsumptionSaturates(t *testing.T) {
	b := open(t, "run", nil, budget.Amounts{budget.Network: math.MaxInt64, budget.Steps: 5}, nil)
	refused(t, b, budget.Amounts{budget.Steps: math.MaxInt64})
	h := reserve(t, b, budget.Amounts{budget.Network: math.MaxInt64})
	refused(t, b, budget.Amounts{budget.Network: 1})
	h.Commit(budget.Amounts{budget.Network: math.MaxInt64})
	reserve(t, b, nil).Commit(budget.Amounts{budget.Network: math.MaxInt64})
	if got := b.Report(); got.Consumed[budget.Network] != math.MaxInt64 || got.Remaining[budget.Network] != 0 {
		t.Errorf("the report is %v, want the largest number consumed", got)
	}
}

// For any number of concurrent callers: the committed amounts equal the consumed amounts in
// every budget, reservations never exceed the remainder, and each threshold warns once.
func TestConcurrentCallsAreCountedOnce(t *testing.T) {
	const callers, calls, limit = 8, 400, 20000
	told := &tally{counts: map[any]int64{}}
	warn := func(w budget.Warning) { told.add(w.Budget+string(w.Dimension)+string(rune(w.Percent)), 1) }
	session := open(t, "session", nil, budget.Amounts{budget.Steps: limit, budget.Tokens: limit}, warn)
	runs := []*budget.Budget{
		open(t, "one", session, budget.Amounts{budget.Steps: limit / 2}, warn),
		open(t, "two", session, budget.Amounts{budget.Steps: limit / 2, budget.Network: limit}, warn),
	}
	spent := &tally{counts: map[any]int64{}}
	inHand := &tally{counts: map[any]int64{}} // reserved and committed steps of the session

	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(caller)))
			for range calls {
				r := rnd.IntN(len(runs))
				worst := budget.Amounts{budget.Steps: rnd.Int64N(40), budget.Tokens: rnd.Int64N(40), budget.Network: rnd.Int64N(40)}
				h, err := runs[r].Reserve(worst)
				if err != nil {
					continue
				}
				if n := inHand.add("steps", worst[budget.Steps]); n > limit {
					t.Errorf("%d steps are reserved or spent concurrently, want at most %d", n, limit)
				}
				if rnd.IntN(4) == 0 {
					inHand.add("steps", -worst[budget.Steps])
					h.Release()
					continue
				}
				used := budget.Amounts{}
				for d, n := range worst {
					used[d] = rnd.Int64N(n + 1)
					spent.add(d, used[d])
				}
				inHand.add("steps", used[budget.Steps]-worst[budget.Steps])
				h.Commit(used)
			}
		})
	}
	all.Wait()

	spent.mu.Lock()
	defer spent.mu.Unlock()
	told.mu.Lock()
	defer told.mu.Unlock()
	for _, d := range []budget.Dimension{budget.Steps, budget.Tokens, budget.Network} {
		if got, want := session.Consumed()[d], spent.counts[d]; got != want {
			t.Errorf("the session consumed %d %s, want the %d that were committed", got, d, want)
		}
		if got := runs[0].Consumed()[d] + runs[1].Consumed()[d]; got != spent.counts[d] {
			t.Errorf("the runs consumed %d %s, want %d", got, d, spent.counts[d])
		}
	}
	for _, b := range append(runs, session) {
		if held := b.State().Held; len(held) != 0 {
			t.Errorf("%v are still reserved after all callers ended", held)
		}
	}
	for what, n := range told.counts {
		if n != 1 {
			t.Errorf("%q warned %d times", what, n)
		}
	}
	if len(told.counts) == 0 {
		t.Error("no warning: the test spends too little")
	}
}

func TestRaiseRefusesLowerLimit(t *testing.T) {
	b := open(t, "run", nil, budget.Amounts{budget.Steps: 1, budget.Tokens: 10}, nil)
	held := reserve(t, b, budget.Amounts{budget.Steps: 1})
	if _, err := b.Reserve(budget.Amounts{budget.Steps: 1}); !errors.Is(err, fault.Exhausted) {
		t.Fatalf("before it is raised: %v", err)
	}
	for _, limits := range []budget.Amounts{{budget.Steps: 0}, {budget.Cost: 5}, {"beer": 1}, {budget.Steps: 3, budget.Tokens: 9}} {
		if err := b.Raise(limits); !errors.Is(err, fault.Invalid) {
			t.Errorf("Raise(%v) = %v, want invalid", limits, err)
		}
	}
	if err := b.Raise(budget.Amounts{budget.Steps: 2}); err != nil {
		t.Fatal(err)
	}
	reserve(t, b, budget.Amounts{budget.Steps: 1}).Commit(budget.Amounts{budget.Steps: 1})
	held.Commit(budget.Amounts{budget.Steps: 1})
	want := budget.State{Limits: budget.Amounts{budget.Steps: 2, budget.Tokens: 10}, Consumed: budget.Amounts{budget.Steps: 2}, Held: budget.Amounts{}}
	if diff := cmp.Diff(want, b.State()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

type tally struct {
	mu sync.Mutex
	// +checklocks:mu
	counts map[any]int64
}

func (c *tally) add(what any, n int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what] += n
	return c.counts[what]
}
