package jailed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/clients"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// A sandbox is a jail with a capability's program in it, or ready to start it. It
// serves one call at a time.
type sandbox struct {
	engine *Engine
	c      *engine.Installed
	jail   id.Jail
	ready  time.Time // when it was last known to be healthy
	volume string    // on the host, of what stays; empty: nothing does
	base   mark      // what it had used when it was last idle
	moved  Traffic   // what was carried for it before the call

	program *program        // the server; nil of a script
	http    *http.Transport // to the server

	endpoint *http.Server // for calls of the capability's own
	serving  atomic.Pointer[serving]

	killing sync.Once
}

// A mark is what a sandbox has used.
type mark struct {
	cpu   time.Duration
	disk  int64 // of its own and of its volume
	kills int64 // for memory
}

// A serving is a call that a sandbox is at work on.
type serving struct {
	ctx  context.Context
	call *engine.Call
}

// make makes a sandbox, with its server running and healthy. An error is a Failure if
// that is the capability's fault. What it has started is gone then.
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
	// A server that is slow to start keeps nobody else from starting his.
	made := sync.OnceFunc(func() { <-e.making })
	defer made()
	s := &sandbox{engine: e, c: c}
	if data != nil {
		spec.Mounts, spec.GrantedMounts = append(spec.Mounts, *data), append(spec.GrantedMounts, data.Source)
		s.volume = data.Source
	}
	if e.cfg.Govern != nil {
		if spec.Policy, err = e.cfg.Govern(ctx, c); err != nil {
			return nil, fmt.Errorf("the rules of %s: %w", c.ID, err)
		}
	}
	j, err := e.cfg.Jails.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("a sandbox for %s: %w", c.ID, err)
	}
	s.jail = j.ID
	defer func() {
		if err != nil {
			s.kill()
		}
	}()
	if err := e.mayHold(ctx, c, j); err != nil {
		return nil, err
	}
	if e.cfg.Grant != nil {
		if err := e.cfg.Grant(ctx, j.ID, c); err != nil {
			return nil, fmt.Errorf("what %s is to have: %w", c.ID, err)
		}
	}
	if _, err := e.cfg.Jails.Start(ctx, j.ID); err != nil {
		return nil, fmt.Errorf("a sandbox for %s: %w", c.ID, err)
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
	s.remember(ctx)
	s.base.cpu = 0 // a call that waits for it has caused it
	return s, nil
}

// sound reports whether a sandbox that has waited can serve a call.
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
	// trusted is how long a server that was healthy is believed to be.
	trusted = 10 * time.Second

	// lookTime is how long a server that has waited may take to say that it is
	// healthy.
	lookTime = 2 * time.Second
)

// serve has the sandbox serve a call. An error is a Failure, after which the sandbox
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
	if err == nil { // an answer after the end of the call is too late, for example one that only reports that end
		err = context.Cause(ctx)
	}
	r := engine.Result{Log: log}
	if err == nil {
		r.Output, err = outputOf(call, body)
	}
	// What it has used is of interest also when nobody waits for it any more.
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
	errTimeout = errors.New("the capability's time is over")
	errNetwork = errors.New("the capability has sent more than it may")
	errClosed  = errors.New("the engine is closed")
)

// limit bounds a call in time and in what it sends. The cause of the context's end is
// which of them it was.
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

// meterTime is how often what a sandbox sends is looked at. The proxy holds it to the
// byte; this ends the call.
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

// mark is what the sandbox has used by its jail's statistics.
func (s *sandbox) mark(st jail.Stats) mark {
	m := mark{cpu: st.CPU, disk: st.DiskBytes, kills: st.OOMKills}
	if s.volume != "" {
		used, _ := volumeUse(s.volume)
		m.disk += used
	}
	return m
}

// remember has what the sandbox used until now be no call's.
func (s *sandbox) remember(ctx context.Context) {
	if st, err := s.engine.cfg.Jails.Stats(ctx, s.jail); err == nil {
		s.base = s.mark(st)
	}
}

// usage is what a call has taken of what its sandbox has.
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

// openEndpoint makes the socket at which the capability calls others.
func (s *sandbox) openEndpoint(ctx context.Context) error {
	l, err := s.engine.cfg.Jails.Listen(ctx, s.jail, clients.Socket)
	if err != nil {
		return fmt.Errorf("create an endpoint for %s: %w", s.c.ID, err)
	}
	s.endpoint = newEndpoint(s)
	s.engine.wg.Go(func() {
		// It ends when the sandbox does; a capability that finds nobody here says so.
		s.endpoint.Serve(limited(l))
	})
	return nil
}

// kill ends the sandbox and all in it, and returns when nothing is left.
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
			s.engine.log.Error("a sandbox was not removed", "jail", s.jail, "capability", s.c.ID, "err", err)
		}
	})
}
