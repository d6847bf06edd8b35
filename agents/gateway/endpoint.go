package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
)

// Addresses of the agent endpoint in every jail that belongs to a session.
const (
	EndpointPort   = 4097
	EndpointSocket = "/run/glasshouse/gateway.sock"
)

// Labels of jails. Only the daemon sets them, since they identify the callers of agent
// endpoints.
const (
	LabelSession   = "glasshouse.session"
	LabelRun       = "glasshouse.goal" // the run for which the jail was created
	labelRunBranch = "branch"          // value for a jail that was created for a branch of a run
	LabelName      = "glasshouse.name"
)

// A Caller identifies the client of an agent endpoint.
type Caller struct {
	Jail    id.Jail
	Session string
	Run     id.Run // "": no run uses the jail
	Agent   string // the preset of the run's agent
	Name    string
	Group   string
	Level   policy.Level

	// PolicyAgent names the agent of the permission files whose rules apply. If it is empty,
	// the agent that the policy of the jail names applies.
	PolicyAgent string

	Workspace string // workspace of its jail; relative file names start there

	// Token is what the client must present if the listener alone does not identify it. If it
	// is empty, no token is needed.
	Token string
}

func (c Caller) subject() policy.Subject {
	return policy.Subject{Jail: c.Jail, Session: c.Session, Run: string(c.Run), Agent: c.PolicyAgent}
}

// callerEnv returns the variables that identify the jail to its commands.
func callerEnv(c Caller) map[string]string { return map[string]string{"SANDBOX_ID": string(c.Jail)} }

// Env returns the variables that all commands of a jail receive: its id, if the jail belongs
// to a session. Plugins use the id to address the agent endpoint.
func Env(j jail.Jail) map[string]string {
	env := map[string]string{}
	if j.Spec.Labels[LabelSession] != "" {
		env["SANDBOX_ID"] = string(j.ID)
	}
	return env
}

// An agentEndpoint is the agent endpoint in one jail.
type agentEndpoint struct {
	cancel context.CancelFunc
	done   chan struct{}
	ready  chan struct{} // closed when both listeners have been open
}

// close closes both listeners and waits until they are closed.
func (e *agentEndpoint) close() error {
	e.cancel()
	<-e.done
	return nil
}

// endpoints are the agent endpoints in the jails of sessions.
type endpoints struct {
	*core
	decisions *decisions

	mu sync.Mutex
	// +checklocks:mu
	open map[id.Jail]*agentEndpoint
	// +checklocks:mu
	runByJail map[id.Jail]id.Run // the run whose agent works in the jail
}

// assign sets the run whose agent works in a jail.
func (ep *endpoints) assign(j id.Jail, r id.Run) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.runByJail[j] = r
}

// release clears the run of a jail, unless another one has been assigned.
func (ep *endpoints) release(j id.Jail, r id.Run) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.runByJail[j] == r {
		delete(ep.runByJail, j)
	}
}

// runIn returns the run whose agent works in a jail, or "".
func (ep *endpoints) runIn(j id.Jail) id.Run {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.runByJail[j]
}

// closeAll closes all endpoints.
func (ep *endpoints) closeAll() error {
	ep.mu.Lock()
	open := slices.Collect(maps.Values(ep.open))
	clear(ep.open)
	ep.mu.Unlock()
	var errs []error
	for _, e := range open { // without the lock: each endpoint takes it when it ends
		errs = append(errs, e.close())
	}
	return errors.Join(errs...)
}

