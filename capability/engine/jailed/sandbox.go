package jailed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/capability/clients"
	"glasshouse/capability/engine"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// A sandbox is a jail that runs a capability's server or can start its script. It serves
// one call at a time.
type sandbox struct {
	engine *Engine
	c      *engine.Installed
	jail   id.Jail
	ready  time.Time // when it was last healthy
	volume string    // data directory of its volume on the host; empty: none
	base   mark      // its usage when it was last idle
	moved  Traffic   // its traffic before the call

	program *program        // the server; nil for a script
	http    *http.Transport // to the server

	isolation string // see engine.Result

	endpoint *http.Server // for nested calls
	serving  atomic.Pointer[serving]

	killing sync.Once
}

// A mark is the usage of a sandbox at one time.
type mark struct {
	cpu   time.Duration
	disk  int64 // disk usage of its jail and its volume
	kills int64 // by the OOM killer
}

// A serving is the call that a sandbox is executing.
type serving struct {
	ctx  context.Context
	call *engine.Call
}

// make creates a sandbox and, if the capability is a server, waits until the server is
// healthy. The error is a Failure if the capability caused it. On error, the jail is
// removed.
func (e *Engine) make(ctx context.Context, c *engine.Installed, data *jail.Mount) (_ *sandbox, err error) {
	spec, err := e.specOf(c)
	if err != nil {
		return nil, err
	}
	select {
	case e.making <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	// The token is released before the server starts, so that a slow server does not
	// delay other sandboxes.
	made := sync.OnceFunc(func() { <-e.making })
	defer made()
	s := &sandbox{engine: e, c: c}
	if data != nil {
		spec.Mounts, spec.GrantedMounts = append(spec.Mounts, *data), append(spec.GrantedMounts, data.Source)
		s.volume = data.Source
	}
	if e.cfg.Govern != nil {
		spec.Policy, err = e.cfg.Govern(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("get the policy of %s: %w", c.ID, err)
		}
	}
	j, err := e.cfg.Jails.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("create a sandbox for %s: %w", c.ID, err)
	}
	s.jail, s.isolation = j.ID, cmp.Or(j.Spec.Runtime, j.Spec.Backend)
	defer func() {
		if err != nil {
			s.kill()
		}
	}()
	if err := e.checkLimits(ctx, c, j); err != nil {
		return nil, err
	}
	if e.cfg.Grant != nil {
		if err := e.cfg.Grant(ctx, j.ID, c); err != nil {
			return nil, fmt.Errorf("grant secrets to %s: %w", c.ID, err)
		}
	}
	if _, err := e.cfg.Jails.Start(ctx, j.ID); err != nil {
		return nil, fmt.Errorf("start a sandbox for %s: %w", c.ID, err)
	}
	if err := s.openEndpoint(ctx); err != nil {
		return nil, err
	}
	made()
	if c.Runtime.Port != 0 {
		if err := s.startServer(ctx); err != nil {
			return nil, err
		}
	}
	s.ready = time.Now()
	s.resetUsage(ctx)
	s.base.cpu = 0 // the CPU time of the start counts as usage of the first call
	return s, nil
}

