// Package jailed runs capabilities in jails: of the host's kernel as container, and
// with a kernel of their own as microvm. The program in the jail is a server that is
// asked over HTTP, or a script that is started for each call.
//
// A sandbox is a jail with the program in it. It serves one call at a time. One of an
// ephemeral capability serves one call ever, and is destroyed: sandboxes that are kept
// warm have not been used. Files that are to stay, for a session or for good, lie on a
// volume outside of the jail, so that a sandbox can be killed at any time.
package jailed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
	"glasshouse/manifest"
)

// Jails is what the engine needs of a jail.Manager.
type Jails interface {
	Check(jail.Spec) (jail.Spec, error)
	Create(context.Context, jail.Spec) (jail.Jail, error)
	Start(context.Context, id.Jail) (jail.Jail, error)
	Delete(context.Context, id.Jail) error
	Get(context.Context, id.Jail) (jail.Jail, error)
	List(context.Context, jail.ListOptions) ([]jail.Jail, error)
	Stats(context.Context, id.Jail) (jail.Stats, error)
	Backends(context.Context) []jail.BackendInfo
	Exec(context.Context, id.Jail, jail.ExecRequest, *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error)
	Stdin(context.Context, id.Jail, id.Exec) (io.WriteCloser, error)
	Dial(ctx context.Context, jid id.Jail, port int) (net.Conn, error)
	Listen(ctx context.Context, jid id.Jail, path string) (net.Listener, error)
}

// Config is what an Engine needs. Jails and Dir must be set; a function that is nil
// has nothing to say.
type Config struct {
	Jails  Jails
	Images jail.RootfsProvider // of what Jails makes jails of; nil: images are got with the first call
	Dir    string              // the engine's own, absolute, for volumes and what jails are shown

	// Govern is what the Enforcer of a capability's jails is to go by. It is asked
	// before each jail is made.
	Govern func(context.Context, *engine.Installed) (json.RawMessage, error)

	// Grant gives a jail that is made, and has not run yet, what its capability is
	// to have: its secrets.
	Grant func(context.Context, id.Jail, *engine.Installed) error

	// Serving is told of each call which jail serves it, before that learns of the
	// call. What it returns is called when the call has ended.
	Serving func(id.Jail, *engine.Call) (done func())

	// Meter tells how much the proxy has carried for a jail.
	Meter func(id.Jail) Traffic

	Log *slog.Logger // default: discard
}

// Traffic is what was carried, in bytes.
type Traffic struct{ Sent, Received int64 }

// label marks the jails of this engine. Its value is the capability.
const label = "glasshouse.capability"

const (
	defaultTimeout = 30 * time.Second
	defaultStartup = 10 * time.Second
	defaultTTL     = 5 * time.Minute
	defaultQuotaMB = 256

	// forgotten is how long files of a session stay that nobody calls in any more,
	// and of which nobody has said that it has ended.
	forgotten = 24 * time.Hour

	// makers is how many jails are made at a time: more would only make each of them
	// later.
	makers = 4

	// removers is how many used sandboxes are destroyed at a time beside the calls.
	// Whoever leaves another one waits for its end himself, so that they are never
	// made faster than they go.
	removers = 4
)

// An Engine implements engine.Engine for container and microvm.
type Engine struct {
	cfg      Config
	log      *slog.Logger
	making   chan struct{} // one token per jail that is being made
	removing chan struct{} // one token per sandbox that is being destroyed

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	pools map[string]*pool // of ephemeral capabilities, by digest
	// +checklocks:mu
	volumes map[string]*volume // by directory
	// +checklocks:mu
	waiting map[string]int // sandboxes with volumes that wait, by capability
	// +checklocks:mu
	lacks map[string]map[string]string // of each backend and runtime, once known
}

var _ engine.Engine = (*Engine)(nil)

// New returns an engine that has touched nothing yet.
func New(cfg Config) *Engine {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Engine{
		cfg: cfg, log: cfg.Log, making: make(chan struct{}, makers), removing: make(chan struct{}, removers),
		pools: map[string]*pool{}, volumes: map[string]*volume{}, waiting: map[string]int{},
	}
}