// JailStarted reports that a jail has started or was found running. If the jail belongs to a
// session, its agent endpoint is opened. JailStarted does not block.
func (ep *endpoints) JailStarted(j jail.Jail) {
	if j.Spec.Labels[LabelSession] == "" || ep.ctx.Err() != nil {
		return
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.open[j.ID] != nil {
		return
	}
	e := &agentEndpoint{done: make(chan struct{}), ready: make(chan struct{})}
	var ctx context.Context
	ctx, e.cancel = context.WithCancel(ep.ctx)
	ep.open[j.ID] = e
	go func() {
		defer close(e.done)
		ep.serveEndpoint(ctx, j.ID, e.ready)
		ep.mu.Lock()
		defer ep.mu.Unlock()
		if ep.open[j.ID] == e { // the jail is not yet visible; JailStarted is called again when it starts
			delete(ep.open, j.ID)
		}
	}()
}

// JailStopped reports that a jail has stopped. It does not wait until the endpoint is closed.
func (ep *endpoints) JailStopped(j id.Jail) {
	ep.mu.Lock()
	e := ep.open[j]
	delete(ep.open, j)
	ep.mu.Unlock()
	ep.decisions.forget(j)
	if e != nil {
		e.cancel() // do not wait for it: it may itself wait for the caller of JailStopped
	}
}

// endpointRetry is the delay before a failed listener is opened again.
const endpointRetry = 50 * time.Millisecond

// waitForEndpoint waits until the agent endpoint of a jail is open, if it has one. An agent
// connects as soon as it starts.
func (ep *endpoints) waitForEndpoint(ctx context.Context, j id.Jail) error {
	ep.mu.Lock()
	e := ep.open[j]
	ep.mu.Unlock()
	if e == nil {
		return nil
	}
	select {
	case <-e.ready:
		return nil
	case <-e.done:
		return fault.Newf(fault.Conflict, "gateway.waitForEndpoint", string(j), "the jail has stopped")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serveEndpoint listens on TCP and on a Unix socket in a jail, and again when the instance of
// the jail is replaced. It closes ready when both listeners have been open. It returns when
// ctx is done or the jail does not exist.
func (ep *endpoints) serveEndpoint(ctx context.Context, j id.Jail, ready chan<- struct{}) {
	listeners := []func(context.Context) (net.Listener, error){
		func(ctx context.Context) (net.Listener, error) { return ep.cfg.Jails.ListenTCP(ctx, j, EndpointPort) },
		func(ctx context.Context) (net.Listener, error) { return ep.cfg.Jails.Listen(ctx, j, EndpointSocket) },
	}
	ended := make(chan struct{})
	var opening sync.WaitGroup
	for _, listen := range listeners {
		opening.Add(1)
		go func() {
			defer func() { ended <- struct{}{} }()
			ep.serveListener(ctx, j, listen, sync.OnceFunc(opening.Done))
		}()
	}
	go func() {
		opening.Wait()
		close(ready)
	}()
	for range listeners {
		<-ended
	}
}

// serveListener serves one listener and reopens it after failures. It calls opened when the
// listener is open for the first time, or when serveListener returns.
func (ep *endpoints) serveListener(ctx context.Context, j id.Jail, listen func(context.Context) (net.Listener, error), opened func()) {
	defer opened()
	for ctx.Err() == nil {
		l, err := listen(ctx)
		if err == nil {
			opened()
			stop := context.AfterFunc(ctx, func() { l.Close() })
			if err := ep.cfg.Serve(l, func(ctx context.Context) (Caller, error) { return ep.callerIn(ctx, j) }); err != nil && ctx.Err() == nil {
				ep.cfg.Log.Debug("an agent endpoint was closed", "jail", j, "err", err)
			}
			stop()
			l.Close()
		} else if errors.Is(err, fault.NotFound) {
			return
		} else if ctx.Err() == nil {
			ep.cfg.Log.Debug("could not open an agent endpoint; it will be retried", "jail", j, "err", err)
		}
		select {
		case <-time.After(endpointRetry):
		case <-ctx.Done():
		}
	}
}

// callerIn returns the caller that currently uses a jail.
func (ep *endpoints) callerIn(ctx context.Context, jid id.Jail) (Caller, error) {
	j, err := ep.cfg.Jails.Get(ctx, jid)
	if err != nil {
		return Caller{}, err
	}
	c := Caller{Jail: jid, Session: j.Spec.Labels[LabelSession], Name: j.Spec.Labels[LabelName], Workspace: j.Spec.Project()}
	s, err := ep.cfg.Runs.Session(ctx, c.Session)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return Caller{}, fmt.Errorf("read the session of jail %s: %w", jid, err)
	}
	c.Group, c.Level = s.Group, policy.Level(s.Level)
	if c.Name == "" {
		c.Name = s.Name
	}
	c.Run = ep.runIn(jid)
	if c.Run == "" {
		c.Run = id.Run(j.Spec.Labels[LabelRun])
	}
	c, err = ep.withRunSettings(ctx, c)
	if err != nil {
		return Caller{}, err
	}
	level, err := levelOfPolicy(j)
	if err != nil {
		return Caller{}, fmt.Errorf("read the policy of jail %s: %w", jid, err)
	}
	// An operator may lower the level of a jail below that of its session or run.
	if level != 0 && (c.Level == 0 || level < c.Level) {
		c.Level = level
	}
	return c, nil
}

// levelOfPolicy returns the autonomy level of a jail's policy, or 0 if it has no policy.
func levelOfPolicy(j jail.Jail) (policy.Level, error) {
	s, err := govern.Read(j.Spec.Policy)
	if err != nil || s.Policy == nil {
		return 0, err
	}
	return s.Policy.CurrentLevel(), nil
}

// callerOf returns the caller for a run outside of jails.
func (co *core) callerOf(ctx context.Context, rid id.Run) (Caller, error) {
	r, err := co.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return Caller{}, err
	}
	s, err := co.cfg.Runs.Session(ctx, r.Session)
	if err != nil {
		return Caller{}, fmt.Errorf("read the session of run %s: %w", rid, err)
	}
	return co.withRunSettings(ctx, Caller{Jail: r.Jail, Session: r.Session, Run: rid, Name: s.Name, Group: s.Group, Level: policy.Level(s.Level)})
}

// withRunSettings adds the agent, policy agent and level of its run to a caller.
func (co *core) withRunSettings(ctx context.Context, c Caller) (Caller, error) {
	if c.Run == "" {
		return c, nil
	}
	r, err := co.cfg.Runs.Get(ctx, c.Run)
	if errors.Is(err, fault.NotFound) {
		c.Run = ""
		return c, nil
	}
	if err != nil {
		return Caller{}, err
	}
	a, err := co.agentOf(r.Agent)
	if err != nil {
		return Caller{}, err
	}
	c.Agent, c.PolicyAgent = a.Preset, a.PolicyAgent
	if a.Level != 0 {
		c.Level = policy.Level(a.Level)
	}
	return c, nil
}

// activeRun returns the run of a caller. Without a run it returns fault.Conflict.
func (co *core) activeRun(ctx context.Context, c Caller) (run.Run, error) {
	if c.Run == "" {
		return run.Run{}, &fault.Error{Op: "gateway.activeRun", Kind: fault.Conflict, Err: errors.New("no run is active in this jail"), Remedy: "start a run: glasshouse goal --session " + c.Session}
	}
	return co.cfg.Runs.Get(ctx, c.Run)
}
