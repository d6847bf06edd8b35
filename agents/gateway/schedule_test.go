package gateway

import (
	"errors"
	"testing"
	"time"

	"glasshouse/agents/run"
	"glasshouse/agents/schedule"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
)

// orderCron orders a goal on a schedule and returns the run that represents the schedule.
func (env *testEnv) orderCron(session, goal, cron string) run.Run {
	env.Helper()
	r, err := env.g.CreateRun(env.Context(), RunOrder{Request: run.Request{Session: session, Goal: goal, By: "ann", Creator: "t-ann"}, Timing: schedule.Spec{Cron: cron}})
	if err != nil {
		env.Fatalf("Order(%q) = %v, want a run", cron, err)
	}
	return r
}

func TestRunRepresentsSchedule(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	r := env.orderCron("s", "check the feed", "0 0 * * * *")
	if r.State != run.Scheduled || !id.Valid('h', r.Schedule) || time.Until(r.NextRunAt) > time.Hour {
		t.Fatalf("run = %+v, want scheduled within the hour", r)
	}
	h, err := env.schedules.Get(t.Context(), id.Schedule(r.Schedule))
	if err != nil || GoalOf(h) != "check the feed" {
		t.Errorf("the schedule's goal = %q, %v, want check the feed", GoalOf(h), err)
	}
	f := schedule.Firing{Schedule: h, Key: "due-1"}
	for range 2 { // a repeated due time creates one run
		if err := env.g.Fire(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	all, err := env.runs.List(t.Context(), run.Filter{Session: "s", States: []run.State{run.Active}})
	if err != nil || len(all) != 1 || all[0].Schedule != r.Schedule || all[0].Creator != "t-ann" {
		t.Fatalf("runs = %+v, %v, want one active run of the token t-ann", all, err)
	}
	if on, err := env.g.Running(t.Context(), h.ID); !on || err != nil {
		t.Errorf("Running = %v, %v, want true", on, err)
	}
	if _, err := env.g.Cancel(t.Context(), all[0].ID, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if on, err := env.g.Running(t.Context(), h.ID); on || err != nil {
		t.Errorf("Running after the run was cancelled = %v, %v, want false", on, err)
	}
	if _, err := env.schedules.Get(t.Context(), h.ID); err != nil {
		t.Errorf("schedule after the cancellation of one of its runs: %v, want it kept", err)
	}
}

// Resuming it is refused. Cancelling it still deletes the schedule.
func TestScheduleRunIsNeverStarted(t *testing.T) {
	for name, start := range map[string]func(env *testEnv, r run.Run) error{
		"Resume": func(env *testEnv, r run.Run) error {
			_, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{By: "ann"}, 0)
			return err
		},
		"Move": func(env *testEnv, r run.Run) error {
			_, err := env.g.Move(t.Context(), r.ID, run.Move{To: run.Active, By: "ann"})
			return err
		},
		"branch": func(env *testEnv, r run.Run) error {
			_, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{By: "ann"}, 2)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := newTestEnv(t).withoutLoop()
			r := env.orderCron("s", "check the feed", "@hourly")
			if err := start(env, r); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
				t.Errorf("%s = %v, want a conflict with a remedy", name, err)
			}
			if got := env.run(r.ID); got.State != run.Scheduled {
				t.Errorf("state = %s, want scheduled", got.State)
			}
			if _, err := env.g.Cancel(t.Context(), r.ID, "ann", ""); err != nil {
				t.Fatal(err)
			}
			if _, err := env.schedules.Get(t.Context(), id.Schedule(r.Schedule)); !errors.Is(err, fault.NotFound) {
				t.Errorf("schedule of a cancelled run: %v, want not found", err)
			}
		})
	}
}

