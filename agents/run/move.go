package run

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/chain"
)

// A Move changes the state of a run.
type Move struct {
	To        State
	Why       Why            // with Paused: the reason
	Reason    string         // for people
	By        string         // an operator, an agent, or the daemon
	NextRunAt time.Time      // with Scheduled, or with Paused and ForSchedule
	Limits    budget.Amounts // raised limits of its budget, to resume a run that is paused over its budget
	Result    json.RawMessage
	Error     string
	Version   int64 // not 0: refused if the run has changed its state since this version
}

// runs manages the state of runs.
type runs struct {
	*core
	local *localSessions
}

// Create creates a run. It is scheduled if NextRunAt is set, otherwise active.
func (rs *runs) Create(ctx context.Context, q Request) (Run, error) {
	if q.Session == "" {
		q.Session = id.NewSession()
	}
	if err := q.check(); err != nil {
		return Run{}, err
	}
	var made *Run
	err := rs.local.change(ctx, q.Session, func(t *transaction) error {
		if q.Key != "" {
			r, err := t.store.RunOf(ctx, q.Session, q.Key)
			if fault.KindOf(err) != fault.NotFound {
				made = &r
				return err
			}
		}
		var err error
		made, err = t.create(q)
		return err
	})
	if err != nil {
		return Run{}, err
	}
	return *made, nil
}

func (q *Request) check() error {
	const op = "run.Create"
	q.By = actor(q.By)
	q.OnExceed = cmp.Or(q.OnExceed, PauseRun)
	if q.OnExceed != PauseRun && q.OnExceed != StopRun {
		return fault.Fieldf(op, "on_exceed", "%.40q is neither pause nor stop", string(q.OnExceed))
	}
	switch {
	case !id.ValidSession(q.Session):
		return fault.Fieldf(op, "session", "%.140q is not a session name: want 1 to 128 characters of A-Z a-z 0-9 . _ : -", q.Session)
	case q.Goal == "":
		return fault.Fieldf(op, "goal", "must not be empty")
	case q.Jail != "" && !id.Valid('j', string(q.Jail)):
		return fault.Fieldf(op, "jail", "%.40q is not a jail id", string(q.Jail))
	}
	q.NextRunAt = q.NextRunAt.UTC().Round(0)
	if err := checkText(op, "schedule", q.Schedule, maxName); err != nil {
		return err
	}
	if err := checkText(op, "goal", q.Goal, maxGoal); err != nil {
		return err
	}
	if err := checkKey(op, q.Key); err != nil {
		return err
	}
	if err := checkLabels(op, q.Labels); err != nil {
		return err
	}
	if _, err := budget.New("run", nil, budget.State{Limits: q.Limits}, nil); err != nil {
		return err
	}
	return checkJSON(op, "agent", q.Agent, maxAgent)
}

func (t *transaction) create(q Request) (*Run, error) {
	const op = "run.Create"
	s, err := t.openForWriting(op)
	if err != nil {
		return nil, err
	}
	t.sessionChanged = true // conflicts with closing the session concurrently
	r := &Run{
		ID: id.NewRun(), Session: s.ID, Parent: q.Parent, Details: Details{Agent: q.Agent, Jail: cmp.Or(q.Jail, s.Jail)},
		Schedule: q.Schedule, NextRunAt: q.NextRunAt, Until: q.Until, Budget: budget.State{Limits: q.Limits}, OnExceed: q.OnExceed,
		Created: t.now, Creator: q.Creator, Key: q.Key,
	}
	if r.Agent == nil {
		r.Agent = s.Agent
	}
	parent := s.Entry
	if q.Parent != "" {
		p, err := t.run(q.Parent)
		if err != nil {
			return nil, err
		}
		if p.State.Ended() {
			return nil, fault.Newf(fault.Conflict, op, string(p.ID), "the parent is %s", p.State)
		}
		r.Creator = cmp.Or(q.Creator, p.Creator)
		r.Depth = p.Depth + 1
		if r.Depth > maxDepth {
			return nil, fault.Newf(fault.Exhausted, op, string(p.ID), "runs can be nested at most %d deep", maxDepth)
		}
		t.markChanged(p) // conflicts with ending the parent concurrently
		parent = p.Entry
	}
	r.Goal, err = t.seal(q.Goal, q.Labels)
	if err != nil {
		return nil, err
	}
	return r, t.startRun(r, parent, q.By, nil)
}

