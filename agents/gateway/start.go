package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/agents/schedule"
	"glasshouse/capability/budget"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
)

// An RunOrder requests a run: now, at a later time, or on a schedule.
type RunOrder struct {
	run.Request
	Timing schedule.Spec // uses only Cron, TZ, Missed, Overlap and Jitter; an empty Cron means a single run
}

// A scheduleTemplate is the stored template of the runs that a schedule creates.
type scheduleTemplate struct {
	Goal     string          `json:"goal"`
	Agent    json.RawMessage `json:"agent,omitempty"`
	Limits   budget.Amounts  `json:"limits,omitempty"`
	OnExceed run.OnExceed    `json:"on_exceed,omitempty"`
	Until    *run.Until      `json:"until,omitempty"`
	Key      string          `json:"key,omitempty"`     // key of the Order that created the schedule
	Creator  id.Token        `json:"creator,omitempty"` // see run.Request
}

// orders creates, schedules and ends runs on request.
type orders struct {
	*core
	supervisions *supervisions
	supervisor   *supervisor
}

// CreateRun creates a run or a schedule. For a schedule it returns the run that represents it:
// that run shows the next due time, and cancelling it deletes the schedule.
func (od *orders) CreateRun(ctx context.Context, o RunOrder) (run.Run, error) {
	o.Session = cmp.Or(o.Session, id.NewSession())
	if err := od.validateOrder(ctx, o); err != nil {
		return run.Run{}, err
	}
	if o.Timing.Cron != "" {
		return od.orderSchedule(ctx, o)
	}
	r, err := od.cfg.Runs.Create(ctx, o.Request)
	od.Wake()
	return r, err
}

// validateOrder returns an error if the agent of an order does not exist or cannot run here. At
// this point nothing is stored.
func (od *orders) validateOrder(ctx context.Context, o RunOrder) error {
	raw := o.Agent
	if raw == nil {
		s, err := od.cfg.Runs.Session(ctx, o.Session)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return fmt.Errorf("read session %s: %w", o.Session, err)
		}
		raw = s.Agent
	}
	a, err := od.agentOf(raw)
	if err != nil {
		return err
	}
	if err := od.check(a); err != nil {
		return err
	}
	return od.checkPolicyAgent(ctx, o, a)
}

// checkPolicyAgent rejects a policy agent that the rules of the run do not define. The general
// rules would apply instead, which may allow more.
func (od *orders) checkPolicyAgent(ctx context.Context, o RunOrder, a Agent) error {
	if a.PolicyAgent == "" {
		return nil
	}
	s, err := od.cfg.Runs.Session(ctx, o.Session)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return fmt.Errorf("read session %s: %w", o.Session, err)
	}
	var rules json.RawMessage
	if in := cmp.Or(o.Jail, s.Jail); in != "" {
		j, err := od.cfg.Jails.Get(ctx, in)
		if err != nil {
			return err
		}
		rules = j.Spec.Policy
	} else {
		rules, err = od.supervisor.policySpec(a)
		if err != nil {
			return err
		}
	}
	if err := govern.CheckAgent(rules, a.PolicyAgent); err != nil {
		return fault.Fieldf("gateway.checkPolicyAgent", "agent.policy_agent", "%w", err)
	}
	return nil
}

// orderSchedule creates the schedule of an order and the run that represents it.
func (od *orders) orderSchedule(ctx context.Context, o RunOrder) (run.Run, error) {
	const op = "gateway.orderSchedule"
	if manifest.Join(o.Labels...) != manifest.Public {
		return run.Run{}, fault.Fieldf(op, "labels", "schedules do not store personal data: refer to its location in the goal")
	}
	h, err := od.findOrCreateSchedule(ctx, o)
	if err != nil {
		return run.Run{}, err
	}
	wait := o.Request
	wait.Schedule, wait.Key = string(h.ID), "schedule/"+string(h.ID)
	wait.NextRunAt = o.NextRunAt
	if h.Next != nil && h.Next.After(wait.NextRunAt) {
		wait.NextRunAt = *h.Next
	}
	return od.cfg.Runs.Create(ctx, wait)
}

