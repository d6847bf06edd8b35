package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/gateway"
	"glasshouse/agents/llm"
	"glasshouse/agents/run"
	"glasshouse/agents/schedule"
	"glasshouse/api/wire"
	"glasshouse/capability/budget"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
	"glasshouse/policy/access"
)

// Gateway runs agents. *gateway.Gateway implements it.
type Gateway interface {
	CreateRun(ctx context.Context, o gateway.RunOrder) (run.Run, error)
	Checkpoint(ctx context.Context, r id.Run, reason, by string, pause bool) (run.Checkpoint, error)
	Resume(ctx context.Context, r id.Run, q run.ResumeRequest, branches int) ([]run.Run, error)
	Pause(ctx context.Context, r id.Run, by, reason string) (run.Run, error)
	Cancel(ctx context.Context, r id.Run, by, reason string) (run.Run, error)
	Move(ctx context.Context, r id.Run, v run.Move) (run.Run, error)
	Reschedule(ctx context.Context, h id.Schedule, by string, change func(*schedule.Spec) error) (schedule.Schedule, error)
	Unschedule(ctx context.Context, h id.Schedule, by string) error
	CloseSession(ctx context.Context, sid, by, reason string) (run.Session, error)
	LimitJail(ctx context.Context, j id.Jail, l jail.Limits, by string) (jail.Jail, error)
	JailLimits(ctx context.Context, j id.Jail, after int64) (gateway.JailResources, error)
	AgentGateway
}

// runHandler serves the routes of runs and their checkpoints.
type runHandler struct {
	runs    Runs
	gateway Gateway
}

var noAgents = fault.Cannot("api.gateway", "this daemon does not run agents", "start the daemon with glasshouse serve")

// by returns the name of the caller, for the audit log.
func by(ctx context.Context) string { return access.CallerOf(ctx).Name }

// runFields maps field names of runs and schedules to the names in the API.
var runFields = map[string]string{"session": "session_id", "cron": "schedule", "tz": "time_zone", "jitter": "jitter_ms"}

func (h *runHandler) startRun(ctx context.Context, _ none, b wire.StartRun) (wire.Run, error) {
	o, err := orderOf(ctx, b)
	if err != nil {
		return wire.Run{}, err
	}
	r, err := h.gateway.CreateRun(ctx, o)
	return runOf(r), renameField(err, runFields)
}

func orderOf(ctx context.Context, b wire.StartRun) (gateway.RunOrder, error) {
	sid, err := sessionNamed(b.Session, b.Meta)
	if err != nil {
		return gateway.RunOrder{}, err
	}
	o := gateway.RunOrder{Request: run.Request{
		Session: sid, Parent: b.Parent, Goal: b.Goal, Limits: amounts(b.Budget),
		OnExceed: run.OnExceed(b.OnExceed), By: by(ctx), Creator: access.CallerOf(ctx).Token, Key: keyOf(ctx),
	}}
	jitter, err := millis("jitter_ms", b.JitterMS)
	if err != nil {
		return o, err
	}
	o.Timing = schedule.Spec{Cron: b.Schedule, TZ: b.TimeZone, Missed: schedule.Missed(b.Missed), Overlap: schedule.Overlap(b.Overlap), Jitter: jitter}
	if b.Schedule == "" && (b.TimeZone != "" || b.Missed != "" || b.Overlap != "" || b.JitterMS != 0) {
		return o, fault.Fieldf("api.orderOf", "schedule", "required if time_zone, missed, overlap or jitter_ms is set")
	}
	if b.NextRunAt != nil {
		o.NextRunAt = b.NextRunAt.UTC()
		if b.Schedule == "" && !o.NextRunAt.After(time.Now()) {
			return o, fault.Fieldf("api.orderOf", "next_run_at", "%s has passed", o.NextRunAt.Format(time.RFC3339))
		}
	}
	if len(b.Until) > 0 {
		o.Until, err = run.ParseUntil(b.Until)
		if err != nil {
			return o, err
		}
	}
	if b.Agent != nil {
		o.Agent, err = agentJSON(ctx, b.Agent)
	}
	return o, err
}

