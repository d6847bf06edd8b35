package gateway

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
	"glasshouse/run"
)

// Where agents find the gateway, in every jail that belongs to a session.
const (
	DoorPort   = 4097
	DoorSocket = "/run/glasshouse/gateway.sock"
)

// Labels of jails. They are the daemon's own: what they say decides who knocks.
const (
	LabelSession = "glasshouse.session"
	LabelRun     = "glasshouse.goal" // the run for which it was made
	labelRunBranch     = "branch"          // of a jail that was made for a branch of a run
	LabelName    = "glasshouse.name"
)

// A Caller is who is at a door.
type Caller struct {
	Jail    id.Jail
	Session string
	Run     id.Run // "": none is at work there
	Agent   string // the preset of its run
	Name    string
	Group   string
	Level   policy.Level

	// PolicyAgent names the agent of the permission files whose rules apply. "": the one
	// that the policy of its jail names.
	PolicyAgent string

	Workspace string // of its jail; what it says of files is relative to it

	// Token is what it has to show, where the listener alone does not say who it
	// is. "": nothing.
	Token string
}

func (c Caller) subject() policy.Subject {
	return policy.Subject{Jail: c.Jail, Session: c.Session, Run: string(c.Run), Agent: c.PolicyAgent}
}

// callerEnv is what commands are told of whose they are.
func callerEnv(c Caller) map[string]string { return map[string]string{"SANDBOX_ID": string(c.Jail)} }

// Env is what all commands of a jail find in their environment: its id, if the jail belongs
// to a session. Plugins in it address the agent endpoint by that.
func Env(j jail.Jail) map[string]string {
	env := map[string]string{}
	if j.Spec.Labels[LabelSession] != "" {
		env["SANDBOX_ID"] = string(j.ID)
	}
	return env
}

// A agentEndpoint is where the gateway listens in one jail.
type agentEndpoint struct {
	cancel context.CancelFunc
	done   chan struct{}
	ready   chan struct{} // closed when both ways in were open
}

func (d *agentEndpoint) close() error {
	d.cancel()
	<-d.done
	return nil
}

// Arrived tells of a jail that has come to life, or is found alive. If it belongs to a
// session its door is opened.
func (g *Gateway) Arrived(j jail.Jail) {
	if j.Spec.Labels[LabelSession] == "" || g.ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.endpoints[j.ID] != nil {
		return
	}
	d := &agentEndpoint{done: make(chan struct{}), ready: make(chan struct{})}
	var ctx context.Context
	ctx, d.cancel = context.WithCancel(g.ctx)
	g.endpoints[j.ID] = d
	go func() {
		defer close(d.done)
		g.serveEndpoint(ctx, j.ID, d.ready)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.endpoints[j.ID] == d { // there was no such jail yet: it is opened when the jail arrives
			delete(g.endpoints, j.ID)
		}
	}()
}

// Left tells of a jail that has ended.
func (g *Gateway) Left(j id.Jail) {
	g.mu.Lock()
	d := g.endpoints[j]
	delete(g.endpoints, j)
	delete(g.harnessDecisions, j)
	g.mu.Unlock()
	if d != nil {
		d.cancel() // it ends by itself: who tells this may be waited for by it
	}
}

// endpointRetry is how long after a door could not be opened it is tried again.
const endpointRetry = 50 * time.Millisecond