// findOrCreateSchedule creates the schedule of an order. If an earlier daemon was killed after
// it had created the schedule, that one is returned.
func (od *orders) findOrCreateSchedule(ctx context.Context, o RunOrder) (schedule.Schedule, error) {
	if o.Key != "" {
		for f := (schedule.Filter{Session: o.Session}); ; {
			list, err := od.services.Schedules.List(ctx, f)
			if err != nil || len(list) == 0 {
				if err != nil {
					return schedule.Schedule{}, fmt.Errorf("look for the schedule of an earlier request: %w", err)
				}
				break
			}
			for _, h := range list {
				var tmpl scheduleTemplate
				f.After = h.ID
				if json.Unmarshal(h.Run, &tmpl) == nil && tmpl.Key == o.Key {
					return h, nil
				}
			}
		}
	}
	text, err := json.Marshal(scheduleTemplate{o.Goal, o.Agent, o.Limits, o.OnExceed, o.Until, o.Key, o.Creator})
	if err != nil {
		return schedule.Schedule{}, fmt.Errorf("encode the run of the schedule: %w", err)
	}
	spec := o.Timing
	spec.Session, spec.Run = o.Session, text
	return od.services.Schedules.Create(ctx, spec)
}

// Fire creates the run of a due time. It implements schedule.Config.Fire.
func (od *orders) Fire(ctx context.Context, f schedule.Firing) error {
	var tmpl scheduleTemplate
	if err := json.Unmarshal(f.Schedule.Run, &tmpl); err != nil {
		return fault.New(fault.Invalid, "gateway.Fire", string(f.Schedule.ID), err)
	}
	_, err := od.cfg.Runs.Create(ctx, run.Request{
		Session: f.Schedule.Session, Goal: tmpl.Goal, Agent: tmpl.Agent, Limits: tmpl.Limits, OnExceed: tmpl.OnExceed, Until: tmpl.Until,
		Schedule: string(f.Schedule.ID), By: "schedule", Key: f.Key, Creator: tmpl.Creator,
	})
	od.Wake()
	if err != nil {
		return fmt.Errorf("create a run of schedule %s: %w", f.Schedule.ID, err)
	}
	return nil
}

// Running reports whether a run that a schedule created has not ended. It implements
// schedule.Config.Running.
func (od *orders) Running(ctx context.Context, h id.Schedule) (bool, error) {
	s, err := od.services.Schedules.Get(ctx, h)
	if err != nil {
		return false, err
	}
	found := false
	err = od.eachRun(ctx, run.Filter{Session: s.Session, States: []run.State{run.Active, run.Paused}}, func(r run.Run) bool {
		found = r.Schedule == string(h)
		return !found
	})
	return found, err
}

// eachRun calls do with runs, newest first, until do returns false.
func (co *core) eachRun(ctx context.Context, f run.Filter, do func(r run.Run) bool) error {
	f.Limit = 100
	for {
		list, err := co.cfg.Runs.List(ctx, f)
		if err != nil {
			return fmt.Errorf("list runs: %w", err)
		}
		for _, r := range list {
			f.After = r.ID
			if !do(r) {
				return nil
			}
		}
		if len(list) < f.Limit {
			return nil
		}
	}
}

// representsSchedule reports whether a run represents a schedule. Such a run never starts. The
// runs that the schedule creates have a start time.
func representsSchedule(r run.Run) bool {
	return id.Valid('h', r.Schedule) && r.Started.IsZero() && r.BranchOf == ""
}

// waitsForSchedule reports whether a run represents a schedule that is not paused.
func waitsForSchedule(r run.Run) bool { return r.State == run.Scheduled && representsSchedule(r) }