// agentJSON encodes an agent in the format that the gateway stores.
func agentJSON(ctx context.Context, w *wire.RunAgent) (json.RawMessage, error) {
	a := gateway.Agent{
		Preset: w.Preset, Model: w.Model, Protocol: w.Protocol, Spawner: w.Spawner, Argv: w.Argv, Env: w.Env, Skills: w.Skills, Level: w.Level, Keep: w.Keep,
		PolicyAgent: w.PolicyAgent,
	}
	if w.Level != 0 && !policy.Level(w.Level).Valid() {
		return nil, fault.Fieldf("api.agentJSON", "agent.level", "%d is not 1, 2 or 3", w.Level)
	}
	if t := w.Timers; t != nil {
		a.Timers = &autonomy.Timers{}
		if err := times(map[string]timed{"timers.wall_ms": {t.WallMS, &a.Timers.Wall}, "timers.idle_ms": {t.IdleMS, &a.Timers.Idle}, "timers.step_ms": {t.StepMS, &a.Timers.Step}}); err != nil {
			return nil, err
		}
	}
	if sv := w.Saves; sv != nil {
		a.Autosave = &gateway.AutosaveSettings{Steps: sv.Steps}
		if err := times(map[string]timed{"saves.every_ms": {sv.EveryMS, &a.Autosave.Every}}); err != nil {
			return nil, err
		}
		if a.Autosave.Every > 0 {
			a.Autosave.Every = max(a.Autosave.Every, time.Second)
		}
	}
	if w.Jail != nil {
		spec, err := specOf(*w.Jail)
		if err != nil {
			return nil, fault.New(fault.Invalid, "api.agentJSON", "agent.jail", err)
		}
		a.Jail, a.Trusted = &spec, trusted(ctx)
	}
	return json.Marshal(a)
}

// timed is a value in milliseconds with the destination of the duration.
type timed struct {
	ms int64
	to *time.Duration
}

func times(all map[string]timed) error {
	for field, t := range all {
		d, err := millis("agent."+field, t.ms)
		if err != nil {
			return err
		}
		*t.to = d
	}
	return nil
}

func agentOf(raw json.RawMessage) wire.RunAgent {
	var a gateway.Agent
	if len(raw) == 0 || json.Unmarshal(raw, &a) != nil {
		return wire.RunAgent{}
	}
	w := wire.RunAgent{
		Preset: a.Preset, Model: a.Model, Protocol: a.Protocol, Spawner: a.Spawner, Argv: a.Argv, Env: a.Env, Skills: a.Skills, Level: a.Level, Keep: a.Keep,
		PolicyAgent: a.PolicyAgent,
	}
	if t := a.Timers; t != nil {
		w.Timers = &wire.RunTimers{WallMS: t.Wall.Milliseconds(), IdleMS: t.Idle.Milliseconds(), StepMS: t.Step.Milliseconds()}
	}
	if s := a.Autosave; s != nil {
		w.Saves = &wire.RunSaves{Steps: s.Steps, EveryMS: s.Every.Milliseconds()}
	}
	return w
}

