package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/agents/agent"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	safetext "glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

const (
	// maxRestarts is how many times an agent that ends too early is restarted without
	// progress.
	maxRestarts = 5

	// recheckInterval is how often the state of a run is read while its agent works: another
	// daemon may have changed it without a notification.
	recheckInterval = 3 * time.Second

	// terminateTimeout is how long a process may take to exit after SIGTERM.
	terminateTimeout = 5 * time.Second

	// outputRing is the size in bytes of the output buffer of an agent's process.
	outputRing = 4 << 20
)

// A supervision is the state of one run while this daemon supervises it.
type supervision struct {
	run        id.Run
	jail       atomic.Pointer[id.Jail] // of the agent; nil: not known yet
	moved      chan struct{}           // capacity 1: the run may have changed its state
	heartbeat  chan struct{}           // capacity 1: the agent sent a heartbeat
	restart    chan string             // capacity 1: restart the agent, with the reason
	activity   *activity
	saver      saver
	loops      loopDetector
	taint      taint
	promptLock cancelableLock // held while a prompt is written to the agent

	mu sync.Mutex
	// +checklocks:mu
	changed chan struct{} // closed by notifyStateChange
	// +checklocks:mu
	claim context.Context // ends with the claim on the run; nil: not claimed yet
	// +checklocks:mu
	cancel context.CancelCauseFunc // of the supervision; nil: not claimed yet
}

// setClaim records the context that ends with the claim on the run, and the function that ends the
// supervision.
func (sup *supervision) setClaim(ctx context.Context, cancel context.CancelCauseFunc) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	sup.claim, sup.cancel = ctx, cancel
}

// end ends the supervision, and not the agent.
func (sup *supervision) end(why error) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if sup.cancel != nil {
		sup.cancel(why)
	}
}

// mayUse reports whether this daemon has the claim on the run, and the run uses jail j.
func (sup *supervision) mayUse(j id.Jail) bool {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	used := sup.jail.Load()
	return sup.claim != nil && sup.claim.Err() == nil && used != nil && *used == j
}

// stateChange returns a channel that is closed when the run may have changed its state.
func (sup *supervision) stateChange() <-chan struct{} {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if sup.changed == nil {
		sup.changed = make(chan struct{})
	}
	return sup.changed
}

// notifyStateChange wakes all waiters for a state change of the run.
func (sup *supervision) notifyStateChange() {
	sup.mu.Lock()
	if sup.changed != nil {
		close(sup.changed)
		sup.changed = nil
	}
	sup.mu.Unlock()
	select {
	case sup.moved <- struct{}{}:
	default:
	}
}

func newSupervision(rid id.Run) *supervision {
	return &supervision{
		run: rid, moved: make(chan struct{}, 1), heartbeat: make(chan struct{}, 1), restart: make(chan string, 1), activity: newActivity(), promptLock: make(cancelableLock, 1),
	}
}

// supervisions are the runs that this daemon supervises.
type supervisions struct {
	*core

	mu sync.Mutex
	// +checklocks:mu
	byRun map[id.Run]*supervision
	// +checklocks:mu
	leaving map[id.Run]bool // runs that another node is about to continue
}

// begin adds a supervision until end is called. It returns nil if the run is supervised, or about to
// leave this daemon.
func (su *supervisions) begin(r id.Run) (sup *supervision, end func()) {
	su.mu.Lock()
	defer su.mu.Unlock()
	if su.byRun[r] != nil || su.leaving[r] {
		return nil, nil
	}
	sup = newSupervision(r)
	su.byRun[r] = sup
	return sup, func() {
		su.mu.Lock()
		delete(su.byRun, r)
		su.mu.Unlock()
		su.Wake()
	}
}

// count returns the number of supervised runs.
func (su *supervisions) count() int {
	su.mu.Lock()
	defer su.mu.Unlock()
	return len(su.byRun)
}

// of returns the supervision of a run, or nil if this daemon does not supervise it.
func (su *supervisions) of(r id.Run) *supervision {
	su.mu.Lock()
	defer su.mu.Unlock()
	return su.byRun[r]
}

// list returns the supervisions of all runs of this daemon.
func (su *supervisions) list() []*supervision {
	su.mu.Lock()
	defer su.mu.Unlock()
	return slices.Collect(maps.Values(su.byRun))
}

