// Package native runs capabilities as processes of the host. It runs only capabilities that
// an operator trusts, and checks the digest of the program before each start.
//
// A process is started for each call, with the input as JSON on its standard input. It has a
// minimal environment and, if the daemon runs as root, an empty network namespace. There is no
// other isolation from the host. The engine therefore rejects a manifest that declares a limit
// or a resource that it cannot enforce or provide.
package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/schema"
	"glasshouse/fault"
	"glasshouse/host/cgroup"
)

// Config is the configuration of an Engine.
type Config struct {
	// CgroupPrefix is the name of the cgroup tree in which processes run. It is one path
	// element that only this engine of this daemon uses.
	CgroupPrefix string

	Log *slog.Logger // default: discard
}

const defaultTimeout = 30 * time.Second

// An Engine implements engine.Engine.
type Engine struct {
	log  *slog.Logger
	tree *cgroup.Tree // nil: cgroups are not available
	none error        // why tree is nil

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	calls  sync.WaitGroup
}

var _ engine.Engine = (*Engine)(nil)

// New returns an engine. It kills the processes of an earlier engine.
func New(ctx context.Context, cfg Config) (*Engine, error) {
	e := &Engine{log: cfg.Log}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.tree, e.none = cgroup.New(cfg.CgroupPrefix)
	if errors.Is(e.none, fault.Unsupported) {
		e.tree = nil
		return e, nil
	}
	if e.none != nil {
		return nil, e.none
	}
	left, err := e.tree.List()
	for _, name := range left {
		e.log.Info("killing a process of an earlier daemon", "call", name)
		err = errors.Join(err, e.tree.Destroy(ctx, name))
	}
	if err != nil {
		return e, fmt.Errorf("kill the processes of an earlier daemon: %w", err)
	}
	return e, nil
}

// Prepare implements engine.Engine. It does not require that the capability is trusted,
// because an operator reviews a capability after it was registered.
func (e *Engine) Prepare(_ context.Context, c *engine.Installed) error {
	if err := e.may(c); err != nil {
		return err
	}
	p, err := open(c)
	if err != nil {
		return err
	}
	return p.Close()
}

// trusted returns an error if no operator trusts the capability.
func trusted(c *engine.Installed) error {
	if c.Trust {
		return nil
	}
	return &fault.Error{Op: "engine.Call", On: c.ID, Kind: fault.Denied, Field: ":runtime :type",
		Err:    errors.New("the capability runs as a process of the host, and no operator trusts it"),
		Remedy: "review the program and trust this digest of the capability, or declare it as :container"}
}

// may returns an error if the engine cannot enforce or provide what the manifest declares.
func (e *Engine) may(c *engine.Installed) error {
	const op = "engine.Prepare"
	inJail := "declare the capability as :container"
	switch {
	case c.Runtime.Digest == "":
		return &fault.Error{Op: op, On: c.ID, Kind: fault.Invalid, Field: ":runtime :digest",
			Err:    errors.New("the digest of the program is required"),
			Remedy: "set it to sha256: followed by the output of sha256sum for the program"}
	case len(c.Runtime.Entrypoint) == 0:
		return fault.Fieldf(op, ":runtime :entrypoint", "must not be empty")
	case c.Runtime.Port != 0:
		return fault.Fieldf(op, ":runtime :port", "a native capability cannot be a server: a process is started for each call")
	case c.Filesystem.Mode == manifest.Session || c.Filesystem.Mode == manifest.Persistent:
		return fault.Cannot(op, "a native capability uses the files of the host and has no files of its own", inJail)
	case len(c.Filesystem.Mounts) > 0:
		return fault.Cannot(op, "a native capability uses the files of the host and cannot have :mounts", inJail)
	case c.Filesystem.QuotaMB > 0:
		return fault.Cannot(op, "cannot enforce :quota-mb for a native capability", inJail)
	case c.Network.Mode == "proxy":
		return fault.Cannot(op, "cannot restrict a native capability to the egress proxy", inJail)
	case len(c.Secrets) > 0:
		return fault.Cannot(op, "a native capability cannot have secrets", inJail)
	}
	lacks := e.lacks()
	for _, limit := range []struct {
		what string
		set  bool
	}{{"memory", c.Resources.MemoryMB > 0}, {"cpu", c.Resources.CPUShares > 0}, {"pids", c.Resources.PIDs > 0}} {
		if why := lacks[limit.what]; limit.set && why != "" {
			return fault.Cannot(op, "cannot enforce the "+limit.what+" limit on this host: "+why, "run the daemon as root, with the memory, cpu and pids cgroup controllers enabled")
		}
	}
	return nil
}

