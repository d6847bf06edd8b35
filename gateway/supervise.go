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
	"time"

	"glasshouse/agent"
	"glasshouse/fault"
	"glasshouse/id"
	safetext "glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jailinit/protocol"
	"glasshouse/run"
)

const (
	// maxRestarts is how often an agent that ends before its time is started again
	// without having got any further.
	maxRestarts = 5

	// recheckInterval is how often it is looked whether a run is still to go on, and its agent
	// heard of: another daemon may have moved it.
	recheckInterval = 3 * time.Second

	// terminateTimeout is how long an agent has to end when its run has.
	terminateTimeout = 5 * time.Second

	// outputRing is how much of what an agent prints is kept.
	outputRing = 4 << 20
)

// An supervision is the supervision of one run.
type supervision struct {
	run     id.Run
	moved   chan struct{} // has room for one: the run may be in another state
	heartbeat   chan struct{} // has room for one: its agent has been heard of
	restart chan string   // has room for one: its agent is to be started again, and why
	activity   *activity
	saver   saver
	loops     loopDetector
	taint   taint
	promptLock   cancelableLock // of what its agent is told

	mu sync.Mutex
	// +checklocks:mu
	changed chan struct{} // closed by moved
}

// stateChange is closed when the run may be in another state.
func (a *supervision) stateChange() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.changed
}

// notifyStateChange says that the run may be in another state.
func (a *supervision) notifyStateChange() {
	a.mu.Lock()
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
	a.mu.Unlock()
	select {
	case a.moved <- struct{}{}:
	default:
	}
}

func newSupervision(rid id.Run) *supervision {
	return &supervision{
		run: rid, moved: make(chan struct{}, 1), heartbeat: make(chan struct{}, 1), restart: make(chan string, 1), activity: newActivity(), promptLock: make(cancelableLock, 1),
	}
}

// supervisionOf is who supervises a run here, or nil.
func (g *Gateway) supervisionOf(r id.Run) *supervision {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.supervisions[r]
}

// listSupervisions are all that supervise runs here.
func (g *Gateway) listSupervisions() []*supervision {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Values(g.supervisions))
}

// startSupervision supervises a run from now on, unless that is done.
func (g *Gateway) startSupervision(r run.Run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.supervisions[r.ID] != nil || g.ctx.Err() != nil {
		return
	}
	a := newSupervision(r.ID)
	g.supervisions[r.ID] = a
	g.wg.Go(func() {
		defer func() {
			g.mu.Lock()
			delete(g.supervisions, r.ID)
			g.mu.Unlock()
			g.Poke()
		}()
		g.supervise(a)
	})
}

// Happened tells of an event of a run, as run.Config.Told wants it.
func (g *Gateway) Happened(e run.Event) {
	if e.Kind != run.RunMoved && e.Kind != run.RunCreated {
		return
	}
	a := g.supervisionOf(e.Run)
	if a == nil {
		g.Poke()
		return
	}
	a.notifyStateChange()
}

// supervise sees to it that a run has an agent, as long as it is active.
func (g *Gateway) supervise(a *supervision) {
	claimed, err := g.cfg.Runs.Claim(g.ctx, a.run)
	if err != nil {
		if !errors.Is(err, fault.Conflict) && g.ctx.Err() == nil {
			g.cfg.Log.Error("a run cannot be supervised", "run", a.run, "err", err)
		}
		return
	}
	ctx, cancel := context.WithCancelCause(claimed) // the claim outlives the gateway
	defer cancel(nil)
	defer context.AfterFunc(g.ctx, func() { cancel(context.Cause(g.ctx)) })()
	defer func() {
		if err := g.cfg.Runs.Release(context.WithoutCancel(ctx), a.run); err != nil && g.ctx.Err() == nil {
			g.cfg.Log.Warn("a run is not given up", "run", a.run, "err", err)
		}
	}()
	defer g.meter(ctx, a.run)()
	for first := true; ctx.Err() == nil; first = false {
		r, err := g.cfg.Runs.Get(ctx, a.run)
		if err == nil && first {
			err = g.initSaver(ctx, &a.saver, r)
		}
		if err != nil {
			g.cfg.Log.Error("a run cannot be read", "run", a.run, "err", err)
			return
		}
		switch {
		case r.State.Ended():
			g.cleanUpRun(r)
			return
		case r.State == run.Paused && r.Why != run.ForApproval:
			g.pauseJail(ctx, r)
			return
		case r.State == run.Scheduled:
			return
		}
		if err := g.runAgent(ctx, a, r); err != nil && ctx.Err() == nil {
			g.restartOrFail(ctx, a, r, err)
		}
	}
}