// A supervisor starts the agents of runs, watches them, and cleans up after them.
type supervisor struct {
	*core
	supervisions *supervisions
	endpoints    *endpoints
	checkpoints  *checkpoints
	decisions    *decisions
	siblings     *siblings
	calls        *toolCalls
	api          *agentAPI

	startSlots chan struct{} // semaphore: limits the agents that start concurrently
}

// startSupervision starts to supervise a run, unless this daemon already does or the gateway
// is closed.
func (sv *supervisor) startSupervision(r run.Run) {
	if sv.ctx.Err() != nil {
		return
	}
	sup, end := sv.supervisions.begin(r.ID)
	if sup == nil {
		return
	}
	sv.wg.Go(func() {
		defer end()
		sv.supervise(sup)
	})
}

// handleRunEvent handles an event of a run. It does not block.
func (sv *supervisor) handleRunEvent(e run.Event) {
	if e.Kind != run.RunMoved && e.Kind != run.RunCreated {
		return
	}
	sup := sv.supervisions.of(e.Run)
	if sup == nil {
		sv.Wake()
		return
	}
	sup.notifyStateChange()
}

// supervise claims a run and keeps an agent running for it while it is active. It returns when
// the run is paused, scheduled or ended, or when another daemon has the claim.
func (sv *supervisor) supervise(sup *supervision) {
	claimed, err := sv.cfg.Runs.Claim(sv.ctx, sup.run)
	if err != nil {
		if !errors.Is(err, fault.Conflict) && sv.ctx.Err() == nil {
			sv.cfg.Log.Error("could not claim a run", "run", sup.run, "err", err)
		}
		return
	}
	ctx, cancel := context.WithCancelCause(claimed) // the claim's context outlives the gateway
	sup.setClaim(claimed, cancel)
	defer cancel(nil)
	defer context.AfterFunc(sv.ctx, func() { cancel(context.Cause(sv.ctx)) })()
	defer func() {
		if err := sv.cfg.Runs.Release(context.WithoutCancel(ctx), sup.run); err != nil && sv.ctx.Err() == nil {
			sv.cfg.Log.Warn("could not release the claim on a run", "run", sup.run, "err", err)
		}
	}()
	frozen := make(chan struct{})
	stop := context.AfterFunc(claimed, func() {
		defer close(frozen)
		if errors.Is(context.Cause(claimed), run.ErrLost) {
			sv.freeze(sup)
		}
	})
	defer func() {
		if !stop() {
			<-frozen
		}
	}()
	defer sv.meter(ctx, sup.run)()
	for first := true; ctx.Err() == nil; first = false {
		r, err := sv.cfg.Runs.Get(ctx, sup.run)
		if err == nil && first {
			err = sv.checkpoints.initSaver(ctx, &sup.saver, r)
		}
		if err != nil {
			sv.cfg.Log.Error("could not read a run", "run", sup.run, "err", err)
			return
		}
		sup.jail.Store(&r.Jail)
		switch {
		case r.State.Ended():
			sv.cleanUpRun(r)
			return
		case r.State == run.Paused && r.Why != run.ForApproval:
			sv.pauseJail(ctx, r)
			return
		case r.State == run.Scheduled:
			return
		}
		if err := sv.runAgent(ctx, sup, r); err != nil && ctx.Err() == nil {
			sv.restartOrFail(ctx, sup, r, err)
		}
	}
}

// useJail records the jail that an agent is going to use, and fences it. "" is none.
func (sv *supervisor) useJail(sup *supervision, j id.Jail) error {
	sup.jail.Store(&j)
	if j == "" {
		return nil
	}
	if err := sv.cfg.Fence(j); err != nil {
		return fmt.Errorf("fence jail %s: %w", j, err)
	}
	return nil
}

// freezeTimeout limits the attempts to freeze a jail. It is less than the time between the end of
// a term and the expiry of its lease (see package fleet).
const freezeTimeout = 8 * time.Second