// sound reports whether an idle sandbox can serve a call.
func (s *sandbox) sound(ctx context.Context) bool {
	if s.program == nil {
		j, err := s.engine.cfg.Jails.Get(ctx, s.jail)
		return err == nil && j.State == jail.Running
	}
	if s.program.ended() {
		return false
	}
	if time.Since(s.ready) < trusted {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	return s.healthy(ctx) == nil
}

const (
	// trusted is how long a healthy server is used without another health check.
	trusted = 10 * time.Second

	// lookTime bounds the health check of an idle server.
	lookTime = 2 * time.Second
)

// serve executes a call in the sandbox. The error is a Failure; after an error the sandbox
// must not be used again.
func (s *sandbox) serve(ctx context.Context, call *engine.Call, input []byte) (engine.Result, error) {
	began := time.Now()
	ctx, end := s.limit(ctx)
	defer end()
	if s.engine.cfg.Serving != nil {
		defer s.engine.cfg.Serving(s.jail, call)()
	}
	s.serving.Store(&serving{ctx, call})
	defer s.serving.Store(nil)

	var body []byte
	var log string
	var err error
	if s.program != nil {
		body, log, err = s.ask(ctx, call, input)
	} else {
		body, log, err = s.run(ctx, input)
	}
	if err == nil { // a response after the end of the call is discarded, for example one that only reports that end
		err = context.Cause(ctx)
	}
	r := engine.Result{Log: log}
	if err == nil {
		r.Output, err = outputOf(call, body)
	}
	// The usage is also recorded if the caller has cancelled the call.
	stats, statsErr := s.engine.cfg.Jails.Stats(context.WithoutCancel(ctx), s.jail)
	now := s.mark(stats)
	r.Usage = s.usage(now, stats.MemoryPeak, time.Since(began))
	if over := s.tooMuch(r.Usage); over != nil {
		err = over
	}
	if err != nil {
		f := s.failure(ctx, err, stats, statsErr)
		f.Usage, f.Log = r.Usage, log
		return r, f
	}
	s.base, s.ready = now, time.Now()
	return r, nil
}

var (
	errTimeout = errors.New("the capability exceeded its time limit")
	errNetwork = errors.New("the capability exceeded its network limit")
	errClosed  = errors.New("the engine is closed")
)

// limit returns a context that ends when the call exceeds its time limit or its network
// limit. The cause of the context is errTimeout or errNetwork. The caller must call the
// returned function.
func (s *sandbox) limit(ctx context.Context) (context.Context, func()) {
	ctx, timed := context.WithTimeoutCause(ctx, s.timeout(), errTimeout)
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	if s.meters() {
		s.moved = s.engine.cfg.Meter(s.jail)
		if limit := s.c.Resources.NetworkBytes; limit > 0 {
			watch.Go(func() { s.watchTraffic(ctx, cancel, limit) })
		}
	}
	return ctx, func() {
		cancel(nil)
		timed()
		watch.Wait()
	}
}

func (s *sandbox) meters() bool {
	return s.engine.cfg.Meter != nil && networkOf(s.c) != jail.Isolated
}

// meterTime is the interval at which the traffic of a sandbox is compared with its limit. The
// proxy enforces the limit exactly; the engine then ends the call.
const meterTime = 25 * time.Millisecond

func (s *sandbox) watchTraffic(ctx context.Context, cancel context.CancelCauseFunc, limit int64) {
	tick := time.NewTicker(meterTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if s.engine.cfg.Meter(s.jail).Sent-s.moved.Sent > limit {
				cancel(errNetwork)
				return
			}
		}
	}
}

// mark returns the usage of the sandbox for the statistics of its jail.
func (s *sandbox) mark(st jail.Stats) mark {
	m := mark{cpu: st.CPU, disk: st.DiskBytes, kills: st.OOMKills}
	if s.volume != "" {
		used, _ := volumeUse(s.volume)
		m.disk += used
	}
	return m
}

// resetUsage excludes the present usage of the sandbox from the usage of the next call.
func (s *sandbox) resetUsage(ctx context.Context) {
	if st, err := s.engine.cfg.Jails.Stats(ctx, s.jail); err == nil {
		s.base = s.mark(st)
	}
}

// usage returns the usage of a call: the difference between now and the base of the sandbox.
func (s *sandbox) usage(now mark, peak int64, wall time.Duration) engine.Usage {
	u := engine.Usage{
		Wall: wall, CPU: max(0, now.cpu-s.base.cpu), MemoryPeak: peak,
		StorageWrite: max(0, now.disk-s.base.disk),
	}
	if s.meters() {
		t := s.engine.cfg.Meter(s.jail)
		u.NetworkOut, u.NetworkIn = t.Sent-s.moved.Sent, t.Received-s.moved.Received
	}
	return u
}

// openEndpoint creates the socket for nested calls.
func (s *sandbox) openEndpoint(ctx context.Context) error {
	l, err := s.engine.cfg.Jails.Listen(ctx, s.jail, clients.Socket)
	if err != nil {
		return fmt.Errorf("create an endpoint for %s: %w", s.c.ID, err)
	}
	s.endpoint = newEndpoint(s)
	s.engine.wg.Go(func() {
		// Serve returns when the sandbox ends. If it fails earlier, nested calls of the
		// capability fail.
		s.endpoint.Serve(limited(l))
	})
	return nil
}

// kill removes the jail of the sandbox with all its processes. It returns when the jail is
// removed.
func (s *sandbox) kill() {
	s.killing.Do(func() {
		if s.endpoint != nil {
			s.endpoint.Close()
		}
		if s.http != nil {
			s.http.CloseIdleConnections()
		}
		if s.program != nil {
			s.program.close()
		}
		err := s.engine.cfg.Jails.Delete(context.Background(), s.jail)
		if err != nil && !errors.Is(err, fault.NotFound) {
			s.engine.log.Error("failed to remove a sandbox", "jail", s.jail, "capability", s.c.ID, "err", err)
		}
	})
}
