package run

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"glasshouse/budget"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
)

// A Move takes a run to another state.
type Move struct {
	To        State
	Why       Why            // what it waits for, when it is paused
	Reason    string         // for people
	By        string         // who: an operator, an agent, the daemon
	NextRunAt time.Time      // with Scheduled, or when it is paused for a schedule
	Limits    budget.Amounts // of its budget, raised: what a run needs to go on that was paused over it
	Result    json.RawMessage
	Error     string
	Version   int64 // not 0: only if the run has not moved since it was of this version
}

// Create makes a run, which is active at once, or scheduled if it has a time.
func (m *Manager) Create(ctx context.Context, q Request) (Run, error) {
	if q.Session == "" {
		q.Session = id.NewSession()
	}
	if err := q.check(); err != nil {
		return Run{}, err
	}
	var made *Run
	err := m.change(ctx, q.Session, func(t *turn) error {
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
	if q.OnExceed = cmp.Or(q.OnExceed, PauseRun); q.OnExceed != PauseRun && q.OnExceed != StopRun {
		return fault.Fieldf(op, "on_exceed", "%.40q is neither pause nor stop", string(q.OnExceed))
	}
	switch {
	case !id.ValidSession(q.Session):
		return fault.Fieldf(op, "session", "%.140q is no name of a session: 1 to 128 of A-Z a-z 0-9 . _ : -", q.Session)
	case q.Goal == "":
		return fault.Fieldf(op, "goal", "is missing")
	case q.Jail != "" && !id.Valid('j', string(q.Jail)):
		return fault.Fieldf(op, "jail", "%.40q is no jail", string(q.Jail))
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

func (t *turn) create(q Request) (*Run, error) {
	const op = "run.Create"
	s, err := t.ready(op)
	if err != nil {
		return nil, err
	}
	t.touched = true // that nobody closes it meanwhile
	r := &Run{
		ID: id.NewRun(), Session: s.ID, Parent: q.Parent, Details: Details{Agent: q.Agent, Jail: cmp.Or(q.Jail, s.Jail)},
		Schedule: q.Schedule, NextRunAt: q.NextRunAt, Until: q.Until, Budget: budget.State{Limits: q.Limits}, OnExceed: q.OnExceed,
		Created: t.now, Key: q.Key,
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
		if r.Depth = p.Depth + 1; r.Depth > maxDepth {
			return nil, fault.Newf(fault.Exhausted, op, string(p.ID), "runs are at most %d deep in each other", maxDepth)
		}
		t.touch(p) // that nobody ends it meanwhile
		parent = p.Entry
	}
	if r.Goal, err = t.seal(q.Goal, q.Labels); err != nil {
		return nil, err
	}
	return r, t.begin(r, parent, q.By, nil)
}

// begin makes a run that is new.
func (t *turn) begin(r *Run, parent int64, by string, more map[string]any) error {
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
	t.touch(r)
	body := map[string]any{"state": to, "goal": clip(r.Goal, maxReason), "by": by}
	for name, v := range map[string]any{"parent": r.Parent, "schedule": r.Schedule, "of": r.Of} {
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
func (m *Manager) Get(ctx context.Context, rid id.Run) (Run, error) { return m.store.Run(ctx, rid) }

// List lists runs, newest first.
func (m *Manager) List(ctx context.Context, f Filter) ([]Run, error) {
	f.Limit = pageOf(f.Limit)
	return m.store.Runs(ctx, f)
}

// Due returns runs that wait for a time which has come, earliest first.
func (m *Manager) Due(ctx context.Context, now time.Time, limit int) ([]Run, error) {
	return m.store.Due(ctx, now, pageOf(limit))
}

// Move takes a run to another state. When it ends, so do all runs below it that have
// not: they are cancelled. A move that the table does not have is a fault.Conflict.
func (m *Manager) Move(ctx context.Context, rid id.Run, v Move) (Run, error) {
	if err := v.check(); err != nil {
		return Run{}, err
	}
	return m.moved(ctx, rid, func(t *turn, r *Run) error { return t.move(r, v) })
}

func (v *Move) check() error {
	const op = "run.Move"
	if len(v.Limits) > 0 && v.To != Active && v.To != Scheduled {
		return fault.Fieldf(op, "limits", "are raised of a run that goes on")
	}
	v.NextRunAt = v.NextRunAt.UTC().Round(0)
	v.Reason, v.Error, v.By = clip(v.Reason, maxReason), clip(v.Error, maxReason), actor(v.By)
	return checkJSON(op, "result", v.Result, maxOutput)
}

// moved makes a change to a run, and returns it as it is then.
func (m *Manager) moved(ctx context.Context, rid id.Run, f func(t *turn, r *Run) error) (Run, error) {
	r, err := m.store.Run(ctx, rid)
	if err != nil {
		return Run{}, err
	}
	var got *Run
	err = m.change(ctx, r.Session, func(t *turn) error {
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

func (t *turn) move(r *Run, v Move) error {
	v = v.masked(t.mask(r))
	if v.Version != 0 && v.Version < r.Moved {
		return fault.Newf(fault.Conflict, "run.Move", string(r.ID), "it has moved meanwhile, and is %s", r.standing())
	}
	if v.To.Ended() {
		return t.end(r, v)
	}
	if len(v.Limits) > 0 {
		if err := raise(&r.Budget, v.Limits); err != nil {
			return err
		}
		if err := t.raised(r.ID, r.Entry, v.By, v.Limits); err != nil {
			return err
		}
	}
	if r.State == Paused && r.Why == OverBudget {
		if err := t.affords(r); err != nil {
			return err
		}
	}
	if (v.To == Scheduled || v.Why == ForSchedule) && v.NextRunAt.IsZero() && r.NextRunAt.IsZero() {
		return fault.Fieldf("run.Move", "next_run_at", "is missing")
	}
	from, why := r.State, r.Why
	if err := r.move(v.To, v.Why, v.Reason); err != nil {
		return err
	}
	if !v.NextRunAt.IsZero() {
		r.NextRunAt = v.NextRunAt
	}
	r.waited(from, why, t.now)
	if v.To == Active {
		r.Short, r.NextRunAt = nil, time.Time{}
		if r.Started.IsZero() {
			r.Started = t.now
		}
	}
	return t.said(r, from, v, chain.RunMoved)
}

// waited counts how long a run was in the state that it leaves, if it waited there. One
// that goes on after the watchdog had stopped it has its time anew.
func (r *Run) waited(from State, why Why, now time.Time) {
	r.worksTill(from, now)
	switch {
	case r.Started.IsZero():
	case from == Paused && why == ByWatchdog && r.State == Active:
		r.Waited = now.Sub(r.Started)
	case from != Active && !r.Since.IsZero():
		r.Waited += now.Sub(r.Since)
	}
	r.Since = now
}

// Renew gives a run the time anew that it may take: somebody lets it go on.
func (m *Manager) Renew(ctx context.Context, rid id.Run) (Run, error) {
	return m.moved(ctx, rid, func(t *turn, r *Run) error {
		if r.State.Ended() || r.Started.IsZero() {
			return fault.Newf(fault.Conflict, "run.Renew", string(rid), "it is %s", r.standing())
		}
		r.Waited, r.Since = t.now.Sub(r.Started), t.now
		t.touch(r)
		return nil
	})
}

// Warn has the feed say what a run is warned of.
func (m *Manager) Warn(ctx context.Context, rid id.Run, cause, text string) error {
	_, err := m.moved(ctx, rid, func(t *turn, r *Run) error {
		return t.event(rid, RunWarned, map[string]any{"cause": cause, "text": clip(text, maxReason)})
	})
	return err
}

// end ends a run, and all below it.
func (t *turn) end(r *Run, v Move) error {
	from := r.State
	if err := r.move(v.To, v.Why, v.Reason); err != nil {
		return err
	}
	r.worksTill(from, t.now)
	r.Since, r.Ended, r.Result, r.Error, r.NextRunAt = t.now, t.now, v.Result, v.Error, time.Time{}
	if c := t.current(); c != nil && c.runs[r.ID] != nil {
		w := c.runs[r.ID]
		t.ended = append(t.ended, w)
	}
	if err := t.said(r, from, v, chain.RunEnded); err != nil {
		return err
	}
	below, err := t.unended(Filter{Session: r.Session, Parent: r.ID})
	if err != nil {
		return err
	}
	for _, child := range below {
		if err := t.end(child, Move{To: Cancelled, By: v.By, Reason: fmt.Sprintf("the run above it, %s, is %s", r.ID, v.To)}); err != nil {
			return err
		}
	}
	return nil
}

// said tells of a move.
func (t *turn) said(r *Run, from State, v Move, kind chain.Kind) error {
	t.touch(r)
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
		body["steps"], body["journal"] = r.Steps, r.Journal
		if len(r.Result) > 0 {
			body["result"] = digest(r.Result)
		}
	}
	return t.record(Record{Kind: kind, Run: r.ID, Parent: r.Entry, Jail: r.Jail, By: v.By}, body)
}

// unended are the runs of a filter that have not ended, as they are in this turn.
func (t *turn) unended(f Filter) ([]*Run, error) {
	f.Limit = page
	if f.States == nil {
		f.States = []State{Scheduled, Active, Paused}
	}
	var all []*Run
	for {
		list, err := t.store.Runs(t.ctx, f)
		if err != nil {
			return nil, err
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

// Update writes on a run what its supervisor has to say of it. f may be called more
// than once.
func (m *Manager) Update(ctx context.Context, rid id.Run, f func(d *Details)) (Run, error) {
	return m.moved(ctx, rid, func(t *turn, r *Run) error {
		f(&r.Details)
		t.touch(r)
		if err := checkJSON("run.Update", "talk", r.Talk, maxTalk); err != nil {
			return err
		}
		return checkJSON("run.Update", "agent", r.Agent, maxAgent)
	})
}

// beatEvery is how often it is written that an agent lives.
const beatEvery = 15 * time.Second

// Beat says that the agent of a run lives, and returns the run as it is.
func (m *Manager) Beat(ctx context.Context, rid id.Run) (Run, error) {
	r, err := m.store.Run(ctx, rid)
	if err != nil || r.State.Ended() || time.Since(r.Beat) < beatEvery {
		return r, err
	}
	return m.moved(ctx, rid, func(t *turn, r *Run) error {
		r.Beat = t.now
		t.touch(r)
		return nil
	})
}