// freeze pauses the jail of a run that this daemon may no longer execute: another daemon may
// continue it soon. Supervision resumes the jail if this daemon gets the run again; otherwise
// sweep stops it.
func (sv *supervisor) freeze(sup *supervision) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(sv.ctx), freezeTimeout)
	defer cancel()
	all, err := sv.cfg.Jails.List(ctx, jail.ListOptions{Label: map[string]string{LabelRun: string(sup.run)}})
	jails := map[id.Jail]bool{}
	for _, j := range all {
		jails[j.ID] = true
	}
	if j := sup.jail.Load(); j != nil && *j != "" {
		jails[*j] = true
	}
	for j := range jails {
		err = errors.Join(err, sv.freezeJail(ctx, j))
	}
	if err != nil {
		sv.cfg.Log.Error("could not freeze the jail of a run that another daemon may continue", "run", sup.run, "err", err)
	}
}

// freezeJail pauses a jail, unless it does not run. It retries until ctx is done. If the daemon has
// its lease back, another run in the same jail may have resumed the jail before this pause, and would
// not resume it again. Therefore freezeJail itself resumes the jail of a run that the daemon may execute.
func (sv *supervisor) freezeJail(ctx context.Context, j id.Jail) error {
	inUse := func() bool {
		return slices.ContainsFunc(sv.supervisions.list(), func(sup *supervision) bool { return sup.mayUse(j) })
	}
	for {
		_, err := sv.cfg.Jails.Pause(ctx, j)
		if inUse() {
			if now, gerr := sv.cfg.Jails.Get(ctx, j); gerr == nil && now.PausedBy != "" {
				return nil
			}
			_, err = sv.cfg.Jails.Resume(ctx, j)
			if (err == nil || errors.Is(err, fault.Conflict)) && !inUse() { // that run's claim ended, too, and its pause may have been the first
				continue
			}
		}
		if err == nil || errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("pause jail %s: %w", j, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// errEnded reports that an agent ended before its run did.
type errEnded struct{ why string }

func (e errEnded) Error() string { return e.why }

// errEndpointClosed reports that the endpoint of an agent outside of jails was closed.
var errEndpointClosed = errors.New("the endpoint of the agent was closed")

// restoreInterval is the time between attempts to restore a lost jail.
const restoreInterval = 5 * time.Second

// restartOrFail records a restart and waits for the backoff, or moves the run to failed after
// a permanent error or too many restarts. Failures that are not the agent's are not counted.
func (sv *supervisor) restartOrFail(ctx context.Context, sup *supervision, r run.Run, cause error) {
	if errors.Is(cause, errEndpointClosed) {
		// The daemon is shutting down. This is not a failure of the agent.
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		return
	}
	if _, ok := errors.AsType[errNotYet](cause); ok {
		sv.cfg.Log.Warn("a run cannot continue yet; it is tried again", "run", r.ID, "err", cause, "remedy", fault.RemedyOf(cause))
		select {
		case <-time.After(restoreInterval):
		case <-sup.moved:
		case <-ctx.Done():
		}
		return
	}
	sv.cfg.Log.Warn("the agent of a run ended too early", "run", r.ID, "restarts", r.Restarts, "err", cause)
	now, err := sv.cfg.Runs.Get(ctx, r.ID)
	if err != nil || now.State != run.Active {
		return
	}
	permanent := errors.Is(cause, fault.Invalid) || errors.Is(cause, fault.Unsupported) || errors.Is(cause, fault.NotFound) || errors.Is(cause, fault.Denied)
	restarts := now.Restarts
	if ag, err := sv.agentOf(now.Agent); err == nil && ag.Preset == "builtin" && now.Steps > now.StepsAtRestart {
		// The agent made progress. The steps of other agents do not show progress, since those
		// agents repeat their requests after a restart.
		restarts = 0
	}
	if permanent || restarts >= maxRestarts {
		reason := cause.Error()
		if remedy := fault.RemedyOf(cause); remedy != "" {
			reason += "; " + remedy
		}
		if _, err := sv.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Failed, By: "gateway", Error: reason, Reason: reason}); err != nil && !errors.Is(err, fault.Conflict) {
			sv.cfg.Log.Error("could not move a run to failed", "run", r.ID, "err", err)
		}
		return
	}
	_, exited := errors.AsType[errEnded](cause)
	if _, err := sv.cfg.Runs.Update(ctx, r.ID, func(d *run.Details) {
		d.Restarts, d.StepsAtRestart = restarts+1, now.Steps
		if exited { // otherwise the process may still run, and launch looks for it
			d.Exec = ""
		}
	}); err != nil {
		sv.cfg.Log.Error("could not store the restart of an agent", "run", r.ID, "err", err)
	}
	backoff := min(time.Second<<restarts, time.Minute)
	select {
	case <-time.After(backoff):
	case <-sup.moved:
	case <-ctx.Done():
	}
}

// runAgent starts the agent of a run, or finds it running, and waits until it ends or the run
// is no longer active.
func (sv *supervisor) runAgent(ctx context.Context, sup *supervision, r run.Run) error {
	ag, err := sv.agentOf(r.Agent)
	if err != nil {
		return err
	}
	if err := sv.check(ag); err != nil {
		return err
	}
	if err := sv.useJail(sup, r.Jail); err != nil { // tools of agents outside of jails use it
		return err
	}
	started, err := sv.acquireStartSlot(ctx, sup)
	if err != nil {
		return err
	}
	defer started()
	if ag.Spawner != InJail {
		if err := sv.resumeJail(ctx, r.Jail); err != nil {
			return err
		}
		return sv.runOutside(ctx, sup, r, ag, started)
	}
	j, err := sv.ensureJail(ctx, r, ag)
	if err != nil {
		return err
	}
	if err := sv.useJail(sup, j.ID); err != nil {
		return err
	}
	sv.endpoints.assign(j.ID, r.ID)
	sv.endpoints.JailStarted(j)
	x, l, err := sv.launch(ctx, r, ag, j)
	if err != nil {
		return err
	}
	sup.activity.recordHeartbeat() // the time limit of the first heartbeat starts now
	if x == r.Exec {               // it was already running
		started()
	} else {
		sv.releaseOnHeartbeat(ctx, sup, ag, started)
	}
	if l.Protocol == agent.ACP {
		return sv.converseInJail(ctx, sup, r, j, x, l, ag)
	}
	return sv.waitInJail(ctx, sup, r, j.ID, x, l, ag)
}

// firstBeatTimeout limits how long an agent that has not sent a heartbeat keeps its start
// slot.
const firstBeatTimeout = 2 * time.Second

// acquireStartSlot waits for a slot to start an agent. The slots go to the oldest runs first
// and limit concurrent starts, so that a daemon which finds many runs does not start all of
// them together. The first call of started frees the slot.
func (sv *supervisor) acquireStartSlot(ctx context.Context, sup *supervision) (started func(), err error) {
	select {
	case sv.startSlots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case <-sup.heartbeat: // drop a heartbeat of the previous process
	default:
	}
	return sync.OnceFunc(func() { <-sv.startSlots }), nil
}

// releaseOnHeartbeat calls started after the first heartbeat or a timeout, or immediately for
// agents that send no heartbeats.
func (sv *supervisor) releaseOnHeartbeat(ctx context.Context, sup *supervision, ag Agent, started func()) {
	if ag.Preset != "builtin" {
		started()
		return
	}
	sv.wg.Go(func() {
		defer started()
		select {
		case <-sup.heartbeat:
		case <-time.After(firstBeatTimeout):
		case <-ctx.Done():
		}
	})
}

// launchConfig returns the preset of a run's agent and how to start it.
func (sv *supervisor) launchConfig(r run.Run, a Agent, endpoint, dir string) (agent.Preset, agent.Launch, error) {
	p, err := agent.Find(a.Preset)
	if err != nil {
		return p, agent.Launch{}, err
	}
	goal, err := sv.cfg.Runs.Text(sv.ctx, r.Session, r.Goal)
	if err != nil {
		return p, agent.Launch{}, fmt.Errorf("read the goal of run %s: %w", r.ID, err)
	}
	var skills strings.Builder
	for _, name := range a.Skills {
		s, _, err := sv.cfg.Caps.Skill(name)
		if err != nil {
			return p, agent.Launch{}, err
		}
		skills.WriteString(s.Text + "\n")
	}
	l, err := p.Launch(agent.Request{
		Goal: goal, Model: a.Model, Protocol: agent.Protocol(a.Protocol), Workspace: dir, Home: home, Endpoint: endpoint,
		Level: int(levelOf(a)), Skills: skills.String(), MCP: true, Args: a.Argv, Env: a.environment(),
	})
	return p, l, err
}

// launch starts the agent in its jail, or finds it running. The id of its process is stored
// before the process starts, so that another daemon can find it.
func (sv *supervisor) launch(ctx context.Context, r run.Run, a Agent, j jail.Jail) (id.Exec, agent.Launch, error) {
	_, l, err := sv.launchConfig(r, a, "", j.Spec.Project())
	if err != nil {
		return "", l, err
	}
	if r.Exec != "" {
		if _, err := sv.cfg.Jails.ExecStatus(ctx, j.ID, r.Exec); err == nil {
			return r.Exec, l, nil
		} else if !errors.Is(err, fault.NotFound) {
			return "", l, fmt.Errorf("look for the agent's process %s: %w", r.Exec, err)
		}
	}
	l, err = sv.locate(ctx, j.ID, l)
	if err != nil {
		return "", l, err
	}
	if err := sv.prepareJail(ctx, j.ID, l); err != nil {
		return "", l, fmt.Errorf("prepare the jail of the agent: %w", err)
	}
	if err := sv.endpoints.waitForEndpoint(ctx, j.ID); err != nil {
		return "", l, err
	}
	x := id.NewExec()
	if _, err := sv.cfg.Runs.Update(ctx, r.ID, func(d *run.Details) { d.Exec = x }); err != nil {
		return "", l, fmt.Errorf("store the agent's process with run %s: %w", r.ID, err)
	}
	env := envMap(l.Env)
	env["SANDBOX_ID"] = string(j.ID)
	_, _, err = sv.cfg.Jails.Exec(ctx, j.ID, jail.ExecRequest{ID: x, Argv: l.Argv, Env: env, Cwd: l.Cwd, Stdin: l.Stdin != nil || l.Protocol == agent.ACP, Ring: outputRing}, nil)
	if err != nil {
		return "", l, fmt.Errorf("start the agent: %w", err)
	}
	if l.Stdin != nil {
		w, err := sv.cfg.Jails.Stdin(ctx, j.ID, x)
		if err != nil {
			return "", l, fmt.Errorf("open the agent's standard input: %w", err)
		}
		if _, err := w.Write(l.Stdin); err != nil {
			return "", l, fmt.Errorf("write the agent's standard input: %w", errors.Join(err, w.Close()))
		}
		if err := w.Close(); err != nil {
			return "", l, fmt.Errorf("close the agent's standard input: %w", err)
		}
	}
	return x, l, nil
}

// waitInJail waits until an agent in a jail ends or its run stops being active.
func (sv *supervisor) waitInJail(ctx context.Context, sup *supervision, r run.Run, j id.Jail, x id.Exec, l agent.Launch, ag Agent) error {
	type end struct {
		status protocol.ExecStatus
		output agentOutput
		err    error
	}
	followed, stop := context.WithCancel(ctx)
	ended := make(chan end, 1)
	go func() {
		var e end
		e.status, e.err = sv.follow(followed, j, x, func(c protocol.Chunk) error {
			e.output.add(c.Stream, c.Data)
			return nil
		})
		ended <- e
	}()
	defer func() {
		stop()
		if ended != nil {
			<-ended
		}
	}()
	tick := time.NewTicker(recheckInterval)
	defer tick.Stop()
	for {
		select {
		case e := <-ended:
			ended = nil
			if e.err != nil {
				return fmt.Errorf("follow the agent's output: %w", e.err)
			}
			return sv.handleExit(ctx, r, ag, e.status.Code, e.status.Signal, &e.output)
		case <-sup.moved:
			if on, err := sv.shouldContinue(ctx, r.ID); err != nil || !on {
				return err
			}
		case <-tick.C:
			if on, err := sv.shouldContinue(ctx, r.ID); err != nil || !on {
				return err
			}
		case why := <-sup.restart:
			sv.terminate(ctx, j, x)
			return errEnded{why}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// shouldContinue reports whether the agent of a run should keep running: the run is active or
// waits for an approval.
func (sv *supervisor) shouldContinue(ctx context.Context, rid id.Run) (bool, error) {
	now, err := sv.cfg.Runs.Get(ctx, rid)
	if err != nil && ctx.Err() == nil {
		// While the store is unavailable, the run cannot change its state, and heartbeats
		// cannot be stored. Treat the agent as alive.
		sv.cfg.Log.Warn("could not read a run; its agent keeps running", "run", rid, "err", err)
		sv.supervisions.activityOf(rid).recordHeartbeat()
		return true, nil
	}
	return now.State == run.Active || now.State == run.Paused && now.Why == run.ForApproval, err
}

// agentOutput collects the output of an agent's process.
type agentOutput struct {
	stdout []byte // the beginning of standard output
	last   []byte // the end of both streams, in the order of the writes
}

// maxLast limits the output, in bytes, that an error quotes.
const maxLast = 1500

func (o *agentOutput) add(s protocol.Stream, data []byte) {
	if s == protocol.Stdout && len(o.stdout) < outputRing {
		o.stdout = append(o.stdout, data...)
	}
	o.last = safetext.AppendEnd(o.last, data, maxLast)
}

// lastOutput returns the end of the combined output.
func (o *agentOutput) lastOutput() string {
	return strings.TrimSpace(strings.ToValidUTF8(safetext.Suffix(string(o.last), maxLast), "\uFFFD"))
}

// handleExit updates a run after its agent has exited: the run is done, it has failed, or
// errEnded is returned for a restart.
func (sv *supervisor) handleExit(ctx context.Context, r run.Run, a Agent, code int, signal string, output *agentOutput) error {
	now, err := sv.cfg.Runs.Get(ctx, r.ID)
	if err != nil || now.State != run.Active {
		return err
	}
	if _, err := sv.cfg.Runs.Update(ctx, r.ID, func(d *run.Details) { d.Exec = "" }); err != nil {
		return fmt.Errorf("remove the agent's process from run %s: %w", r.ID, err)
	}
	exit := fmt.Sprintf("the agent ended with exit code %d", code)
	if signal != "" {
		exit = "the agent was terminated by signal " + signal
	}
	if a.Preset == "builtin" { // it reports its result itself
		return errEnded{exit}
	}
	result := strings.TrimSpace(tail(output.stdout))
	if a.Preset == "shell" {
		if code != 0 {
			if end := output.lastOutput(); end != "" {
				exit += ": " + end
			}
			if _, err := sv.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Failed, By: "agent", Error: exit}); err != nil {
				return fmt.Errorf("move run %s to failed: %w", r.ID, err)
			}
			return nil
		}
		return sv.finish(ctx, r.ID, result)
	}
	p, err := agent.Find(a.Preset)
	if err != nil {
		return err
	}
	out, oerr := p.Outcome(bytes.NewReader(output.stdout))
	if oerr == nil && out.Error != "" {
		if _, err := sv.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Failed, By: "agent", Error: out.Error}); err != nil {
			return fmt.Errorf("move run %s to failed: %w", r.ID, err)
		}
		return nil
	}
	if code != 0 || oerr != nil {
		return errEnded{fmt.Sprintf("%s: %s", exit, errText(oerr, output.lastOutput()))}
	}
	return sv.finish(ctx, r.ID, out.Text)
}