// startRun sets the initial state of a new run, and adds its event and record. more is added
// to both.
func (t *transaction) startRun(r *Run, parent int64, by string, more map[string]any) error {
	r.Recorder = t.cfg.Holder
	to := Active
	if !r.NextRunAt.IsZero() {
		to = Scheduled
	} else {
		r.Started = t.now
	}
	r.Since = t.now
	if err := r.move(to, "", ""); err != nil {
		return err
	}
	t.markChanged(r)
	body := map[string]any{"state": to, "goal": clip(r.Goal, maxReason), "by": by}
	for name, v := range map[string]any{"parent": r.Parent, "schedule": r.Schedule, "of": r.BranchOf} {
		if v != "" && v != id.Run("") {
			body[name] = v
		}
	}
	if to == Scheduled {
		body["next_run_at"] = r.NextRunAt
	}
	for name, v := range more {
		body[name] = v
	}
	if err := t.event(r.ID, RunCreated, body); err != nil {
		return err
	}
	return t.record(Record{Kind: chain.RunStarted, Run: r.ID, Parent: parent, Jail: r.Jail, By: by}, body)
}

// Get returns a run.
func (rs *runs) Get(ctx context.Context, rid id.Run) (Run, error) { return rs.store.Run(ctx, rid) }

// List lists runs, newest first.
func (rs *runs) List(ctx context.Context, f Filter) ([]Run, error) {
	f.Limit = pageLimit(f.Limit)
	return rs.store.Runs(ctx, f)
}

// Due returns runs whose NextRunAt has passed, earliest first.
func (rs *runs) Due(ctx context.Context, now time.Time, limit int) ([]Run, error) {
	return rs.store.Due(ctx, now, pageLimit(limit))
}

// Move changes the state of a run. If the run ends, its unfinished descendants are cancelled.
// An illegal transition returns fault.Conflict.
func (rs *runs) Move(ctx context.Context, rid id.Run, v Move) (Run, error) {
	if err := v.check(); err != nil {
		return Run{}, err
	}
	return rs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error { return t.move(r, v) })
}

func (v *Move) check() error {
	const op = "run.Move"
	if len(v.Limits) > 0 && v.To != Active && v.To != Scheduled {
		return fault.Fieldf(op, "limits", "limits can only be raised when the run resumes")
	}
	v.NextRunAt = v.NextRunAt.UTC().Round(0)
	v.Reason, v.Error, v.By = clip(v.Reason, maxReason), clip(v.Error, maxReason), actor(v.By)
	return checkJSON(op, "result", v.Result, maxOutput)
}

// changeRun lets f change a run, and returns the run after the change.
func (ls *localSessions) changeRun(ctx context.Context, rid id.Run, f func(t *transaction, r *Run) error) (Run, error) {
	r, err := ls.store.Run(ctx, rid)
	if err != nil {
		return Run{}, err
	}
	var got *Run
	err = ls.change(ctx, r.Session, func(t *transaction) error {
		r, err := t.run(rid)
		if err != nil {
			return err
		}
		got = r
		return f(t, r)
	})
	if got == nil {
		return Run{}, err
	}
	return *got, err
}

func (t *transaction) move(r *Run, v Move) error {
	v = v.masked(t.mask(r))
	if v.Version != 0 && v.Version < r.StateVersion {
		return fault.Newf(fault.Conflict, "run.Move", string(r.ID), "the run has changed its state and is now %s", r.describeState())
	}
	if v.To.Ended() {
		return t.end(r, v)
	}
	if len(v.Limits) > 0 {
		if err := raise(&r.Budget, v.Limits); err != nil {
			return err
		}
		if err := t.recordRaise(r.ID, r.Entry, v.By, v.Limits); err != nil {
			return err
		}
	}
	if r.State == Paused && r.Why == OverBudget {
		if err := t.checkAffordable(r); err != nil {
			return err
		}
	}
	if (v.To == Scheduled || v.Why == ForSchedule) && v.NextRunAt.IsZero() && r.NextRunAt.IsZero() {
		return fault.Fieldf("run.Move", "next_run_at", "must be set")
	}
	from, why := r.State, r.Why
	if err := r.move(v.To, v.Why, v.Reason); err != nil {
		return err
	}
	if !v.NextRunAt.IsZero() {
		r.NextRunAt = v.NextRunAt
	}
	r.addWaited(from, why, t.now)
	if v.To == Active {
		r.Shortage, r.NextRunAt = nil, time.Time{}
		if r.Started.IsZero() {
			r.Started = t.now
		}
	}
	return t.recordMove(r, from, v, chain.RunMoved)
}

// addWaited adds the time spent in the state from to Waited, unless the run was active.
// Resuming after a pause by the watchdog restarts the run's time.
func (r *Run) addWaited(from State, why Why, now time.Time) {
	r.addActiveTime(from, now)
	switch {
	case r.Started.IsZero():
	case from == Paused && why == ByWatchdog && r.State == Active:
		r.Waited = now.Sub(r.Started)
	case from != Active && !r.Since.IsZero():
		r.Waited += now.Sub(r.Since)
	}
	r.Since = now
}