// Open removes what an earlier daemon left of its sandboxes, and keeps their volumes.
// Jails must be open.
func (e *Engine) Open(ctx context.Context) error {
	if err := e.layOut(); err != nil {
		return err
	}
	left, err := e.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return err
	}
	for _, j := range left {
		if _, ours := j.Spec.Labels[label]; !ours {
			continue
		}
		e.log.Info("removing a sandbox of an earlier daemon", "jail", j.ID, "capability", j.Spec.Labels[label])
		if err := e.cfg.Jails.Delete(ctx, j.ID); err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
	}
	if err := e.settleVolumes(ctx); err != nil {
		return err
	}
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.wg.Go(e.sweep)
	return nil
}

// Close implements engine.Engine. Volumes stay on disk.
func (e *Engine) Close() error {
	if e.cancel == nil {
		return nil
	}
	e.mu.Lock()
	e.closed = true
	pools, volumes := e.pools, e.volumes
	e.pools, e.volumes = map[string]*pool{}, map[string]*volume{}
	e.mu.Unlock()
	e.cancel()
	var all sync.WaitGroup
	for _, p := range pools {
		all.Go(func() { p.drain(e) })
	}
	errs := make(chan error, len(volumes))
	for _, v := range volumes {
		all.Go(func() { errs <- v.end(context.Background(), e, false) })
	}
	all.Wait()
	e.wg.Wait()
	close(errs)
	var err error
	for failed := range errs {
		err = errors.Join(err, failed)
	}
	return err
}

// sweepTime is how often what nobody uses any more is looked for.
const sweepTime = time.Second

// sweep removes sandboxes that have waited for long enough.
func (e *Engine) sweep() {
	tick, seldom := time.NewTicker(sweepTime), time.NewTicker(forgotten/24)
	defer tick.Stop()
	defer seldom.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case now := <-tick.C:
			e.putAway(now)
		case <-seldom.C:
			if err := e.forgetSessions(e.ctx); err != nil && e.ctx.Err() == nil {
				e.log.Error("files of forgotten sessions were not removed", "err", err)
			}
		}
	}
}

func (e *Engine) putAway(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, p := range e.pools {
		if p.stale(now) {
			delete(e.pools, key)
			e.wg.Go(func() { p.drain(e) })
		}
	}
	for _, v := range e.volumes {
		if v.stale(now) {
			e.wg.Go(func() { v.rest(e, now) })
		}
	}
}

// EndSession removes the files of a session, of all capabilities, and the sandboxes
// that have them.
func (e *Engine) EndSession(ctx context.Context, session string) error {
	return e.endVolumes(ctx, func(k volumeKey) bool { return k.kind == manifest.Session && k.session == session }, true)
}

// Drop implements engine.Engine. Calls that are being served go on to their end.
func (e *Engine) Drop(ctx context.Context, c *engine.Installed, purge bool) error {
	e.mu.Lock()
	p := e.pools[c.Digest]
	delete(e.pools, c.Digest)
	e.mu.Unlock()
	if p != nil {
		p.drain(e)
	}
	return e.endVolumes(ctx, func(k volumeKey) bool { return k.capability == c.ID }, purge)
}

// Prepare implements engine.Engine.
func (e *Engine) Prepare(ctx context.Context, c *engine.Installed) error {
	const op = "engine.Prepare"
	if c.Runtime.Type == manifest.MicroVM {
		if err := e.canMicroVM(ctx); err != nil {
			return err
		}
	}
	spec, err := e.specOf(c)
	if err != nil {
		return err
	}
	checked, err := e.cfg.Jails.Check(spec)
	if err != nil {
		return err
	}
	if err := canGiveFiles(c, checked); err != nil {
		return err
	}
	if c.Resources.NetworkBytes > 0 && spec.Network != jail.Isolated && e.cfg.Meter == nil {
		return fault.Cannot(op, "nobody counts what this capability sends, so its :network-bytes would not hold", "run it where a proxy governs its network, or leave :network-bytes out")
	}
	if e.cfg.Images == nil {
		return nil
	}
	if _, err := e.cfg.Images.Resolve(ctx, spec.Rootfs); err != nil {
		return err
	}
	return nil
}