// errEnded is how pursue says that an agent ended before its run did.
type errEnded struct{ why string }

func (e errEnded) Error() string { return e.why }

// errEndpointClosed is why an agent that is in no jail cannot work: its door was closed.
var errEndpointClosed = errors.New("the door of the agent was closed")

// restartOrFail restarts what has failed, after a while, or gives the run up.
func (g *Gateway) restartOrFail(ctx context.Context, a *supervision, r run.Run, cause error) {
	if errors.Is(cause, errEndpointClosed) { // the daemon is ending, and that is nobody's fault
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		return
	}
	g.cfg.Log.Warn("the agent of a run has ended", "run", r.ID, "restarts", r.Restarts, "err", cause)
	now, err := g.cfg.Runs.Get(ctx, r.ID)
	if err != nil || now.State != run.Active {
		return
	}
	hopeless := errors.Is(cause, fault.Invalid) || errors.Is(cause, fault.Unsupported) || errors.Is(cause, fault.NotFound) || errors.Is(cause, fault.Denied)
	restarts := now.Restarts
	if ag, err := g.agentOf(now.Agent); err == nil && ag.Preset == "builtin" && now.Steps > now.Stuck {
		restarts = 0 // it got further; what others ask for anew each time is nothing to go by
	}
	if hopeless || restarts >= maxRestarts {
		reason := cause.Error()
		if remedy := fault.RemedyOf(cause); remedy != "" {
			reason += "; " + remedy
		}
		if _, err := g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Failed, By: "gateway", Error: reason, Reason: reason}); err != nil && !errors.Is(err, fault.Conflict) {
			g.cfg.Log.Error("a run that failed is not recorded as failed", "run", r.ID, "err", err)
		}
		return
	}
	_, over := errors.AsType[errEnded](cause)
	if _, err := g.cfg.Runs.Update(ctx, r.ID, func(d *run.Details) {
		if d.Restarts, d.Stuck = restarts+1, now.Steps; over { // else it may be at work still, and is looked for
			d.Exec = ""
		}
	}); err != nil {
		g.cfg.Log.Error("a restart is not recorded", "run", r.ID, "err", err)
	}
	backoff := min(time.Second<<restarts, time.Minute)
	select {
	case <-time.After(backoff):
	case <-a.moved:
	case <-ctx.Done():
	}
}

// runAgent has the agent of a run at work until it ends, or the run is not active any
// more.
func (g *Gateway) runAgent(ctx context.Context, a *supervision, r run.Run) error {
	ag, err := g.agentOf(r.Agent)
	if err != nil {
		return err
	}
	if err := g.check(ag); err != nil {
		return err
	}
	started, err := g.acquireStartSlot(ctx, a)
	if err != nil {
		return err
	}
	defer started()
	if ag.Spawner != InJail {
		return g.runOutside(ctx, a, r, ag, started)
	}
	j, err := g.ensureJail(ctx, r, ag)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.runByJail[j.ID] = r.ID
	g.mu.Unlock()
	g.Arrived(j)
	x, l, err := g.launch(ctx, r, ag, j)
	if err != nil {
		return err
	}
	a.activity.recordHeartbeat()  // it has the time of its first beat from now on
	if x == r.Exec { // it was at work all the time
		started()
	} else {
		g.releaseOnHeartbeat(ctx, a, ag, started)
	}
	if l.Protocol == agent.ACP {
		return g.converseInJail(ctx, a, r, j, x, l, ag)
	}
	return g.waitInJail(ctx, a, r, j.ID, x, l, ag)
}

// firstBeatTimeout is how long others wait for an agent to be heard of, which is being
// started.
const firstBeatTimeout = 2 * time.Second