// RestartTime restarts the time of a run, so that its time limit counts from now.
func (rs *runs) RestartTime(ctx context.Context, rid id.Run) (Run, error) {
	return rs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error {
		if r.State.Ended() || r.Started.IsZero() {
			return fault.Newf(fault.Conflict, "run.RestartTime", string(rid), "run is %s", r.describeState())
		}
		r.Waited, r.Since = t.now.Sub(r.Started), t.now
		t.markChanged(r)
		return nil
	})
}

// Installing adds to the event stream that programs are installed for the agent of a run.
func (rs *runs) Installing(ctx context.Context, rid id.Run, what string) error {
	_, err := rs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error {
		return t.event(rid, RunInstalling, map[string]any{"text": "installing " + what})
	})
	return err
}

// Warn adds a warning about a run to the event stream.
func (rs *runs) Warn(ctx context.Context, rid id.Run, cause, text string) error {
	_, err := rs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error {
		return t.event(rid, RunWarned, map[string]any{"cause": cause, "text": clip(text, maxReason)})
	})
	return err
}

// end ends a run and cancels its unfinished descendants.
func (t *transaction) end(r *Run, v Move) error {
	from := r.State
	if err := r.move(v.To, v.Why, v.Reason); err != nil {
		return err
	}
	r.addActiveTime(from, t.now)
	r.Since, r.Ended, r.Result, r.Error, r.NextRunAt = t.now, t.now, v.Result, v.Error, time.Time{}
	if c := t.current(); c != nil && c.runs[r.ID] != nil {
		w := c.runs[r.ID]
		t.endedRuns = append(t.endedRuns, w)
	}
	if err := t.recordMove(r, from, v, chain.RunEnded); err != nil {
		return err
	}
	below, err := t.unfinished(Filter{Session: r.Session, Parent: r.ID})
	if err != nil {
		return err
	}
	for _, child := range below {
		if err := t.end(child, Move{To: Cancelled, By: v.By, Reason: fmt.Sprintf("its parent %s is %s", r.ID, v.To)}); err != nil {
			return err
		}
	}
	return nil
}

// recordMove adds the event and the record of a change of state.
func (t *transaction) recordMove(r *Run, from State, v Move, kind chain.Kind) error {
	t.markChanged(r)
	body := map[string]any{"from": from, "to": r.State}
	for name, text := range map[string]string{"why": string(v.Why), "reason": v.Reason, "by": v.By, "error": v.Error} {
		if text != "" {
			body[name] = text
		}
	}
	if err := t.event(r.ID, RunMoved, body); err != nil {
		return err
	}
	if r.State.Ended() {
		body["steps"], body["journal"] = r.Steps, r.StepLogDigest
		if len(r.Result) > 0 {
			body["result"] = digest(r.Result)
		}
	}
	return t.record(Record{Kind: kind, Run: r.ID, Parent: r.Entry, Jail: r.Jail, By: v.By}, body)
}

// unfinished returns the unfinished runs of a filter, including the changes of this
// transaction.
func (t *transaction) unfinished(f Filter) ([]*Run, error) {
	f.Limit = page
	if f.States == nil {
		f.States = []State{Scheduled, Active, Paused}
	}
	var all []*Run
	for {
		list, err := t.store.Runs(t.ctx, f)
		if err != nil {
			return nil, fmt.Errorf("list the unfinished runs of session %s: %w", f.Session, err)
		}
		for _, r := range list {
			f.After = r.ID
			if t.runs[r.ID] == nil {
				t.runs[r.ID] = &r
			}
			if !t.runs[r.ID].State.Ended() {
				all = append(all, t.runs[r.ID])
			}
		}
		if len(list) < page {
			return all, nil
		}
	}
}

// Update lets the supervisor change the details of a run. f may be called more than once.
func (rs *runs) Update(ctx context.Context, rid id.Run, f func(d *Details)) (Run, error) {
	return rs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error {
		f(&r.Details)
		t.markChanged(r)
		if err := checkJSON("run.Update", "talk", r.Conversation, maxTalk); err != nil {
			return err
		}
		return checkJSON("run.Update", "agent", r.Agent, maxAgent)
	})
}

// beatEvery is the resolution of Run.LastHeartbeat.
const beatEvery = 15 * time.Second

// Heartbeat records that the agent of a run is alive, and returns the run.
func (rs *runs) Heartbeat(ctx context.Context, rid id.Run) (Run, error) {
	r, err := rs.store.Run(ctx, rid)
	if err != nil || r.State.Ended() || time.Since(r.LastHeartbeat) < beatEvery {
		return r, err
	}
	return rs.local.changeRun(ctx, rid, func(t *transaction, r *Run) error {
		r.LastHeartbeat = t.now
		t.markChanged(r)
		return nil
	})
}
