package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"glasshouse/autonomy"
	"glasshouse/budget"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/manifest"
	"glasshouse/run"
	"glasshouse/schedule"
)

// An Order asks for a run: now, at a time, or again and again.
type Order struct {
	run.Request
	Timing schedule.Spec // of which Cron, TZ, Missed, Overlap and Jitter count; without a Cron it is made once
}

// scheduleTemplate is what a schedule makes.
type scheduleTemplate struct {
	Goal     string          `json:"goal"`
	Agent    json.RawMessage `json:"agent,omitempty"`
	Limits   budget.Amounts  `json:"limits,omitempty"`
	OnExceed run.OnExceed    `json:"on_exceed,omitempty"`
	Until    *run.Until      `json:"until,omitempty"`
	Key      string          `json:"key,omitempty"` // of the request that asked for the schedule
}

// Order makes what is ordered. Of a schedule it returns the run that waits for it: it
// shows when the next one is made, and to cancel it is to end the schedule.
func (g *Gateway) Order(ctx context.Context, o Order) (run.Run, error) {
	o.Session = cmp.Or(o.Session, id.NewSession())
	if err := g.validateOrder(ctx, o); err != nil {
		return run.Run{}, err
	}
	if o.Timing.Cron != "" {
		return g.orderSchedule(ctx, o)
	}
	r, err := g.cfg.Runs.Create(ctx, o.Request)
	g.Poke()
	return r, err
}

// validateOrder refuses an agent that there is not, before anything is kept.
func (g *Gateway) validateOrder(ctx context.Context, o Order) error {
	raw := o.Agent
	if raw == nil {
		s, err := g.cfg.Runs.Session(ctx, o.Session)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
		raw = s.Agent
	}
	a, err := g.agentOf(raw)
	if err != nil {
		return err
	}
	if err := g.check(a); err != nil {
		return err
	}
	return g.checkPolicyAgent(ctx, o, a)
}

// checkPolicyAgent refuses a policy agent that the rules of the run do not define: the
// general rules would apply in its place, which may allow more.
func (g *Gateway) checkPolicyAgent(ctx context.Context, o Order, a Agent) error {
	if a.PolicyAgent == "" {
		return nil
	}
	s, err := g.cfg.Runs.Session(ctx, o.Session)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	var rules json.RawMessage
	if in := cmp.Or(o.Jail, s.Jail); in != "" {
		j, err := g.cfg.Jails.Get(ctx, in)
		if err != nil {
			return err
		}
		rules = j.Spec.Govern
	} else {
		rules, err = g.policySpec(a)
		if err != nil {
			return err
		}
	}
	if err := govern.CheckAgent(rules, a.PolicyAgent); err != nil {
		return fault.Fieldf("gateway.Start", "agent.policy_agent", "%w", err)
	}
	return nil
}

func (g *Gateway) orderSchedule(ctx context.Context, o Order) (run.Run, error) {
	const op = "gateway.Order"
	if manifest.Join(o.Labels...) != manifest.Public {
		return run.Run{}, fault.Fieldf(op, "labels", "what is personal is not kept in schedules: name in the goal where the agent finds it")
	}
	h, err := g.findOrCreateSchedule(ctx, o)
	if err != nil {
		return run.Run{}, err
	}
	wait := o.Request
	wait.Schedule, wait.Key = string(h.ID), "schedule/"+string(h.ID)
	wait.NextRunAt = o.NextRunAt
	if h.Next != nil && h.Next.After(wait.NextRunAt) {
		wait.NextRunAt = *h.Next
	}
	return g.cfg.Runs.Create(ctx, wait)
}

// findOrCreateSchedule makes the schedule of an order, or finds the one that was made for it: a
// daemon may have been killed before it could say so.
func (g *Gateway) findOrCreateSchedule(ctx context.Context, o Order) (schedule.Schedule, error) {
	if o.Key != "" {
		for f := (schedule.Filter{Session: o.Session}); ; {
			list, err := g.cfg.Schedules.List(ctx, f)
			if err != nil || len(list) == 0 {
				if err != nil {
					return schedule.Schedule{}, err
				}
				break
			}
			for _, h := range list {
				var m scheduleTemplate
				if f.After = h.ID; json.Unmarshal(h.Make, &m) == nil && m.Key == o.Key {
					return h, nil
				}
			}
		}
	}
	text, err := json.Marshal(scheduleTemplate{o.Goal, o.Agent, o.Limits, o.OnExceed, o.Until, o.Key})
	if err != nil {
		return schedule.Schedule{}, err
	}
	spec := o.Timing
	spec.Session, spec.Make = o.Session, text
	return g.cfg.Schedules.Create(ctx, spec)
}