// acquireStartSlot waits until an agent may be started: the oldest run first, and not all at once.
// A daemon that finds many runs would have none of them get anywhere. It is the next
// one's turn when started is called, the first time.
func (g *Gateway) acquireStartSlot(ctx context.Context, a *supervision) (started func(), err error) {
	select {
	case g.startSlots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case <-a.heartbeat: // of the one before
	default:
	}
	return sync.OnceFunc(func() { <-g.startSlots }), nil
}

// releaseOnHeartbeat calls started when an agent has been heard of, if it is one that beats.
func (g *Gateway) releaseOnHeartbeat(ctx context.Context, a *supervision, ag Agent, started func()) {
	if ag.Preset != "builtin" {
		started()
		return
	}
	g.wg.Go(func() {
		defer started()
		select {
		case <-a.heartbeat:
		case <-time.After(firstBeatTimeout):
		case <-ctx.Done():
		}
	})
}

// launchConfig is how the agent of a run is started.
func (g *Gateway) launchConfig(r run.Run, a Agent, door, at string) (agent.Preset, agent.Launch, error) {
	p, err := agent.Find(a.Preset)
	if err != nil {
		return p, agent.Launch{}, err
	}
	goal, err := g.cfg.Runs.Text(g.ctx, r.Session, r.Goal)
	if err != nil {
		return p, agent.Launch{}, err
	}
	var skills strings.Builder
	for _, name := range a.Skills {
		s, _, err := g.cfg.Caps.Skill(name)
		if err != nil {
			return p, agent.Launch{}, err
		}
		skills.WriteString(s.Text + "\n")
	}
	l, err := p.Launch(agent.Request{
		Goal: goal, Model: a.Model, Protocol: agent.Protocol(a.Protocol), Workspace: at, Home: home, Door: door,
		Level: int(levelOf(a)), Skills: skills.String(), MCP: true, Args: a.Argv, Env: a.environment(),
	})
	return p, l, err
}

// launch starts the agent in its jail, or finds it at work. Its command has a name on
// record before it is started.
func (g *Gateway) launch(ctx context.Context, r run.Run, a Agent, j jail.Jail) (id.Exec, agent.Launch, error) {
	_, l, err := g.launchConfig(r, a, "", j.Spec.Project())
	if err != nil {
		return "", l, err
	}
	if r.Exec != "" {
		if _, err := g.cfg.Jails.ExecStatus(ctx, j.ID, r.Exec); err == nil {
			return r.Exec, l, nil
		} else if !errors.Is(err, fault.NotFound) {
			return "", l, err
		}
	}
	if l, err = g.locate(ctx, j.ID, l); err != nil {
		return "", l, err
	}
	if err := g.prepareJail(ctx, j.ID, l); err != nil {
		return "", l, fmt.Errorf("write down what the agent needs: %w", err)
	}
	if err := g.waitForEndpoint(ctx, j.ID); err != nil {
		return "", l, err
	}
	x := id.NewExec()
	if _, err := g.cfg.Runs.Update(ctx, r.ID, func(d *run.Details) { d.Exec = x }); err != nil {
		return "", l, err
	}
	env := envMap(l.Env)
	env["SANDBOX_ID"] = string(j.ID)
	_, _, err = g.cfg.Jails.Exec(ctx, j.ID, jail.ExecRequest{ID: x, Argv: l.Argv, Env: env, Cwd: l.Cwd, Stdin: l.Stdin != nil || l.Protocol == agent.ACP, Ring: outputRing}, nil)
	if err != nil {
		return "", l, fmt.Errorf("start the agent: %w", err)
	}
	if l.Stdin != nil {
		w, err := g.cfg.Jails.Stdin(ctx, j.ID, x)
		if err != nil {
			return "", l, err
		}
		if _, err := w.Write(l.Stdin); err != nil {
			return "", l, errors.Join(err, w.Close())
		}
		if err := w.Close(); err != nil {
			return "", l, err
		}
	}
	return x, l, nil
}