// Resuming the run resumes the schedule.
func TestPausingScheduleRunPausesSchedule(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	r := env.orderCron("s", "check the feed", "@hourly")
	paused := func() bool {
		t.Helper()
		h, err := env.schedules.Get(t.Context(), id.Schedule(r.Schedule))
		if err != nil {
			t.Fatal(err)
		}
		return h.Paused
	}
	got, err := env.g.Pause(t.Context(), r.ID, "ann", "holiday")
	if err != nil || got.State != run.Paused || !paused() {
		t.Errorf("Pause = %s, %v with the schedule paused: %v, want both paused", got.State, err, paused())
	}
	back, err := env.g.Resume(t.Context(), r.ID, run.ResumeRequest{By: "ann"}, 0)
	if err != nil || len(back) != 1 || back[0].State != run.Scheduled || paused() {
		t.Errorf("Resume = %+v, %v with the schedule paused: %v, want both scheduled", back, err, paused())
	}
	if _, err := env.g.Move(t.Context(), r.ID, run.Move{To: run.Paused, By: "ann"}); err != nil || !paused() {
		t.Errorf("Move to paused = %v with the schedule paused: %v, want it paused", err, paused())
	}
	if _, err := env.g.Cancel(t.Context(), r.ID, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := env.schedules.Get(t.Context(), id.Schedule(r.Schedule)); !errors.Is(err, fault.NotFound) {
		t.Errorf("schedule of a paused and cancelled run: %v, want not found", err)
	}
}

func TestOrderWithSameKeyIsOneSchedule(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	o := RunOrder{Request: run.Request{Session: "s", Goal: "g", By: "ann", Key: "k"}, Timing: schedule.Spec{Cron: "@hourly"}}
	first, err := env.g.CreateRun(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	second, err := env.g.CreateRun(t.Context(), o)
	if err != nil || second.ID != first.ID {
		t.Errorf("repeated order = %s, %v, want %s", second.ID, err, first.ID)
	}
	all, err := env.schedules.List(t.Context(), schedule.Filter{})
	if err != nil || len(all) != 1 {
		t.Errorf("schedules = %d, %v, want 1", len(all), err)
	}
}

func TestRescheduleUpdatesNextRun(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	r := env.orderCron("s", "g", "@hourly")
	s, err := env.g.Reschedule(t.Context(), id.Schedule(r.Schedule), "ann", func(s *schedule.Spec) error { s.Cron = "0 0 1 1 *"; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if got := env.run(r.ID).NextRunAt; s.Next == nil || !got.Equal(*s.Next) {
		t.Errorf("next run = %s, want the due time of the schedule, %v", got, s.Next)
	}
	if err := env.g.Unschedule(t.Context(), s.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	if got := env.run(r.ID).State; got != run.Cancelled {
		t.Errorf("state after the deletion of the schedule = %s, want cancelled", got)
	}
	if err := env.g.Unschedule(t.Context(), s.ID, "ann"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Unschedule again = %v, want not found", err)
	}
}

// Another daemon may have deleted the schedule.
func TestRunOfRemovedScheduleIsCancelled(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	r := env.orderCron("s", "g", "@hourly")
	if err := env.g.updateNextRun(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if got := env.run(r.ID); got.State != run.Scheduled {
		t.Errorf("state = %s, want scheduled", got.State)
	}
	if err := env.schedules.Delete(t.Context(), id.Schedule(r.Schedule)); err != nil {
		t.Fatal(err)
	}
	if err := env.g.updateNextRun(t.Context(), env.run(r.ID)); err != nil {
		t.Fatal(err)
	}
	if got := env.run(r.ID); got.State != run.Cancelled {
		t.Errorf("state after the deletion of its schedule = %s, want cancelled", got.State)
	}
	// A cancellation that deleted the schedule and is slower than the supervisor has succeeded.
	if got, err := env.g.cancelUnscheduled(t.Context(), r.ID, "ann", "not needed"); err != nil || got.State != run.Cancelled {
		t.Errorf("cancellation after that of the supervisor = %s, %v, want cancelled", got.State, err)
	}
	if _, err := env.g.Cancel(t.Context(), r.ID, "ann", "again"); !errors.Is(err, fault.Conflict) {
		t.Errorf("cancellation of a cancelled run = %v, want a conflict", err)
	}
}

func TestRejectedOrderStoresNothing(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	for name, o := range map[string]RunOrder{
		"unknown agent":             {Request: run.Request{Agent: mustJSON(t, Agent{Preset: "unknown"})}},
		"unknown spawner":           {Request: run.Request{Agent: mustJSON(t, Agent{Preset: "shell", Spawner: "cloud"})}},
		"unavailable spawner":       {Request: run.Request{Agent: mustJSON(t, Agent{Preset: "shell", Spawner: InBwrap})}},
		"unsupported protocol":      {Request: run.Request{Agent: mustJSON(t, Agent{Preset: "builtin", Protocol: "acp"})}},
		"interactive protocol":      {Request: run.Request{Agent: mustJSON(t, Agent{Preset: "shell", Protocol: "interactive"})}},
		"no program for acp":        {Request: run.Request{Agent: mustJSON(t, Agent{Preset: "shell", Protocol: "acp"})}},
		"unknown skill":             {Request: run.Request{Agent: mustJSON(t, Agent{Preset: "builtin", Skills: []string{"juggling"}})}},
		"malformed agent":           {Request: run.Request{Agent: []byte("{")}},
		"malformed schedule":        {Timing: schedule.Spec{Cron: "every day"}},
		"schedule of personal data": {Request: run.Request{Labels: []manifest.Label{manifest.PII}}, Timing: schedule.Spec{Cron: "@hourly"}},
	} {
		o.Session, o.Goal = "s", "g"
		if r, err := env.g.CreateRun(t.Context(), o); err == nil {
			t.Errorf("%s: Order = %s, want an error", name, r.ID)
		}
	}
	runs, err := env.runs.List(t.Context(), run.Filter{})
	all, serr := env.schedules.List(t.Context(), schedule.Filter{})
	if err != nil || serr != nil || len(runs) != 0 || len(all) != 0 {
		t.Errorf("stored %d runs and %d schedules, %v, %v, want none", len(runs), len(all), err, serr)
	}
}
