// Package jailed runs capabilities in jails. The runtime container uses the kernel of the
// host, the runtime gvisor that of gVisor. The program in the jail is an HTTP server, or a
// script that is started for each call.
//
// A sandbox is a jail with the program in it. It serves one call at a time. The sandbox of
// an ephemeral capability serves a single call and is then destroyed, so the spares in its
// warm pool are unused. Files of mode session or persistent are on a volume outside of the
// jail, so a sandbox can be killed at any time.
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
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// Jails is the part of jail.Manager that the engine uses.
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

// Config is the configuration of an Engine. Jails and Dir are required. A function that is
// nil is not called.
type Config struct {
	Jails  Jails
	Images jail.RootfsProvider // resolves images in Prepare; nil: the first call fetches the image
	Dir    string              // absolute, used by this engine only, for volumes and client files

	// MicroVM is what isolates capabilities that require a virtual machine instead of one: "gvisor", or
	// "" for nothing else.
	MicroVM string

	// Govern returns the policy of a capability's jails for their Enforcer. It is called
	// before each jail is created.
	Govern func(context.Context, *engine.Installed) (json.RawMessage, error)

	// Grant gives a jail the secrets of its capability. It is called after the jail was
	// created and before it is started.
	Grant func(context.Context, id.Jail, *engine.Installed) error

	// Serving is called with the jail of each call before the jail receives the call.
	// The engine calls done when the call has ended.
	Serving func(id.Jail, *engine.Call) (done func())

	// Meter returns the traffic of a jail through the egress proxy.
	Meter func(id.Jail) Traffic

	Log *slog.Logger // default: discard
}

// Traffic is a number of transferred bytes.
type Traffic struct{ Sent, Received int64 }

// label marks the jails of this engine. Its value is the capability.
const label = "glasshouse.capability"

const (
	defaultTimeout = 30 * time.Second
	defaultStartup = 10 * time.Second
	defaultTTL     = 5 * time.Minute
	defaultQuotaMB = 256

	// sessionRetention is how long the files of an unused session are kept if EndSession
	// is not called.
	sessionRetention = 24 * time.Hour

	// makers limits the jails that are created concurrently. A higher limit would only
	// delay each of them.
	makers = 4

	// removers limits the used sandboxes that are destroyed in the background. Above the
	// limit, a call destroys its sandbox itself, so that sandboxes are not created faster
	// than they are destroyed.
	removers = 4
)

// An Engine implements engine.Engine for the runtimes container, gvisor and microvm.
type Engine struct {
	cfg      Config
	log      *slog.Logger
	making   chan struct{} // one token per jail that is being created
	removing chan struct{} // one token per sandbox that is being destroyed

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	pools map[string]*pool // sandbox pools of ephemeral capabilities, by digest
	// +checklocks:mu
	volumes map[string]*volume // by directory
	// +checklocks:mu
	waiting map[string]int // number of idle sandboxes with volumes, by capability
	// +checklocks:mu
	lacks map[string]map[string]string // limits that a backend/runtime cannot enforce; nil: not yet known
}

var _ engine.Engine = (*Engine)(nil)

// New returns an engine. It does not access the disk or jails before Open.
func New(cfg Config) *Engine {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Engine{
		cfg: cfg, log: cfg.Log, making: make(chan struct{}, makers), removing: make(chan struct{}, removers),
		pools: map[string]*pool{}, volumes: map[string]*volume{}, waiting: map[string]int{},
	}
}

// Open removes the sandboxes of an earlier daemon and keeps their volumes. The caller must
// have opened Config.Jails.
func (e *Engine) Open(ctx context.Context) error {
	if err := e.layOut(); err != nil {
		return err
	}
	left, err := e.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the sandboxes of an earlier daemon: %w", err)
	}
	for _, j := range left {
		if _, ours := j.Spec.Labels[label]; !ours {
			continue
		}
		e.log.Info("removing a sandbox of an earlier daemon", "jail", j.ID, "capability", j.Spec.Labels[label])
		if err := e.cfg.Jails.Delete(ctx, j.ID); err != nil && !errors.Is(err, fault.NotFound) {
			return fmt.Errorf("remove the sandbox %s of an earlier daemon: %w", j.ID, err)
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

// sweepTime is the interval between searches for idle sandboxes.
const sweepTime = time.Second

// sweep removes sandboxes whose idle time has expired, until the engine is closed.
func (e *Engine) sweep() {
	tick, seldom := time.NewTicker(sweepTime), time.NewTicker(sessionRetention/24)
	defer tick.Stop()
	defer seldom.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case now := <-tick.C:
			e.removeIdle(now)
		case <-seldom.C:
			if err := e.expireSessions(e.ctx); err != nil && e.ctx.Err() == nil {
				e.log.Error("failed to remove the files of expired sessions", "err", err)
			}
		}
	}
}

func (e *Engine) removeIdle(now time.Time) {
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
			e.wg.Go(func() { v.closeIdle(e, now) })
		}
	}
}

// EndSession removes the files of a session for all capabilities, and the sandboxes that
// use these files.
func (e *Engine) EndSession(ctx context.Context, session string) error {
	return e.endVolumes(ctx, func(k volumeKey) bool { return k.kind == manifest.Session && k.session == session }, true)
}

// Drop implements engine.Engine. Running calls are completed.
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
	if err := e.CheckRuntime(ctx, c); err != nil {
		return err
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
		return fault.Cannot(op, "cannot enforce :network-bytes: the traffic of this capability is not metered", "enable the egress proxy, or remove :network-bytes from the manifest")
	}
	if e.cfg.Images == nil {
		return nil
	}
	if _, err := e.cfg.Images.Resolve(ctx, spec.Rootfs); err != nil {
		return err
	}
	return nil
}