// Fire makes the run of a due time. It implements schedule.Config.Fire.
func (g *Gateway) Fire(ctx context.Context, f schedule.Firing) error {
	var m scheduleTemplate
	if err := json.Unmarshal(f.Schedule.Make, &m); err != nil {
		return fault.New(fault.Invalid, "gateway.Fire", string(f.Schedule.ID), err)
	}
	_, err := g.cfg.Runs.Create(ctx, run.Request{
		Session: f.Schedule.Session, Goal: m.Goal, Agent: m.Agent, Limits: m.Limits, OnExceed: m.OnExceed, Until: m.Until,
		Schedule: string(f.Schedule.ID), By: "schedule", Key: f.Key,
	})
	g.Poke()
	return err
}

// Running reports whether a run that a schedule has made goes on. It implements
// schedule.Config.Running.
func (g *Gateway) Running(ctx context.Context, h id.Schedule) (bool, error) {
	s, err := g.cfg.Schedules.Get(ctx, h)
	if err != nil {
		return false, err
	}
	found := false
	err = g.eachRun(ctx, run.Filter{Session: s.Session, States: []run.State{run.Active, run.Paused}}, func(r run.Run) bool {
		found = r.Schedule == string(h)
		return !found
	})
	return found, err
}

// eachRun calls f with runs, newest first, until it returns false.
func (g *Gateway) eachRun(ctx context.Context, f run.Filter, do func(r run.Run) bool) error {
	f.Limit = 100
	for {
		list, err := g.cfg.Runs.List(ctx, f)
		if err != nil {
			return err
		}
		for _, r := range list {
			if f.After = r.ID; !do(r) {
				return nil
			}
		}
		if len(list) < f.Limit {
			return nil
		}
	}
}

// representsSchedule reports whether a run stands for its schedule, which makes other runs, and
// never starts itself. Those that the schedule has made have started.
func representsSchedule(r run.Run) bool { return id.Valid('h', r.Schedule) && r.Started.IsZero() && r.Of == "" }

// waitsForSchedule reports whether a run only waits for its schedule to make others.
func waitsForSchedule(r run.Run) bool { return r.State == run.Scheduled && representsSchedule(r) }

// updateNextRun has the run that waits for a schedule show its next time.
func (g *Gateway) updateNextRun(ctx context.Context, r run.Run) error {
	h, err := g.cfg.Schedules.Get(ctx, id.Schedule(r.Schedule))
	switch {
	case errors.Is(err, fault.NotFound):
		_, err = g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Cancelled, By: "schedule", Reason: "its schedule was removed"})
	case err != nil:
		return err
	default:
		next := time.Now().Add(time.Minute) // paused: it is looked again
		if h.Next != nil {
			next = *h.Next
		}
		if !next.After(r.NextRunAt) {
			return nil // it is being made at this moment
		}
		_, err = g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Scheduled, NextRunAt: next, By: "schedule", Version: r.Version})
	}
	if errors.Is(err, fault.Conflict) {
		return nil // somebody was faster
	}
	return err
}

// Cancel ends a run, and all below it; of one that waits for a schedule, the schedule.
func (g *Gateway) Cancel(ctx context.Context, rid id.Run, by, reason string) (run.Run, error) {
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return r, err
	}
	if representsSchedule(r) && !r.State.Ended() {
		if err := g.cfg.Schedules.Delete(ctx, id.Schedule(r.Schedule)); err != nil && !errors.Is(err, fault.NotFound) {
			return r, err
		}
	}
	r, err = g.cfg.Runs.Move(ctx, rid, run.Move{To: run.Cancelled, By: by, Reason: reason})
	g.cleanUpUnsupervised(r)
	return r, err
}

// Reschedule changes when a schedule is due. The run that waits for it shows its new
// time.
func (g *Gateway) Reschedule(ctx context.Context, h id.Schedule, by string, change func(*schedule.Spec) error) (schedule.Schedule, error) {
	s, err := g.cfg.Schedules.Update(ctx, h, change)
	if err != nil || s.Next == nil {
		return s, err
	}
	var errs []error
	err = g.eachScheduleRun(ctx, s, func(r run.Run) {
		_, err := g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Scheduled, NextRunAt: *s.Next, By: by})
		errs = append(errs, err)
	})
	return s, errors.Join(append(errs, err)...)
}

// eachScheduleRun calls do with the runs that wait for a schedule to make others.
func (g *Gateway) eachScheduleRun(ctx context.Context, s schedule.Schedule, do func(r run.Run)) error {
	return g.eachRun(ctx, run.Filter{Session: s.Session, States: []run.State{run.Scheduled}}, func(r run.Run) bool {
		if r.Schedule == string(s.ID) {
			do(r)
		}
		return true
	})
}