// updateNextRun sets the next due time of a run that represents a schedule.
func (od *orders) updateNextRun(ctx context.Context, r run.Run) error {
	h, err := od.services.Schedules.Get(ctx, id.Schedule(r.Schedule))
	switch {
	case errors.Is(err, fault.NotFound):
		_, err = od.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Cancelled, By: "schedule", Reason: "its schedule was deleted"})
	case err != nil:
		return fmt.Errorf("read the schedule of run %s: %w", r.ID, err)
	default:
		next := od.cfg.Runs.Now().Add(time.Minute) // the schedule is paused: check again later
		if h.Next != nil {
			next = *h.Next
		}
		if !next.After(r.NextRunAt) {
			return nil // the schedule is firing now
		}
		_, err = od.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Scheduled, NextRunAt: next, By: "schedule", Version: r.Version})
	}
	if errors.Is(err, fault.Conflict) {
		return nil // changed concurrently
	}
	if err != nil {
		return fmt.Errorf("update the due time of run %s: %w", r.ID, err)
	}
	return nil
}

// Cancel ends a run and its descendants. If the run represents a schedule, the schedule is
// deleted.
func (od *orders) Cancel(ctx context.Context, rid id.Run, by, reason string) (run.Run, error) {
	r, err := od.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return r, err
	}
	if representsSchedule(r) && !r.State.Ended() {
		if err := od.services.Schedules.Delete(ctx, id.Schedule(r.Schedule)); err != nil && !errors.Is(err, fault.NotFound) {
			return r, fmt.Errorf("delete schedule %s of the run: %w", r.Schedule, err)
		}
		return od.cancelUnscheduled(ctx, rid, by, reason)
	}
	r, err = od.cfg.Runs.Move(ctx, rid, run.Move{To: run.Cancelled, By: by, Reason: reason})
	od.cleanUpUnsupervised(r)
	return r, err
}

// cancelUnscheduled cancels a run that represented a deleted schedule. The supervisor does the same
// when it finds no schedule (updateNextRun), and may have been faster.
func (od *orders) cancelUnscheduled(ctx context.Context, rid id.Run, by, reason string) (run.Run, error) {
	r, err := od.cfg.Runs.Move(ctx, rid, run.Move{To: run.Cancelled, By: by, Reason: reason})
	if errors.Is(err, fault.Conflict) && r.State == run.Cancelled {
		return r, nil
	}
	return r, err
}

// Reschedule changes the timing of a schedule, and the due time of the run that represents it.
func (od *orders) Reschedule(ctx context.Context, h id.Schedule, by string, change func(*schedule.Spec) error) (schedule.Schedule, error) {
	s, err := od.services.Schedules.Update(ctx, h, change)
	if err != nil || s.Next == nil {
		return s, err
	}
	var errs []error
	err = od.eachScheduleRun(ctx, s, func(r run.Run) {
		_, err := od.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Scheduled, NextRunAt: *s.Next, By: by})
		errs = append(errs, err)
	})
	return s, errors.Join(append(errs, err)...)
}

// eachScheduleRun calls do with the runs that represent a schedule.
func (od *orders) eachScheduleRun(ctx context.Context, s schedule.Schedule, do func(r run.Run)) error {
	return od.eachRun(ctx, run.Filter{Session: s.Session, States: []run.State{run.Scheduled}}, func(r run.Run) bool {
		if r.Schedule == string(s.ID) {
			do(r)
		}
		return true
	})
}

// Unschedule deletes a schedule and cancels the run that represents it.
func (od *orders) Unschedule(ctx context.Context, h id.Schedule, by string) error {
	s, err := od.services.Schedules.Get(ctx, h)
	if err != nil {
		return err
	}
	if err := od.services.Schedules.Delete(ctx, h); err != nil {
		return err
	}
	var errs []error
	err = od.eachScheduleRun(ctx, s, func(r run.Run) {
		_, err := od.cancelUnscheduled(ctx, r.ID, by, "its schedule was deleted")
		errs = append(errs, err)
	})
	return errors.Join(append(errs, err)...)
}

// Pause pauses a run and its jail until the run is resumed. If the run represents a schedule,
// the schedule is paused.
func (od *orders) Pause(ctx context.Context, rid id.Run, by, reason string) (run.Run, error) {
	r, err := od.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return r, err
	}
	if waitsForSchedule(r) {
		if _, err := od.services.Schedules.Pause(ctx, id.Schedule(r.Schedule)); err != nil {
			return r, fmt.Errorf("pause schedule %s of the run: %w", r.Schedule, err)
		}
	}
	return od.cfg.Runs.Move(ctx, rid, run.Move{To: run.Paused, Why: run.ByOperator, By: by, Reason: reason})
}