// canGiveFiles returns an error if the sandbox of a capability cannot receive secrets as
// files. Without this check the capability would be approved and each call would fail.
func canGiveFiles(c *engine.Installed, s jail.Spec) error {
	files := c.SecretFiles()
	if len(files) > 0 && s.Backend == microVM {
		return fault.Cannot("engine.Prepare", fmt.Sprintf("cannot give %s the secrets %s as files: they would be in snapshots of its virtual machine", c.ID, strings.Join(files, ", ")),
			"let the proxy insert the secrets into requests with :inject of :network, or use :type :gvisor")
	}
	if len(files) > 0 && s.Backend == "bwrap" && os.Geteuid() != 0 {
		return fault.Cannot("engine.Prepare", fmt.Sprintf("cannot give %s the secrets %s as files: a mount in a running sandbox requires root", c.ID, strings.Join(files, ", ")),
			"run the daemon as root, or let the proxy insert the secrets into requests with :inject of :network")
	}
	return nil
}

// An isolation is the backend of a capability's jails, and its runtime. The zero value is the default
// of the daemon.
type isolation struct{ backend, runtime string }

// isolationOf returns what a capability's manifest demands.
func (e *Engine) isolationOf(c *engine.Installed) isolation {
	switch t := c.Runtime.Type; {
	case t == manifest.GVisor, t == manifest.MicroVM && e.cfg.MicroVM == string(manifest.GVisor):
		return isolation{"oci", runsc}
	case t == manifest.MicroVM:
		return isolation{backend: microVM}
	}
	return isolation{}
}

// CheckRuntime returns an error if this host cannot isolate a capability as its manifest demands.
func (e *Engine) CheckRuntime(ctx context.Context, c *engine.Installed) error {
	const op = "engine.Prepare"
	demanded := e.isolationOf(c)
	if demanded == (isolation{}) {
		return nil
	}
	what, other := "gVisor (runsc)", "change the capability's :type to :container"
	if demanded.backend == microVM {
		what = "a virtual machine (:type :microvm)"
		other = "set :type :gvisor in its manifest, or let all such capabilities use gVisor with capabilities.microvm: gvisor in the daemon's configuration"
	}
	for _, b := range e.cfg.Jails.Backends(ctx) {
		if b.Name != demanded.backend || b.Runtime != demanded.runtime {
			continue
		}
		if b.Usable {
			return e.checkFiles(c, b)
		}
		return &fault.Error{Op: op, Kind: fault.Unsupported, Remedy: strings.Join(slices.DeleteFunc([]string{b.Remedy, other}, func(s string) bool { return s == "" }), "; or "),
			Err: fmt.Errorf("%s requires %s, which is not usable: %s", c.ID, what, b.Reason)}
	}
	return fault.Cannot(op, fmt.Sprintf("%s requires %s, which this daemon does not have", c.ID, what), "install it; or "+other)
}

// checkFiles returns an error if a capability needs files of the host that its backend cannot share.
func (e *Engine) checkFiles(c *engine.Installed, b jail.BackendInfo) error {
	why, lacking := b.Lacks["writable_mounts"]
	if !lacking {
		return nil
	}
	const op = "engine.Prepare"
	if f := c.Filesystem.Mode; f == manifest.Session || f == manifest.Persistent {
		return &fault.Error{Op: op, Kind: fault.Unsupported, Field: ":filesystem :mode", Err: fmt.Errorf("%s cannot keep files: %s", c.ID, why),
			Remedy: "use :filesystem :mode :ephemeral, or :type :gvisor"}
	}
	for i, m := range c.Filesystem.Mounts {
		if m.Write {
			return &fault.Error{Op: op, Kind: fault.Unsupported, Field: fmt.Sprintf(":filesystem :mounts %d :mode", i), Err: fmt.Errorf("%s cannot write to %s: %s", c.ID, m.Host, why),
				Remedy: "mount it with :mode :ro, or use :type :gvisor"}
		}
	}
	return nil
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
		return engine.Result{}, fault.Newf(fault.Invalid, "engine.Call", call.Capability.ID, "the capability is a tool of an MCP server and cannot be called directly")
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
	r.Warm, r.Jail, r.Isolation = warm, string(s.jail), s.isolation
	r.Times = map[string]time.Duration{"sandbox": ready.Sub(began), "forward": forwarded.Sub(ready)}
	return r, err
}

// begin registers a call, so that Close cancels it and waits for it. The caller must call
// the returned function when the call has ended.
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

// sandboxFor returns an idle or a new sandbox for a call; warm reports that it was idle.
// release returns the sandbox to the engine. If it is not sound, release destroys it before
// it returns.
func (e *Engine) sandboxFor(ctx context.Context, call *engine.Call) (s *sandbox, warm bool, release func(sound bool), err error) {
	if mode := call.Capability.Filesystem.Mode; mode == manifest.Session || mode == manifest.Persistent {
		return e.fromVolume(ctx, call.Capability, call.Session)
	}
	return e.fromPool(ctx, call.Capability)
}

// asCancelled returns the failure of a call whose context ended before it had a sandbox.
// If the context has not ended, it returns err.
func asCancelled(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &engine.Failure{Kind: engine.TimedOut, Reason: "timed out while waiting for a sandbox", Err: err}
	}
	return &engine.Failure{Kind: engine.Cancelled, Reason: cancelReason(ctx), Err: err}
}

// cancelReason returns why a call was cancelled.
func cancelReason(ctx context.Context) string {
	if context.Cause(ctx) == errClosed {
		return "the daemon is stopping"
	}
	return "the caller cancelled the call"
}

// remove destroys an unused sandbox. It does so in the background unless the limit removers
// is reached.
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