// waitInJail waits for the end of an agent in a jail.
func (g *Gateway) waitInJail(ctx context.Context, a *supervision, r run.Run, j id.Jail, x id.Exec, l agent.Launch, ag Agent) error {
	type end struct {
		status protocol.ExecStatus
		said   agentOutput
		err    error
	}
	followed, stop := context.WithCancel(ctx)
	ended := make(chan end, 1)
	go func() {
		var e end
		e.status, e.err = g.follow(followed, j, x, func(c protocol.Chunk) error {
			e.said.add(c.Stream, c.Data)
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
				return e.err
			}
			return g.handleExit(ctx, r, ag, e.status.Code, e.status.Signal, &e.said)
		case <-a.moved:
			if on, err := g.shouldContinue(ctx, r.ID); err != nil || !on {
				return err
			}
		case <-tick.C:
			if on, err := g.shouldContinue(ctx, r.ID); err != nil || !on {
				return err
			}
		case why := <-a.restart:
			g.terminate(ctx, j, x)
			return errEnded{why}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// shouldContinue reports whether the agent of a run has anything to do, or waits for it.
func (g *Gateway) shouldContinue(ctx context.Context, rid id.Run) (bool, error) {
	now, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil && ctx.Err() == nil {
		// Nobody can be heard of meanwhile, and what cannot be read has not moved.
		g.cfg.Log.Warn("a run cannot be read; its agent goes on", "run", rid, "err", err)
		g.activityOf(rid).recordHeartbeat()
		return true, nil
	}
	return now.State == run.Active || now.State == run.Paused && now.Why == run.ForApproval, err
}

// agentOutput is what an agent wrote.
type agentOutput struct {
	stdout []byte // its beginning
	last   []byte // the end of both streams, in the order in which they were written
}

// maxLast bounds what an error quotes of an agent's output.
const maxLast = 1500

func (p *agentOutput) add(s protocol.Stream, data []byte) {
	if s == protocol.Stdout && len(p.stdout) < outputRing {
		p.stdout = append(p.stdout, data...)
	}
	p.last = safetext.AppendEnd(p.last, data, maxLast)
}

// lastOutput is the end of what was written, with standard error.
func (p *agentOutput) lastOutput() string {
	return strings.TrimSpace(strings.ToValidUTF8(safetext.Suffix(string(p.last), maxLast), "\uFFFD"))
}

// handleExit says what the end of an agent means for its run.
func (g *Gateway) handleExit(ctx context.Context, r run.Run, a Agent, code int, signal string, said *agentOutput) error {
	now, err := g.cfg.Runs.Get(ctx, r.ID)
	if err != nil || now.State != run.Active {
		return err
	}
	if _, err := g.cfg.Runs.Update(ctx, r.ID, func(d *run.Details) { d.Exec = "" }); err != nil {
		return err
	}
	how := fmt.Sprintf("the agent ended with exit code %d", code)
	if signal != "" {
		how = "the agent was ended by " + signal
	}
	if a.Preset == "builtin" { // it says of itself when it is done
		return errEnded{how}
	}
	result := strings.TrimSpace(tail(said.stdout))
	if a.Preset == "shell" {
		if code != 0 {
			if end := said.lastOutput(); end != "" {
				how += ": " + end
			}
			_, err := g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Failed, By: "agent", Error: how})
			return err
		}
		return g.finish(ctx, r.ID, result)
	}
	p, err := agent.Find(a.Preset)
	if err != nil {
		return err
	}
	out, oerr := p.Outcome(bytes.NewReader(said.stdout))
	if oerr == nil && out.Error != "" {
		_, err := g.cfg.Runs.Move(ctx, r.ID, run.Move{To: run.Failed, By: "agent", Error: out.Error})
		return err
	}
	if code != 0 || oerr != nil {
		return errEnded{fmt.Sprintf("%s: %s", how, errText(oerr, said.lastOutput()))}
	}
	return g.finish(ctx, r.ID, out.Text)
}

func errText(err error, otherwise string) string {
	if err != nil {
		return err.Error()
	}
	return otherwise
}

// maxResult bounds what is kept of what an agent printed last.
const maxResult = 16 << 10

func tail(b []byte) string {
	return strings.ToValidUTF8(safetext.Suffix(string(b), maxResult), "\uFFFD")
}

// finish says that an agent which cannot say so itself is done. What must hold before
// may not: then a person decides.
func (g *Gateway) finish(ctx context.Context, rid id.Run, result string) error {
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	_, err = g.cfg.Runs.Finish(ctx, rid, run.Finish{Result: text, By: "agent"})
	if errors.Is(err, fault.Conflict) {
		_, err = g.cfg.Runs.Move(ctx, rid, run.Move{To: run.Paused, Why: run.ForEvent, By: "gateway", Reason: err.Error()})
	}
	return err
}

// cleanUpRun sees to what is left of a run that has ended.
func (g *Gateway) cleanUpRun(r run.Run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.ctx), time.Minute)
	defer cancel()
	g.cfg.Kernel.ReleaseRun(r.ID)
	g.failSiblingRequests(ctx, r)
	if r.Jail == "" {
		return
	}
	g.mu.Lock()
	if g.runByJail[r.Jail] == r.ID {
		delete(g.runByJail, r.Jail)
	}
	g.mu.Unlock()
	j, err := g.cfg.Jails.Get(ctx, r.Jail)
	if err != nil {
		return
	}
	if j.State == jail.Paused { // it could not end
		if _, err := g.cfg.Jails.Resume(ctx, j.ID); err != nil {
			g.cfg.Log.Warn("the jail of a run that has ended cannot be thawed", "run", r.ID, "jail", j.ID, "err", err)
		}
	}
	if r.Exec != "" {
		g.terminate(ctx, r.Jail, r.Exec)
	}
	g.measure(ctx, r.ID) // before there is nothing to read any more
	ag, err := g.agentOf(r.Agent)
	if err != nil || ag.Keep || !isDedicatedJail(j, r) {
		return
	}
	if _, err := g.cfg.Jails.Stop(ctx, j.ID, jail.StopOptions{}); err != nil && !errors.Is(err, fault.Conflict) {
		g.cfg.Log.Warn("the jail of a run that has ended goes on", "run", r.ID, "jail", j.ID, "err", err)
	}
	g.pruneJails(ctx)
}

