package run_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"glasshouse/budget"
	"glasshouse/run"
)

func cpu(of string, total int64) run.Reading {
	return run.Reading{Name: "cpu", Dimension: budget.CPU, Of: of, Total: total}
}

// spent is what a run has spent, by its record.
func (h *house) spent(t testing.TB, m *run.Manager, r run.Run, d budget.Dimension) int64 {
	t.Helper()
	return must(m.Get(context.Background(), r.ID))(t).Budget.Consumed[d]
}

func TestWhatCountersSayIsChargedOnceWhateverBecomesOfThem(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s"})
	m := h.Manager
	for n, c := range []struct {
		what    string
		reading run.Reading
		want    int64 // in all
	}{
		{"the first reading", cpu("j-a", 100), 100},
		{"the same again", cpu("j-a", 100), 100},
		{"more", cpu("j-a", 130), 130},
		{"a counter that went back", cpu("j-a", 120), 130},
		{"and on", cpu("j-a", 125), 135},
		{"one that began again", run.Reading{Name: "cpu", Dimension: budget.CPU, Of: "j-a", Epoch: "2", Total: 40}, 175},
		{"another jail", cpu("j-b", 7), 182},
		{"one that others use too", run.Reading{Name: "cpu", Dimension: budget.CPU, Of: "j-c", Total: 1000, Shared: true}, 182},
		{"what it does there", run.Reading{Name: "cpu", Dimension: budget.CPU, Of: "j-c", Total: 1010, Shared: true}, 192},
		{"where it begins again", run.Reading{Name: "cpu", Dimension: budget.CPU, Of: "j-c", Epoch: "2", Total: 3, Shared: true}, 195},
	} {
		must(m.Measure(ctx, r.ID, []run.Reading{c.reading}))(t)
		if got := h.spent(t, m, r, budget.CPU); got != c.want {
			t.Errorf("%s: %d spent, want %d", c.what, got, c.want)
		}
		if n%3 == 2 { // the daemon is another from here on
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			m = h.manager(t)
		}
	}
	disk := func(of string, total int64) run.Reading {
		return run.Reading{Name: "disk", Dimension: budget.Storage, Of: of, Total: total, Peak: true}
	}
	for _, total := range []int64{500, 200, 450, 600} {
		must(m.Measure(ctx, r.ID, []run.Reading{disk("j-c", total)}))(t)
	}
	if got := h.spent(t, m, r, budget.Storage); got != 600 {
		t.Errorf("of the disk %d are charged, want the most that was there, 600", got)
	}
}

// A daemon is killed between a reading and its charge, and between the charge and its
// being kept: the next one reads the same counter.
func TestADaemonThatIsKilledBetweenReadingAndChargingLosesAndDoublesNothing(t *testing.T) {
	h := houseOnDisk(t)
	dead, die := context.WithCancel(t.Context())
	r := start(t, h.Manager, run.Request{Session: "s"})
	must(h.Measure(t.Context(), r.ID, []run.Reading{cpu("j-a", 100)}))(t)
	die()
	if _, err := h.Measure(dead, r.ID, []run.Reading{cpu("j-a", 150)}); err == nil {
		t.Log("it was kept, though nobody waited for it") // and that is as right
	}
	// The same daemon goes on: what is in its memory and what is kept are one.
	must(h.Measure(t.Context(), r.ID, []run.Reading{cpu("j-a", 160)}))(t)
	if got := h.spent(t, h.Manager, r, budget.CPU); got != 160 {
		t.Errorf("%d are charged, want 160", got)
	}
	step(t, h.Manager, r.ID, "one")
	if err := h.Manager.Close(); err != nil {
		t.Fatal(err)
	}
	again := h.manager(t)
	must(again.Measure(t.Context(), r.ID, []run.Reading{cpu("j-a", 170)}))(t)
	if got := h.spent(t, again, r, budget.CPU); got != 170 {
		t.Errorf("after another daemon %d are charged, want 170", got)
	}
}

