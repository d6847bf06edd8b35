package run_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
)

func cpu(of string, total int64) run.Reading {
	return run.Reading{Name: "cpu", Dimension: budget.CPU, Of: of, Total: total}
}

// spent returns the stored spending of a run.
func (h *harness) spent(t testing.TB, m *run.Manager, r run.Run, d budget.Dimension) int64 {
	t.Helper()
	return must(m.Get(context.Background(), r.ID))(t).Budget.Consumed[d]
}

func TestCountersAreChargedOnce(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s"})
	m := h.Manager
	for n, c := range []struct {
		what    string
		reading run.Reading
		want    int64 // total
	}{
		{"the first reading", cpu("j-a", 100), 100},
		{"the same again", cpu("j-a", 100), 100},
		{"more", cpu("j-a", 130), 130},
		{"a smaller value", cpu("j-a", 120), 130},
		{"an increase after it", cpu("j-a", 125), 135},
		{"a restarted counter", run.Reading{Name: "cpu", Dimension: budget.CPU, Of: "j-a", Epoch: "2", Total: 40}, 175},
		{"another jail", cpu("j-b", 7), 182},
		{"a shared counter", run.Reading{Name: "cpu", Dimension: budget.CPU, Of: "j-c", Total: 1000, Shared: true}, 182},
		{"an increase of the shared counter", run.Reading{Name: "cpu", Dimension: budget.CPU, Of: "j-c", Total: 1010, Shared: true}, 192},
		{"a restart of the shared counter", run.Reading{Name: "cpu", Dimension: budget.CPU, Of: "j-c", Epoch: "2", Total: 3, Shared: true}, 195},
	} {
		must(m.ChargeReadings(ctx, r.ID, []run.Reading{c.reading}))(t)
		if got := h.spent(t, m, r, budget.CPU); got != c.want {
			t.Errorf("%s: %d spent, want %d", c.what, got, c.want)
		}
		if n%3 == 2 { // continue with another Manager
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
		must(m.ChargeReadings(ctx, r.ID, []run.Reading{disk("j-c", total)}))(t)
	}
	if got := h.spent(t, m, r, budget.Storage); got != 600 {
		t.Errorf("%d charged for the disk, want its maximum 600", got)
	}
}

// A daemon may be killed between a reading and its charge, or before the charge is stored. The
// next daemon reads the same counter.
func TestMeasureIsExactAcrossKills(t *testing.T) {
	h := newDiskHarness(t)
	dead, die := context.WithCancel(t.Context())
	r := start(t, h.Manager, run.Request{Session: "s"})
	must(h.ChargeReadings(t.Context(), r.ID, []run.Reading{cpu("j-a", 100)}))(t)
	die()
	if _, err := h.ChargeReadings(dead, r.ID, []run.Reading{cpu("j-a", 150)}); err == nil {
		t.Log("the charge was stored despite the cancelled context") // this outcome is also correct
	}
	// The state in memory and the stored state of this Manager are the same.
	must(h.ChargeReadings(t.Context(), r.ID, []run.Reading{cpu("j-a", 160)}))(t)
	if got := h.spent(t, h.Manager, r, budget.CPU); got != 160 {
		t.Errorf("%d charged, want 160", got)
	}
	step(t, h.Manager, r.ID, "one")
	if err := h.Manager.Close(); err != nil {
		t.Fatal(err)
	}
	again := h.manager(t)
	must(again.ChargeReadings(t.Context(), r.ID, []run.Reading{cpu("j-a", 170)}))(t)
	if got := h.spent(t, again, r, budget.CPU); got != 170 {
		t.Errorf("%d charged after a restart, want 170", got)
	}
}

func TestCPULimitPausesOrFailsRun(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	for _, c := range []struct {
		on   run.OnExceed
		want run.State
	}{{run.PauseRun, run.Paused}, {run.StopRun, run.Failed}} {
		sid := "s-" + string(c.on)
		r := start(t, h.Manager, run.Request{Session: sid, OnExceed: c.on, Limits: budget.Amounts{budget.CPU: 100}})
		for _, total := range []int64{60, 85, 120} {
			r = must(h.ChargeReadings(ctx, r.ID, []run.Reading{cpu("j-a", total)}))(t)
		}
		if r.State != c.want || c.want == run.Paused && (r.Why != run.OverBudget || r.Shortage.Dimension != budget.CPU) {
			t.Errorf("run over its limit is %s (%s) with shortage %+v", r.State, r.Why, r.Shortage)
		}
		var warnings []string
		for _, e := range events(t, h.Manager, sid) {
			if e.Kind == run.BudgetWarned {
				var w budget.Warning
				if err := json.Unmarshal(e.Body, &w); err != nil {
					t.Fatal(err)
				}
				warnings = append(warnings, fmt.Sprintf("%s %d%%", w.Dimension, w.Percent))
			}
		}
		if got, want := strings.Join(warnings, ", "), "sandbox-cpu-ms 50%, sandbox-cpu-ms 80%, sandbox-cpu-ms 100%"; got != want {
			t.Errorf("warnings = %s, want %s", got, want)
		}
		// Usage until the jail is frozen is charged, too.
		must(h.ChargeReadings(ctx, r.ID, []run.Reading{cpu("j-a", 125)}))(t)
		if got := h.spent(t, h.Manager, r, budget.CPU); got != 125 {
			t.Errorf("%d charged after the limit, want 125", got)
		}
		if c.want == run.Paused {
			r = must(h.Move(ctx, r.ID, run.Move{To: run.Active, Limits: budget.Amounts{budget.CPU: 200}}))(t)
			if r.State != run.Active {
				t.Errorf("run with a raised limit is %s, want active", r.State)
			}
		}
	}
}

func TestOnlyActiveTimeIsCharged(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s"})
	const work = 50 * time.Millisecond
	time.Sleep(work)
	must(h.ChargeReadings(ctx, r.ID, nil))(t)
	first := h.spent(t, h.Manager, r, budget.Wall)
	if first < work.Milliseconds() {
		t.Errorf("%d ms charged, want at least %s", first, work)
	}
	// The time of an approval is not charged.
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ForApproval}))(t)
	must(h.ChargeReadings(ctx, r.ID, nil))(t)
	before := h.spent(t, h.Manager, r, budget.Wall)
	time.Sleep(work)
	must(h.ChargeReadings(ctx, r.ID, nil))(t)
	if got := h.spent(t, h.Manager, r, budget.Wall); got != before {
		t.Errorf("%d ms charged during an approval, want 0", got-before)
	}
	began := time.Now()
	r = must(h.Move(ctx, r.ID, run.Move{To: run.Active}))(t)
	// The duration of a call is charged by Charge, and not again by ChargeReadings.
	must(h.Charge(ctx, r.ID, budget.Amounts{budget.Wall: time.Hour.Milliseconds()}))(t)
	must(h.ChargeReadings(ctx, r.ID, nil))(t)
	if got := h.spent(t, h.Manager, r, budget.Wall); got != before+time.Hour.Milliseconds() {
		t.Errorf("%d ms charged in addition to the hour of the call; %s passed", got-before-time.Hour.Milliseconds(), time.Since(began))
	}

	// A branch starts with the spending at its checkpoint.
	c := must(h.TakeCheckpoint(ctx, r.ID, run.CheckpointRequest{}))(t)
	b, _, err := h.Resume(ctx, r.ID, run.ResumeRequest{Checkpoint: c.ID, Branch: true})
	if err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	time.Sleep(work)
	must(h.ChargeReadings(ctx, b.ID, []run.Reading{cpu("j-branch", 9)}))(t)
	more := h.spent(t, h.Manager, b, budget.Wall) - c.Budget.Consumed[budget.Wall]
	if most := time.Since(b.Since).Milliseconds() + 1; more < work.Milliseconds() || more > most {
		t.Errorf("branch is charged %d ms since its checkpoint, active for %s", more, time.Since(began))
	}
	if got := h.spent(t, h.Manager, b, budget.CPU); got != 9 {
		t.Errorf("branch is charged %d ms of CPU, want 9", got)
	}
}