type listRuns struct {
	Session string `query:"session_id"`
	State   string `query:"state" enum:"scheduled,active,paused,done,failed,cancelled"`
	Parent  id.Run `query:"parent"`
	Limit   int    `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After   id.Run `query:"after" description:"The 'next' value of the previous page."`
}

func (h *runHandler) listRuns(ctx context.Context, p listRuns, _ none) (wire.Page[wire.Run], error) {
	f := run.Filter{Session: p.Session, Parent: p.Parent, After: p.After}
	if p.State != "" {
		f.States = []run.State{run.State(p.State)}
	}
	return pageOf(p.Limit, func(n int) ([]run.Run, error) {
		f.Limit = n
		return h.runs.List(ctx, f)
	}, func(r run.Run) string { return string(r.ID) }, runOf)
}

type oneRun struct {
	Run id.Run `path:"run"`
}

func (h *runHandler) getRun(ctx context.Context, p oneRun, _ none) (wire.Run, error) {
	r, err := h.runs.Get(ctx, p.Run)
	return runOf(r), err
}

type listActions struct {
	Run   id.Run `path:"run"`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After int64  `query:"after" description:"The 'next' value of the previous page."`
}

func (h *runHandler) listActions(ctx context.Context, p listActions, _ none) (wire.Page[wire.RunAction], error) {
	if _, err := h.runs.Get(ctx, p.Run); err != nil {
		return wire.Page[wire.RunAction]{}, err
	}
	return pageOf(p.Limit, func(n int) ([]run.Step, error) {
		return h.runs.Steps(ctx, run.StepFilter{Run: p.Run, After: p.After, Limit: n})
	}, func(s run.Step) string { return strconv.FormatInt(s.N, 10) }, actionOf)
}

func (h *runHandler) checkpointRun(ctx context.Context, p oneRun, b wire.TakeCheckpoint) (wire.Checkpoint, error) {
	c, err := h.gateway.Checkpoint(ctx, p.Run, b.Reason, by(ctx), b.Pause)
	return checkpointOf(c), err
}

func (h *runHandler) listCheckpoints(ctx context.Context, p listActions, _ none) (wire.Page[wire.Checkpoint], error) {
	return pageOf(p.Limit, func(n int) ([]run.Checkpoint, error) {
		return h.runs.Checkpoints(ctx, p.Run, p.After, n)
	}, func(c run.Checkpoint) string { return strconv.FormatInt(c.N, 10) }, checkpointOf)
}

type oneCheckpoint struct {
	Run        id.Run        `path:"run"`
	Checkpoint id.Checkpoint `path:"checkpoint"`
}

func (h *runHandler) getCheckpoint(ctx context.Context, p oneCheckpoint, _ none) (wire.Checkpoint, error) {
	c, err := h.runs.Checkpoint(ctx, p.Checkpoint)
	if err == nil && c.Run != p.Run {
		err = fault.Newf(fault.NotFound, "api.getCheckpoint", string(p.Checkpoint), "the checkpoint belongs to another run")
	}
	if err != nil {
		return wire.Checkpoint{}, err
	}
	w := checkpointOf(c)
	w.State = c.State
	return w, nil
}

func (h *runHandler) resumeRun(ctx context.Context, p oneRun, b wire.ResumeRun) (wire.Resumed, error) {
	if b.Branch < 0 || b.Branch > 64 {
		return wire.Resumed{}, fault.Fieldf("api.resumeRun", "branch", "%d is not between 0 and 64", b.Branch)
	}
	all, err := h.gateway.Resume(ctx, p.Run, run.ResumeRequest{Checkpoint: b.Checkpoint, Limits: amounts(b.Budget), By: by(ctx)}, b.Branch)
	return wire.Resumed{Runs: each(all, runOf)}, err
}

func (h *runHandler) pauseRun(ctx context.Context, p oneRun, _ none) (wire.Run, error) {
	r, err := h.gateway.Pause(ctx, p.Run, by(ctx), "paused by "+by(ctx))
	return runOf(r), err
}

func (h *runHandler) cancelRun(ctx context.Context, p oneRun, _ none) (wire.Run, error) {
	r, err := h.gateway.Cancel(ctx, p.Run, by(ctx), "cancelled by "+by(ctx))
	return runOf(r), err
}

func (h *runHandler) transitionRun(ctx context.Context, p oneRun, b wire.MoveRun) (wire.Run, error) {
	v := run.Move{To: run.State(b.State), Reason: b.Reason, By: by(ctx)}
	if b.Result != "" {
		var err error
		v.Result, err = json.Marshal(b.Result)
		if err != nil {
			return wire.Run{}, fmt.Errorf("encode the result of the run: %w", err)
		}
	}
	if v.To == run.Failed {
		v.Error = b.Reason
	}
	r, err := h.gateway.Move(ctx, p.Run, v)
	return runOf(r), err
}

// The remaining functions convert values to the types of the API.

func amounts(m map[string]int64) budget.Amounts {
	if len(m) == 0 {
		return nil
	}
	a := budget.Amounts{}
	for d, n := range m {
		a[budget.Dimension(d)] = n
	}
	return a
}

func plainAmounts(a budget.Amounts) map[string]int64 {
	m := make(map[string]int64, len(a))
	for d, n := range a {
		m[string(d)] = n
	}
	return m
}

func budgetOf(s budget.State) wire.RunBudget {
	w := wire.RunBudget{Limits: plainAmounts(s.Limits), Consumed: plainAmounts(s.Consumed), Remaining: map[string]int64{}}
	for d, n := range s.Limits {
		w.Remaining[string(d)] = max(0, n-s.Consumed[d])
	}
	return w
}

func manifestLabels(words []string) []manifest.Label {
	var all []manifest.Label
	for _, w := range words {
		all = append(all, manifest.Label(w))
	}
	return all
}

func labelWords(all []manifest.Label) []string {
	var words []string
	for _, l := range all {
		words = append(words, string(l))
	}
	return words
}

func at(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func runOf(r run.Run) wire.Run {
	w := wire.Run{
		ID: r.ID, Session: r.Session, Parent: r.Parent, Goal: r.Goal, State: string(r.State), Why: string(r.Why), Reason: r.Reason,
		Agent: agentOf(r.Agent), Jail: r.Jail, NextRunAt: at(r.NextRunAt), Budget: budgetOf(r.Budget), Error: r.Error,
		Steps: r.Steps, Restarts: r.Restarts, Checkpoint: r.Checkpoint, RemoteCheckpoint: r.Remote, Of: r.BranchOf, Branch: r.Branch,
		Created: r.Created.UTC(), Started: at(r.Started), Ended: at(r.Ended),
	}
	if id.Valid('h', r.Schedule) {
		w.Schedule = id.Schedule(r.Schedule)
	}
	if r.Until != nil {
		w.Until, _ = json.Marshal(r.Until) // cannot fail: it was decoded from JSON
	}
	if json.Unmarshal(r.Result, &w.Result) != nil {
		w.Result = string(r.Result)
	}
	return w
}

func actionOf(s run.Step) wire.RunAction {
	if s.Kind == run.Model {
		s.Output = answered(s.Output)
	}
	return wire.RunAction{
		N: s.N, Key: s.Key, Kind: string(s.Kind), Name: s.Name, State: string(s.State), Input: s.Input, Output: s.Output,
		Label: string(s.Label), Began: s.Began.UTC(), Ended: at(s.Ended),
	}
}

// answered returns the part of a model's response that the API shows. The full response is
// stored for the agent only.
func answered(raw json.RawMessage) json.RawMessage {
	var kept llm.Recorded
	if len(raw) == 0 || json.Unmarshal(raw, &kept) != nil || kept.ContentType == "" {
		return raw // a call without an idempotency key stores only the shown part
	}
	text, err := json.Marshal(map[string]any{"status": kept.Status, "content_type": kept.ContentType, "bytes": len(kept.Body)})
	if err != nil {
		return nil
	}
	return text
}

func checkpointOf(c run.Checkpoint) wire.Checkpoint {
	return wire.Checkpoint{ID: c.ID, Run: c.Run, N: c.N, At: c.At.UTC(), Reason: c.Reason, Auto: c.Auto, Steps: c.Steps, Snapshot: c.Snapshot, Digest: c.Digest, Entry: c.Entry}
}