// Unschedule removes a schedule, and the run that waits for it.
func (g *Gateway) Unschedule(ctx context.Context, h id.Schedule, by string) error {
	s, err := g.cfg.Schedules.Get(ctx, h)
	if err != nil {
		return err
	}
	if err := g.cfg.Schedules.Delete(ctx, h); err != nil {
		return err
	}
	var errs []error
	err = g.eachScheduleRun(ctx, s, func(r run.Run) {
		_, err := g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Cancelled, By: by, Reason: "its schedule was removed"})
		errs = append(errs, err)
	})
	return errors.Join(append(errs, err)...)
}

// Pause has a run wait until it is resumed. Its jail is paused. If the run stands for a
// schedule, the schedule is paused.
func (g *Gateway) Pause(ctx context.Context, rid id.Run, by, reason string) (run.Run, error) {
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return r, err
	}
	if waitsForSchedule(r) {
		if _, err := g.cfg.Schedules.Pause(ctx, id.Schedule(r.Schedule)); err != nil {
			return r, err
		}
	}
	return g.cfg.Runs.Move(ctx, rid, run.Move{To: run.Paused, Why: run.ByOperator, By: by, Reason: reason})
}

// resumeSchedule resumes the schedule that a paused run stands for. A run whose schedule is
// not paused has nothing to resume, and is never started itself.
func (g *Gateway) resumeSchedule(ctx context.Context, r run.Run, by, reason string) (run.Run, error) {
	h := id.Schedule(r.Schedule)
	if r.State == run.Scheduled {
		return r, &fault.Error{Op: "gateway.Resume", On: string(r.ID), Kind: fault.Conflict,
			Err:    fmt.Errorf("it stands for schedule %s, which starts a run of its own each time it is due", h),
			Remedy: "start a run now with glasshouse goal, or change the schedule with glasshouse schedules edit " + string(h)}
	}
	s, err := g.cfg.Schedules.Resume(ctx, h)
	if err != nil {
		return r, err
	}
	next := time.Now().Add(time.Minute) // never due again: renew looks then
	if s.Next != nil {
		next = *s.Next
	}
	return g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Scheduled, NextRunAt: next, By: by, Reason: reason})
}

// Move changes a run's state by hand.
func (g *Gateway) Move(ctx context.Context, rid id.Run, v run.Move) (run.Run, error) {
	switch v.To {
	case run.Cancelled:
		return g.Cancel(ctx, rid, v.By, v.Reason)
	case run.Done:
		r, err := g.cfg.Runs.Finish(ctx, rid, run.Finish{Result: v.Result, By: v.By, Person: true})
		g.cleanUpUnsupervised(r)
		return r, err
	case run.Paused:
		v.Why = cmp.Or(v.Why, run.ByOperator)
	}
	was, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return was, err
	}
	if representsSchedule(was) && !was.State.Ended() {
		switch v.To {
		case run.Paused:
			return g.Pause(ctx, rid, v.By, v.Reason)
		case run.Active:
			return g.resumeSchedule(ctx, was, v.By, v.Reason)
		}
	}
	r, err := g.cfg.Runs.Move(ctx, rid, v)
	g.cleanUpUnsupervised(r)
	g.Poke()
	return r, err
}

// CloseSession closes a session. What its agents kept and its runs remembered for the time
// of it is removed, and nobody waits for them any more. Closed again, it finishes what was
// cut short.
func (g *Gateway) CloseSession(ctx context.Context, sid, by, reason string) (run.Session, error) {
	s, err := g.cfg.Runs.CloseSession(ctx, sid, by, reason)
	if err != nil {
		return s, err
	}
	var errs []error
	if g.cfg.Broker != nil {
		errs = append(errs, g.cfg.Broker.Leave(ctx, autonomy.Member{Session: sid, Group: s.Group, Name: s.Name}, "its session was closed"))
	}
	if g.cfg.Memory != nil { // a branch that is made later has its checkpoint's
		errs = append(errs, g.eachRun(ctx, run.Filter{Session: sid}, func(r run.Run) bool {
			err := g.cfg.Memory.Forget(ctx, r.ID)
			errs = append(errs, err)
			return err == nil
		}))
	}
	return s, errors.Join(append(errs, g.cfg.Kernel.EndSession(ctx, sid))...)
}

// cleanUpUnsupervised sees to what is left of a run that has ended and that nobody is at: it was
// paused.
func (g *Gateway) cleanUpUnsupervised(r run.Run) {
	at := g.supervisionOf(r.ID)
	if r.State.Ended() && at == nil && g.ctx.Err() == nil {
		g.wg.Go(func() {
			g.cleanUpRun(r)
			if err := g.cfg.Runs.Release(context.WithoutCancel(g.ctx), r.ID); err != nil {
				g.cfg.Log.Warn("a run that has ended is not given up", "run", r.ID, "err", err)
			}
		})
	}
}

// GoalOf is what a schedule has pursued.
func GoalOf(h schedule.Schedule) string {
	var m scheduleTemplate
	if json.Unmarshal(h.Make, &m) != nil {
		return ""
	}
	return m.Goal
}