// lacks returns the limits that cannot be enforced, with the reason.
func (e *Engine) lacks() map[string]string {
	if e.tree != nil {
		return e.tree.Lacks()
	}
	lacks := map[string]string{}
	for _, what := range []string{"memory", "cpu", "pids"} {
		lacks[what] = e.none.Error()
	}
	return lacks
}

// Call implements engine.Engine.
func (e *Engine) Call(ctx context.Context, call *engine.Call) (engine.Result, error) {
	c := call.Capability
	began := time.Now()
	if err := trusted(c); err != nil {
		return engine.Result{}, err
	}
	if err := e.may(c); err != nil {
		return engine.Result{}, err
	}
	ctx, done, err := e.begin(ctx, c)
	if err != nil {
		return engine.Result{}, err
	}
	defer done()
	input, err := schema.ToJSON(call.Input)
	if err != nil {
		return engine.Result{}, fmt.Errorf("encode the input of %s: %w", c.ID, err)
	}
	argv, stdin := c.Runtime.Entrypoint, input
	if c.Runtime.Stdio == manifest.TextStdio {
		if argv, stdin, err = textInput(argv, input); err != nil {
			return engine.Result{}, err
		}
	}
	p, err := e.start(call, argv, stdin)
	if err != nil {
		return engine.Result{}, err
	}
	ready := time.Now()
	end := p.wait(ctx)
	r := engine.Result{
		Usage: p.usage, Log: p.log.String(),
		Times: map[string]time.Duration{"sandbox": ready.Sub(began), "forward": time.Since(ready)},
	}
	r.Usage.Wall = time.Since(ready)
	body, err := p.verdict(ctx, c, end)
	if err == nil {
		if r.Output, err = c.Output.FromJSON(body); err != nil {
			err = &engine.Failure{Kind: engine.Garbled, Reason: "its output is not JSON of the declared output type: " + err.Error(), Err: err}
		}
	}
	if f, ok := errors.AsType[*engine.Failure](err); ok {
		f.Usage, f.Log = r.Usage, r.Log
	}
	return r, err
}

var errTimeout = errors.New("the capability exceeded its time limit")

// begin registers a call, so that Close cancels it and waits for it. The context has the time
// limit of the capability. The caller must call the returned function.
func (e *Engine) begin(ctx context.Context, c *engine.Installed) (context.Context, func(), error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil, fault.Newf(fault.Unavailable, "engine.Call", c.ID, "the engine is closed")
	}
	e.calls.Add(1)
	ctx, timed := context.WithTimeoutCause(ctx, timeoutOf(c), errTimeout)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
		timed()
		e.calls.Done()
	}, nil
}

func timeoutOf(c *engine.Installed) time.Duration {
	if t := c.Resources.Timeout; t > 0 {
		return t
	}
	return defaultTimeout
}

// Drop implements engine.Engine. There are no idle processes and no files.
func (e *Engine) Drop(context.Context, *engine.Installed, bool) error { return nil }

// EndSession implements engine.Engine.
func (e *Engine) EndSession(context.Context, string) error { return nil }

// Close implements engine.Engine.
func (e *Engine) Close() error {
	e.mu.Lock()
	was := e.closed
	e.closed = true
	e.mu.Unlock()
	e.cancel()
	e.calls.Wait()
	if was || e.tree == nil {
		return nil
	}
	return e.tree.Remove()
}

// environment returns the environment of a process.
func environment(c *engine.Installed) []string {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
	maps.Copy(env, c.Runtime.Env)
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// textInput returns the command line and the standard input of a program with the stdio
// mode text, which takes arguments and text instead of JSON.
func textInput(argv []string, input []byte) ([]string, []byte, error) {
	var in struct {
		Args  []string `json:"args"`
		Stdin string   `json:"stdin"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, nil, &engine.Failure{Kind: engine.Failed, Reason: "its input is not {:args [\"…\"] :stdin \"…\"}: " + err.Error(), Err: err}
	}
	return append(slices.Clone(argv), in.Args...), []byte(in.Stdin), nil
}