func TestOverALimitOfTheProcessorARunWaitsOrHasFailed(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	for _, c := range []struct {
		on   run.OnExceed
		want run.State
	}{{run.PauseRun, run.Paused}, {run.StopRun, run.Failed}} {
		sid := "s-" + string(c.on)
		r := start(t, h.Manager, run.Request{Session: sid, OnExceed: c.on, Limits: budget.Amounts{budget.CPU: 100}})
		for _, total := range []int64{60, 85, 120} {
			r = must(h.Measure(ctx, r.ID, []run.Reading{cpu("j-a", total)}))(t)
		}
		if r.State != c.want || c.want == run.Paused && (r.Why != run.OverBudget || r.Short.Dimension != budget.CPU) {
			t.Errorf("over its limit it is %s (%s) for want of %+v", r.State, r.Why, r.Short)
		}
		var told []string
		for _, e := range events(t, h.Manager, sid) {
			if e.Kind == run.BudgetWarned {
				var w budget.Warning
				if err := json.Unmarshal(e.Body, &w); err != nil {
					t.Fatal(err)
				}
				told = append(told, fmt.Sprintf("%s %d%%", w.Dimension, w.Percent))
			}
		}
		if got, want := strings.Join(told, ", "), "sandbox-cpu-ms 50%, sandbox-cpu-ms 80%, sandbox-cpu-ms 100%"; got != want {
			t.Errorf("told: %s; want %s", got, want)
		}
		// What its jail used until it stood still is charged all the same.
		must(h.Measure(ctx, r.ID, []run.Reading{cpu("j-a", 125)}))(t)
		if got := h.spent(t, h.Manager, r, budget.CPU); got != 125 {
			t.Errorf("%d are charged in the end, want 125", got)
		}
		if c.want == run.Paused {
			r = must(h.Move(ctx, r.ID, run.Move{To: run.Active, Limits: budget.Amounts{budget.CPU: 200}}))(t)
			if r.State != run.Active {
				t.Errorf("with more it is %s", r.State)
			}
		}
	}
}

func TestTimeIsChargedInWhichARunIsAtWork(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s"})
	const while = 50 * time.Millisecond
	time.Sleep(while)
	must(h.Measure(ctx, r.ID, nil))(t)
	first := h.spent(t, h.Manager, r, budget.Wall)
	if first < while.Milliseconds() {
		t.Errorf("%d ms are charged, and it was at work for %s at least", first, while)
	}
	// The time in which a person thinks is not the run's.
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval}))(t)
	must(h.Measure(ctx, r.ID, nil))(t)
	before := h.spent(t, h.Manager, r, budget.Wall)
	time.Sleep(while)
	must(h.Measure(ctx, r.ID, nil))(t)
	if got := h.spent(t, h.Manager, r, budget.Wall); got != before {
		t.Errorf("while it waited %d ms were charged", got-before)
	}
	began := time.Now()
	r = must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)
	// What a call took is time of the run too, and not charged again.
	must(h.Charge(ctx, r.ID, budget.Amounts{budget.Wall: time.Hour.Milliseconds()}))(t)
	must(h.Measure(ctx, r.ID, nil))(t)
	if got := h.spent(t, h.Manager, r, budget.Wall); got != before+time.Hour.Milliseconds() {
		t.Errorf("%d ms beside the hour that a call was said to take; %s passed", got-before-time.Hour.Milliseconds(), time.Since(began))
	}

	// A branch goes on from what was spent at its checkpoint.
	c := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{}))(t)
	b, _, err := h.Resume(ctx, r.ID, run.ResumeRequest{Checkpoint: c.ID, Branch: true})
	if err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	time.Sleep(while)
	must(h.Measure(ctx, b.ID, []run.Reading{cpu("j-branch", 9)}))(t)
	more := h.spent(t, h.Manager, b, budget.Wall) - c.Budget.Consumed[budget.Wall]
	if most := time.Since(b.Since).Milliseconds() + 1; more < while.Milliseconds() || more > most {
		t.Errorf("the branch is charged %d ms more than at its checkpoint, and has been at work for %s", more, time.Since(began))
	}
	if got := h.spent(t, h.Manager, b, budget.CPU); got != 9 {
		t.Errorf("and %d ms of the processor, want 9", got)
	}
}