// errText returns the text of err, or fallback if err is nil.
func errText(err error, fallback string) string {
	if err != nil {
		return err.Error()
	}
	return fallback
}

// maxResult limits the part of an agent's output, in bytes, that becomes the result.
const maxResult = 16 << 10

// tail returns the last maxResult bytes of b as valid UTF-8.
func tail(b []byte) string {
	return strings.ToValidUTF8(safetext.Suffix(string(b), maxResult), "\uFFFD")
}

// finish completes a run for an agent that does not do so itself. If the completion condition
// is not met, the run is paused and a person decides.
func (sv *supervisor) finish(ctx context.Context, rid id.Run, result string) error {
	text, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("encode the result of run %s: %w", rid, err)
	}
	_, err = sv.cfg.Runs.Finish(ctx, rid, run.Finish{Result: text, By: "agent"})
	if errors.Is(err, fault.Conflict) {
		_, err = sv.cfg.Runs.Move(ctx, rid, run.Move{To: run.Paused, Why: run.ForEvent, By: "gateway", Reason: err.Error()})
	}
	return err
}

// cleanUpRun releases the resources of an ended run: policy, pending requests of siblings,
// process and jail.
func (sv *supervisor) cleanUpRun(r run.Run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(sv.ctx), time.Minute)
	defer cancel()
	sv.cfg.Policy.ReleaseRun(r.ID)
	sv.siblings.failSiblingRequests(ctx, r)
	if r.Jail == "" {
		return
	}
	sv.endpoints.release(r.Jail, r.ID)
	j, err := sv.cfg.Jails.Get(ctx, r.Jail)
	if err != nil {
		return
	}
	if j.State == jail.Paused { // a frozen process cannot exit
		if _, err := sv.cfg.Jails.Resume(ctx, j.ID); err != nil {
			sv.cfg.Log.Warn("could not thaw the jail of a run that has ended", "run", r.ID, "jail", j.ID, "err", err)
		}
	}
	if r.Exec != "" {
		sv.terminate(ctx, r.Jail, r.Exec)
	}
	sv.measure(ctx, r.ID) // final reading, while the jail's counters exist
	ag, err := sv.agentOf(r.Agent)
	if err != nil || ag.Keep || !isDedicatedJail(j, r) {
		return
	}
	if _, err := sv.cfg.Jails.Stop(ctx, j.ID, jail.StopOptions{}); err != nil && !errors.Is(err, fault.Conflict) {
		sv.cfg.Log.Warn("could not stop the jail of a run that has ended", "run", r.ID, "jail", j.ID, "err", err)
	}
	sv.pruneJails(ctx)
}