// resumeSchedule resumes the schedule that a paused run represents. If the schedule is not
// paused, it returns fault.Conflict: such a run never starts itself.
func (co *core) resumeSchedule(ctx context.Context, r run.Run, by, reason string) (run.Run, error) {
	h := id.Schedule(r.Schedule)
	if r.State == run.Scheduled {
		return r, &fault.Error{Op: "gateway.Resume", On: string(r.ID), Kind: fault.Conflict,
			Err:    fmt.Errorf("the run represents schedule %s, which creates a new run at each due time", h),
			Remedy: "start a run now with glasshouse goal, or change the schedule with glasshouse schedule edit " + string(h)}
	}
	s, err := co.services.Schedules.Resume(ctx, h)
	if err != nil {
		return r, err
	}
	next := co.cfg.Runs.Now().Add(time.Minute) // not due again: updateNextRun checks later
	if s.Next != nil {
		next = *s.Next
	}
	return co.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Scheduled, NextRunAt: next, By: by, Reason: reason})
}

// Move changes the state of a run on an operator's request.
func (od *orders) Move(ctx context.Context, rid id.Run, v run.Move) (run.Run, error) {
	switch v.To {
	case run.Cancelled:
		return od.Cancel(ctx, rid, v.By, v.Reason)
	case run.Done:
		r, err := od.cfg.Runs.Finish(ctx, rid, run.Finish{Result: v.Result, By: v.By, Person: true})
		od.cleanUpUnsupervised(r)
		return r, err
	case run.Paused:
		v.Why = cmp.Or(v.Why, run.ByOperator)
	}
	current, err := od.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return current, err
	}
	if representsSchedule(current) && !current.State.Ended() {
		switch v.To {
		case run.Paused:
			return od.Pause(ctx, rid, v.By, v.Reason)
		case run.Active:
			return od.resumeSchedule(ctx, current, v.By, v.Reason)
		}
	}
	r, err := od.cfg.Runs.Move(ctx, rid, v)
	od.cleanUpUnsupervised(r)
	od.Wake()
	return r, err
}

// CloseSession closes a session. It deletes the session's capability data and the memory of
// its runs, and ends pending requests of its siblings. It is idempotent: a repeated call
// finishes an interrupted one.
func (od *orders) CloseSession(ctx context.Context, sid, by, reason string) (run.Session, error) {
	s, err := od.cfg.Runs.CloseSession(ctx, sid, by, reason)
	if err != nil {
		return s, err
	}
	var errs []error
	if od.services.Broker != nil {
		errs = append(errs, od.services.Broker.Leave(ctx, autonomy.Member{Session: sid, Group: s.Group, Name: s.Name}, "its session was closed"))
	}
	if od.cfg.Memory != nil { // the checkpoints keep their copies, for later branches
		errs = append(errs, od.eachRun(ctx, run.Filter{Session: sid}, func(r run.Run) bool {
			err := od.cfg.Memory.Forget(ctx, r.ID)
			errs = append(errs, err)
			return err == nil
		}))
	}
	return s, errors.Join(append(errs, od.cfg.Policy.EndSession(ctx, sid))...)
}

// cleanUpUnsupervised cleans up an ended run that is not supervised, because it was paused.
func (od *orders) cleanUpUnsupervised(r run.Run) {
	sup := od.supervisions.of(r.ID)
	if r.State.Ended() && sup == nil && od.ctx.Err() == nil {
		od.wg.Go(func() {
			od.supervisor.cleanUpRun(r)
			if err := od.cfg.Runs.Release(context.WithoutCancel(od.ctx), r.ID); err != nil {
				od.cfg.Log.Warn("could not release the claim on a run that has ended", "run", r.ID, "err", err)
			}
		})
	}
}

// GoalOf returns the goal of a schedule.
func GoalOf(h schedule.Schedule) string {
	var tmpl scheduleTemplate
	if json.Unmarshal(h.Run, &tmpl) != nil {
		return ""
	}
	return tmpl.Goal
}