// waitForEndpoint waits until the door of a jail is open, if it has one: an agent knocks as soon
// as it begins.
func (g *Gateway) waitForEndpoint(ctx context.Context, j id.Jail) error {
	g.mu.Lock()
	d := g.endpoints[j]
	g.mu.Unlock()
	if d == nil {
		return nil
	}
	select {
	case <-d.ready:
		return nil
	case <-d.done:
		return fault.Newf(fault.Conflict, "gateway.Start", string(j), "the jail has ended")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serveEndpoint listens in a jail, both ways, and again when the jail has got another body.
func (g *Gateway) serveEndpoint(ctx context.Context, j id.Jail, open chan<- struct{}) {
	ways := []func(context.Context) (net.Listener, error){
		func(ctx context.Context) (net.Listener, error) { return g.cfg.Jails.ListenTCP(ctx, j, DoorPort) },
		func(ctx context.Context) (net.Listener, error) { return g.cfg.Jails.Listen(ctx, j, DoorSocket) },
	}
	ended := make(chan struct{})
	var first sync.WaitGroup
	for _, way := range ways {
		first.Add(1)
		go func() {
			defer func() { ended <- struct{}{} }()
			g.serveListener(ctx, j, way, sync.OnceFunc(first.Done))
		}()
	}
	go func() {
		first.Wait()
		close(open)
	}()
	for range ways {
		<-ended
	}
}

// serveListener serves one way in. It calls opened when that is open for the first time, or
// never will be.
func (g *Gateway) serveListener(ctx context.Context, j id.Jail, way func(context.Context) (net.Listener, error), opened func()) {
	defer opened()
	for ctx.Err() == nil {
		l, err := way(ctx)
		if err == nil {
			opened()
			stop := context.AfterFunc(ctx, func() { l.Close() })
			if err := g.cfg.Serve(l, func(ctx context.Context) (Caller, error) { return g.callerIn(ctx, j) }); err != nil && ctx.Err() == nil {
				g.cfg.Log.Debug("a door is closed", "jail", j, "err", err)
			}
			stop()
			l.Close()
		} else if errors.Is(err, fault.NotFound) {
			return
		} else if ctx.Err() == nil {
			g.cfg.Log.Debug("a door cannot be opened yet", "jail", j, "err", err)
		}
		select {
		case <-time.After(endpointRetry):
		case <-ctx.Done():
		}
	}
}

// callerIn is who is at work in a jail now.
func (g *Gateway) callerIn(ctx context.Context, jid id.Jail) (Caller, error) {
	j, err := g.cfg.Jails.Get(ctx, jid)
	if err != nil {
		return Caller{}, err
	}
	c := Caller{Jail: jid, Session: j.Spec.Labels[LabelSession], Name: j.Spec.Labels[LabelName], Workspace: j.Spec.Project()}
	s, err := g.cfg.Runs.Session(ctx, c.Session)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return Caller{}, err
	}
	c.Group, c.Level = s.Group, policy.Level(s.Level)
	if c.Name == "" {
		c.Name = s.Name
	}
	g.mu.Lock()
	c.Run = g.runByJail[jid]
	g.mu.Unlock()
	if c.Run == "" {
		c.Run = id.Run(j.Spec.Labels[LabelRun])
	}
	c, err = g.withRunSettings(ctx, c)
	if err != nil {
		return Caller{}, err
	}
	level, err := levelOfPolicy(j)
	if err != nil {
		return Caller{}, err
	}
	// An operator may lower the level of a jail below what its session or its run began with.
	if level != 0 && (c.Level == 0 || level < c.Level) {
		c.Level = level
	}
	return c, nil
}

// levelOfPolicy is the autonomy level of a jail's policy, or 0 if it has no policy.
func levelOfPolicy(j jail.Jail) (policy.Level, error) {
	s, err := govern.Read(j.Spec.Govern)
	if err != nil || s.Policy == nil {
		return 0, err
	}
	return s.Policy.CurrentLevel(), nil
}

// callerOf is the agent of a run that works in no jail.
func (g *Gateway) callerOf(ctx context.Context, rid id.Run) (Caller, error) {
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err != nil {
		return Caller{}, err
	}
	s, err := g.cfg.Runs.Session(ctx, r.Session)
	if err != nil {
		return Caller{}, err
	}
	return g.withRunSettings(ctx, Caller{Jail: r.Jail, Session: r.Session, Run: rid, Name: s.Name, Group: s.Group, Level: policy.Level(s.Level)})
}

func (g *Gateway) withRunSettings(ctx context.Context, c Caller) (Caller, error) {
	if c.Run == "" {
		return c, nil
	}
	r, err := g.cfg.Runs.Get(ctx, c.Run)
	if errors.Is(err, fault.NotFound) {
		c.Run = ""
		return c, nil
	}
	if err != nil {
		return Caller{}, err
	}
	a, err := g.agentOf(r.Agent)
	if err != nil {
		return Caller{}, err
	}
	c.Agent, c.PolicyAgent = a.Preset, a.PolicyAgent
	if a.Level != 0 {
		c.Level = policy.Level(a.Level)
	}
	return c, nil
}

// activeRun returns the run that a caller is at, if it may begin anything.
func (g *Gateway) activeRun(ctx context.Context, c Caller) (run.Run, error) {
	if c.Run == "" {
		return run.Run{}, &fault.Error{Op: "gateway", Kind: fault.Conflict, Err: errors.New("no run is at work here"), Remedy: "begin one: glasshouse goal --session " + c.Session}
	}
	return g.cfg.Runs.Get(ctx, c.Run)
}