// terminate ends a command: with SIGTERM, and with SIGKILL if it does not exit within
// terminateTimeout.
func (sv *supervisor) terminate(ctx context.Context, j id.Jail, x id.Exec) {
	for _, sig := range []string{"TERM", "KILL"} {
		if err := sv.cfg.Jails.Signal(ctx, j, x, sig); err != nil {
			return // it has exited
		}
		end := time.Now().Add(terminateTimeout)
		for time.Now().Before(end) {
			if s, err := sv.cfg.Jails.ExecStatus(ctx, j, x); err != nil || s.Ended != nil {
				return
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	}
}

// pauseJail pauses the jail of a paused run, if the run does not share it.
func (sv *supervisor) pauseJail(ctx context.Context, r run.Run) {
	if r.Jail == "" {
		return
	}
	j, err := sv.cfg.Jails.Get(ctx, r.Jail)
	if err != nil || j.State != jail.Running || !isDedicatedJail(j, r) {
		return
	}
	if _, err := sv.cfg.Jails.Pause(ctx, j.ID); err != nil && !errors.Is(err, fault.Conflict) {
		sv.cfg.Log.Warn("could not pause the jail of a paused run", "run", r.ID, "jail", j.ID, "err", err)
	}
}

// isDedicatedJail reports whether a jail was created for a run, and is not shared with others.
func isDedicatedJail(j jail.Jail, r run.Run) bool {
	return j.Spec.Labels[LabelRun] != "" && r.Jail == j.ID
}

// pruneJails deletes the stopped jails of ended runs, except for the newest. The event log of a run
// is evidence and is deleted with the jail. Therefore a jail that exceeds the number Keep is not
// deleted before KeepAge has passed.
func (sv *supervisor) pruneJails(ctx context.Context) {
	all, err := sv.cfg.Jails.List(ctx, jail.ListOptions{State: jail.Stopped})
	if err != nil {
		return
	}
	var ended []jail.Jail
	at := map[id.Jail]time.Time{} // when the runs ended
	for _, j := range all {
		rid := id.Run(j.Spec.Labels[LabelRun])
		if rid == "" {
			continue
		}
		if r, err := sv.cfg.Runs.Get(ctx, rid); err == nil && r.State.Ended() {
			ended, at[j.ID] = append(ended, j), r.Ended
		}
	}
	for i := range max(0, len(ended)-sv.cfg.Keep) { // oldest first
		if sv.cfg.Runs.Now().Sub(at[ended[i].ID]) < sv.cfg.KeepAge {
			continue
		}
		if err := sv.deleteJail(ctx, ended[i].ID); err != nil && !errors.Is(err, fault.NotFound) && !errors.Is(err, fault.Conflict) {
			sv.cfg.Log.Warn("could not delete the jail of a run that has ended", "jail", ended[i].ID, "err", err)
		}
	}
}

// activityOf returns the activity of a run. For a run that this daemon does not supervise, it
// returns one that is discarded.
func (su *supervisions) activityOf(r id.Run) *activity {
	if sup := su.of(r); sup != nil {
		return sup.activity
	}
	return newActivity()
}
