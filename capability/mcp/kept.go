package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
)

// ttl is the default idle time after which a server is stopped.
const ttl = 10 * time.Minute

// A kept is a server that is kept between calls.
type kept struct {
	location  location
	ttl       time.Duration
	startLock chan struct{} // lock for starting the process
	speaks    *session      // set by the holder of turn; nil if the process must be started

	// Guarded by Engine.mu.
	calls int         // current calls, including those waiting for the start
	idle  *time.Timer // stops the server after its idle time
	last  bool        // stop the server when its calls have ended
}

// A location identifies a server. Calls of one location share a server.
type location struct {
	owner   string // session that owns the server; "": shared by all
	sandbox string // sandbox declaration; "": used by one call only
}

func placeOf(c *engine.Installed, session string) location {
	switch {
	case c.Filesystem.Mode == manifest.Persistent:
		return location{"", sandboxOf(c)}
	case c.Filesystem.Mode == manifest.Session && session != "":
		return location{session, sandboxOf(c)}
	}
	return location{}
}

// sandboxOf returns the parts of a manifest that define a sandbox. Tools share a server only
// if these are equal.
func sandboxOf(c *engine.Installed) string {
	runtime := c.Runtime
	runtime.Tool = manifest.Tool{}
	text, err := json.Marshal(struct {
		Dir        string
		Trust      bool
		Runtime    manifest.Spec
		Filesystem manifest.Filesystem
		Network    manifest.Network
		NoEgress   bool
		Secrets    []string
		Resources  manifest.Resources
		Classes    manifest.DataClasses
	}{c.Dir, c.Trust, runtime, c.Filesystem, c.Network, c.NoEgress, c.Secrets, c.Resources, c.DataClasses})
	if err != nil {
		return "" // not shared
	}
	return string(text)
}

// take returns a connection to the server of a capability and starts the server if necessary.
// The caller must call give.
func (e *Engine) take(ctx context.Context, c *engine.Installed, owner string) (k *kept, s *session, warm bool, err error) {
	if k, err = e.keep(c, owner); err != nil {
		return nil, nil, false, err
	}
	if s, warm, err = e.speak(ctx, k, c, owner); err != nil {
		e.leave(k)
		return nil, nil, false, err
	}
	return k, s, warm, nil
}

func (e *Engine) speak(ctx context.Context, k *kept, c *engine.Installed, owner string) (s *session, warm bool, err error) {
	select {
	case k.startLock <- struct{}{}:
		defer func() { <-k.startLock }()
	case <-ctx.Done():
		return nil, false, &engine.Failure{Kind: engine.Cancelled, Reason: "its server was about to be started", Err: context.Cause(ctx)}
	}
	if k.speaks != nil && !k.speaks.gone() {
		return k.speaks, true, nil
	}
	if k.speaks != nil {
		e.end(k.speaks)
	}
	k.speaks, err = e.start(ctx, c, owner)
	return k.speaks, false, err
}

// keep returns the server of a capability and adds a call to it.
func (e *Engine) keep(c *engine.Installed, owner string) (*kept, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosed(c)
	}
	at := placeOf(c, owner)
	k := e.servers[at]
	switch {
	case at.sandbox == "":
		k = &kept{startLock: make(chan struct{}, 1), last: true}
	case k == nil:
		k = &kept{location: at, ttl: cmp.Or(c.Runtime.Warm.TTL, ttl), startLock: make(chan struct{}, 1)}
		e.servers[at] = k
	}
	if k.idle != nil {
		k.idle.Stop() // if the timer has fired already, retire sees the call
		k.idle = nil
	}
	k.calls++
	return k, nil
}

func errClosed(c *engine.Installed) error {
	return fault.Newf(fault.Unavailable, "mcp.Call", c.ID, "the engine is closed")
}

// start starts the server of a capability. Start failures are attributed to the server.
func (e *Engine) start(ctx context.Context, c *engine.Installed, owner string) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Runtime.StartupTimeout, startup))
	defer cancel()
	p, err := e.sandboxes.Start(ctx, c, owner)
	if err != nil {
		return nil, unstarted(ctx, err, engine.Usage{}, "")
	}
	s, err := connect(ctx, e.version, p)
	if err != nil {
		return nil, unstarted(ctx, err, p.Usage(), p.Log())
	}
	e.mu.Lock()
	closed := e.closed
	e.running[s] = true
	e.mu.Unlock()
	if closed {
		e.end(s)
		return nil, errClosed(c)
	}
	return s, nil
}

func unstarted(ctx context.Context, err error, u engine.Usage, log string) error {
	kind := engine.Unstarted
	if errors.Is(ctx.Err(), context.Canceled) {
		kind = engine.Cancelled
	}
	return &engine.Failure{Kind: kind, Reason: err.Error(), Err: err, Usage: u, Log: log}
}

// give ends a call. After a protocol error the server is killed.
func (e *Engine) give(k *kept, s *session, err error) {
	switch engine.KindOf(err) {
	case "", engine.Failed:
	default:
		s.kill()
	}
	e.leave(k)
}

// leave removes a call from a server. After the last call, the server is stopped or its idle
// timer starts.
func (e *Engine) leave(k *kept) {
	e.mu.Lock()
	k.calls--
	over := k.calls == 0 && (k.last || e.closed)
	if k.calls == 0 && !over {
		k.idle = time.AfterFunc(k.ttl, func() { e.retire(k, false) })
	}
	e.mu.Unlock()
	if over {
		e.finish(k)
	}
}

// retire stops a server without calls. A server with calls continues to run; with last, only
// until its calls have ended.
func (e *Engine) retire(k *kept, last bool) {
	e.mu.Lock()
	over := k.calls == 0 && e.servers[k.location] == k
	if over || last && e.servers[k.location] == k {
		delete(e.servers, k.location)
	}
	k.last = k.last || last
	if over && k.idle != nil {
		k.idle.Stop()
	}
	e.mu.Unlock()
	if over {
		e.finish(k)
	}
}

// finish ends the process of a server that can no longer be called.
func (e *Engine) finish(k *kept) {
	if k.speaks != nil {
		e.end(k.speaks)
	}
}

func (e *Engine) end(s *session) {
	s.close()
	e.mu.Lock()
	delete(e.running, s)
	e.mu.Unlock()
}

// Drop stops the idle servers of a capability. Other tools of the same servers start them
// again. With purge it also removes their files.
func (e *Engine) Drop(ctx context.Context, c *engine.Installed, purge bool) error {
	sandbox := sandboxOf(c)
	e.retireAll(func(p location) bool { return p.sandbox == sandbox })
	if !purge {
		return nil
	}
	return e.sandboxes.Forget(ctx, c, "")
}

// EndSession stops the servers of a session and removes their files.
func (e *Engine) EndSession(ctx context.Context, session string) error {
	e.retireAll(func(p location) bool { return p.owner == session && session != "" })
	return e.sandboxes.Forget(ctx, nil, session)
}

func (e *Engine) retireAll(which func(location) bool) {
	e.mu.Lock()
	var all []*kept
	for at, k := range e.servers {
		if which(at) {
			all = append(all, k)
		}
	}
	e.mu.Unlock()
	for _, k := range all {
		e.retire(k, true)
	}
}

// Close aborts all calls and stops all servers.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	var all []*session
	for s := range e.running {
		all = append(all, s)
	}
	for _, k := range e.servers {
		if k.idle != nil {
			k.idle.Stop()
		}
	}
	clear(e.servers)
	e.mu.Unlock()
	for _, s := range all {
		e.end(s)
	}
	return nil
}
