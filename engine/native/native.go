// Package native runs capabilities as processes of the host: for those alone that an
// operator trusts, and only the very program that was trusted.
//
// A process is started for each call, with the input as JSON on its standard input.
// It has an empty environment, and without :network an empty network. Nothing else
// stands between it and the host, so what a manifest asks for that cannot be held here
// is refused, and not left out.
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

	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/manifest"
	"glasshouse/schema"
)

// Config is what an Engine needs.
type Config struct {
	// CgroupPrefix names the tree of cgroups in which processes run: one path
	// element, this daemon's and this engine's alone.
	CgroupPrefix string

	Log *slog.Logger // default: discard
}

const defaultTimeout = 30 * time.Second

// An Engine implements engine.Engine.
type Engine struct {
	log  *slog.Logger
	tree *cgroup.Tree // nil: this host gives us none
	none error        // why

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	calls  sync.WaitGroup
}

var _ engine.Engine = (*Engine)(nil)

// New returns an engine, and removes what an earlier one has left running.
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
		e.log.Info("ending a process that an earlier daemon has left", "call", name)
		err = errors.Join(err, e.tree.Destroy(ctx, name))
	}
	return e, err
}

// Prepare implements engine.Engine: it returns why the capability cannot run here. That
// nobody trusts it yet is no reason: it is registered first, and then looked at.
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

// trusted refuses what no operator trusts.
func trusted(c *engine.Installed) error {
	if c.Trust {
		return nil
	}
	return &fault.Error{Op: "engine.Run", On: c.ID, Kind: fault.Denied, Field: ":runtime :type",
		Err:    errors.New("it would run on the host itself, and no operator trusts it"),
		Remedy: "look at the program, and trust this digest of the capability; or declare it as :container"}
}

// may refuses what could not be held.
func (e *Engine) may(c *engine.Installed) error {
	const op = "engine.Prepare"
	inJail := "declare it as :container, where it is held"
	switch {
	case c.Runtime.Digest == "":
		return &fault.Error{Op: op, On: c.ID, Kind: fault.Invalid, Field: ":runtime :digest",
			Err:    errors.New("it does not say which program is trusted"),
			Remedy: "add the digest of the program: sha256: and what sha256sum says of it"}
	case len(c.Runtime.Entrypoint) == 0:
		return fault.Fieldf(op, ":runtime :entrypoint", "there is nothing to run")
	case c.Runtime.Port != 0:
		return fault.Fieldf(op, ":runtime :port", "a native capability is one process a call, with JSON on its standard input and output")
	case c.Filesystem.Mode == manifest.Session || c.Filesystem.Mode == manifest.Persistent:
		return fault.Cannot(op, "a process of the host has the host's files, and none that belong to a session or to it alone", inJail)
	case len(c.Filesystem.Mounts) > 0:
		return fault.Cannot(op, "a process of the host has the host's files, and no :mounts of its own", inJail)
	case c.Filesystem.QuotaMB > 0:
		return fault.Cannot(op, "nothing holds a process of the host to its :quota-mb", inJail)
	case c.Network.Mode == "proxy":
		return fault.Cannot(op, "nothing holds a process of the host to the proxy", inJail)
	case len(c.Secrets) > 0:
		return fault.Cannot(op, "secrets are put into jails, and into the requests that leave them", inJail)
	}
	lacks := e.lacks()
	for _, limit := range []struct {
		what string
		set  bool
	}{{"memory", c.Resources.MemoryMB > 0}, {"cpu", c.Resources.CPUShares > 0}, {"pids", c.Resources.PIDs > 0}} {
		if why := lacks[limit.what]; limit.set && why != "" {
			return fault.Cannot(op, "nothing here holds a process to a limit on "+limit.what+": "+why, "run the daemon as root, with the cgroup controllers of memory, cpu and pids")
		}
	}
	return nil
}

// lacks is what processes are not held to, with the reason.
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
		return engine.Result{}, fmt.Errorf("the input of %s as JSON: %w", c.ID, err)
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
			err = &engine.Failure{Kind: engine.Garbled, Reason: "its answer is not JSON of its output type: " + err.Error(), Err: err}
		}
	}
	if f, ok := errors.AsType[*engine.Failure](err); ok {
		f.Usage, f.Log = r.Usage, r.Log
	}
	return r, err
}

var errTimeout = errors.New("the capability's time is over")

// begin counts a call in, and bounds it.
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

// Drop implements engine.Engine. Nothing waits, and nothing is kept.
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

// environment is all that a process finds set.
func environment(c *engine.Installed) []string {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
	maps.Copy(env, c.Runtime.Env)
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// textInput adds the arguments of a program that knows nothing of capabilities to its
// command line, and returns what it is to read.
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