// canGiveFiles returns an error if the sandbox that a capability is to have cannot be
// given secrets as files, so that it is not approved and then fails at each call.
func canGiveFiles(c *engine.Installed, s jail.Spec) error {
	files := c.SecretFiles()
	if len(files) > 0 && s.Backend == "bwrap" && os.Geteuid() != 0 {
		return fault.Cannot("engine.Prepare", fmt.Sprintf("%s asks for the secrets %s as files, and without root nothing can be mounted in a running sandbox", c.ID, strings.Join(files, ", ")),
			"run the daemon as root, or have the proxy put them into requests, with :inject of :network")
	}
	return nil
}

// canMicroVM says what is missing for jails that have a kernel of their own.
func (e *Engine) canMicroVM(ctx context.Context) error {
	for _, b := range e.cfg.Jails.Backends(ctx) {
		if b.Name != "oci" || b.Runtime != sentry {
			continue
		}
		if b.Usable {
			return nil
		}
		return &fault.Error{Op: "engine.Prepare", Kind: fault.Unsupported, Remedy: b.Remedy,
			Err: errors.New("a microvm has a kernel of its own, and here nothing has: " + b.Reason)}
	}
	return fault.Cannot("engine.Prepare", "a microvm has a kernel of its own, and this daemon has no runtime that gives it one: gVisor's runsc is missing", "install runsc, or change the capability's :type to :container")
}

// Call implements engine.Engine.
func (e *Engine) Call(ctx context.Context, call *engine.Call) (engine.Result, error) {
	began := time.Now()
	ctx, done, err := e.begin(ctx, call.Capability)
	if err != nil {
		return engine.Result{}, err
	}
	defer done()
	if call.Capability.Runtime.Stdio == manifest.MCPStdio {
		return engine.Result{}, fault.Newf(fault.Invalid, "engine.Call", call.Capability.ID, "it is a tool of a server, which is talked to and not called")
	}
	input, err := inputOf(call)
	if err != nil {
		return engine.Result{}, err
	}
	s, warm, release, err := e.sandboxFor(ctx, call)
	if err != nil {
		return engine.Result{}, asCancelled(ctx, err)
	}
	ready := time.Now()
	r, err := s.serve(ctx, call, input)
	forwarded := time.Now()
	release(err == nil)
	r.Warm, r.Jail = warm, string(s.jail)
	r.Times = map[string]time.Duration{"sandbox": ready.Sub(began), "forward": forwarded.Sub(ready)}
	return r, err
}

// begin counts a call in, so that Close waits for it, and has it end with the engine.
func (e *Engine) begin(ctx context.Context, c *engine.Installed) (context.Context, func(), error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.cancel == nil {
		return nil, nil, fault.Newf(fault.Unavailable, "engine.Call", c.ID, "the engine is closed")
	}
	e.wg.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.ctx, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		e.wg.Done()
	}, nil
}

// sandboxFor finds or makes a sandbox for a call. Release gives it back; one that is
// not sound is destroyed before release returns.
func (e *Engine) sandboxFor(ctx context.Context, call *engine.Call) (s *sandbox, warm bool, release func(sound bool), err error) {
	if mode := call.Capability.Filesystem.Mode; mode == manifest.Session || mode == manifest.Persistent {
		return e.fromVolume(ctx, call.Capability, call.Session)
	}
	return e.fromPool(ctx, call.Capability)
}

// asCancelled is the failure of a call that was not wanted any more before it had
// a sandbox.
func asCancelled(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &engine.Failure{Kind: engine.TimedOut, Reason: "its time was over before it had a sandbox", Err: err}
	}
	return &engine.Failure{Kind: engine.Cancelled, Reason: unwanted(ctx), Err: err}
}

// unwanted says why a call was cancelled.
func unwanted(ctx context.Context) string {
	if context.Cause(ctx) == errClosed {
		return "the daemon is stopping"
	}
	return "the caller does not want it any more"
}

// remove destroys a sandbox that nobody uses, beside the caller if there is room.
func (e *Engine) remove(s *sandbox) {
	select {
	case e.removing <- struct{}{}:
		e.wg.Go(func() {
			defer func() { <-e.removing }()
			s.kill()
		})
	default:
		s.kill()
	}
}