// terminate ends a command: it is asked first.
func (g *Gateway) terminate(ctx context.Context, j id.Jail, x id.Exec) {
	for _, sig := range []string{"TERM", "KILL"} {
		if err := g.cfg.Jails.Signal(ctx, j, x, sig); err != nil {
			return // it is gone
		}
		end := time.Now().Add(terminateTimeout)
		for time.Now().Before(end) {
			if s, err := g.cfg.Jails.ExecStatus(ctx, j, x); err != nil || s.Ended != nil {
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

// pauseJail holds the jail of a run that is paused.
func (g *Gateway) pauseJail(ctx context.Context, r run.Run) {
	if r.Jail == "" {
		return
	}
	j, err := g.cfg.Jails.Get(ctx, r.Jail)
	if err != nil || j.State != jail.Running || !isDedicatedJail(j, r) {
		return
	}
	if _, err := g.cfg.Jails.Pause(ctx, j.ID); err != nil && !errors.Is(err, fault.Conflict) {
		g.cfg.Log.Warn("the jail of a run that is paused goes on", "run", r.ID, "jail", j.ID, "err", err)
	}
}

// isDedicatedJail reports whether a jail was made for a run, and is not one that others are in.
func isDedicatedJail(j jail.Jail, r run.Run) bool { return j.Spec.Labels[LabelRun] != "" && r.Jail == j.ID }

// pruneJails removes jails of runs that have ended, but for the newest.
func (g *Gateway) pruneJails(ctx context.Context) {
	all, err := g.cfg.Jails.List(ctx, jail.ListOptions{State: jail.Stopped})
	if err != nil {
		return
	}
	var mine []jail.Jail
	for _, j := range all {
		rid := id.Run(j.Spec.Labels[LabelRun])
		if rid == "" {
			continue
		}
		if r, err := g.cfg.Runs.Get(ctx, rid); err == nil && r.State.Ended() {
			mine = append(mine, j)
		}
	}
	for i := range max(0, len(mine)-g.cfg.Keep) { // oldest first
		if err := g.deleteJail(ctx, mine[i].ID); err != nil && !errors.Is(err, fault.NotFound) && !errors.Is(err, fault.Conflict) {
			g.cfg.Log.Warn("the jail of a run that has ended stays", "jail", mine[i].ID, "err", err)
		}
	}
}
