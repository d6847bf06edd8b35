package jailed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

// A Process is a running program of a capability that serves more than one call. Write
// writes to its standard input, and Read reads its standard output. Close kills the program
// and its sandbox.
type Process struct {
	io.Reader
	io.Writer

	sandbox *sandbox
	stderr  tail
	end     func() error

	mu sync.Mutex
	// +checklocks:mu
	last engine.Usage
	// +checklocks:mu
	met engine.Kind // the limit that was exceeded, or ""
	// +checklocks:mu
	over bool // the process has ended; last and met are final
}

// Start starts a capability's program in a new sandbox, with the files of the session if
// the capability has mode session. ctx limits the start only. The files of the modes session
// and persistent are used by one process at a time; Start waits for them. The caller must
// close the Process.
func (e *Engine) Start(ctx context.Context, c *engine.Installed, session string) (*Process, error) {
	starting, done, err := e.begin(ctx, c)
	if err != nil {
		return nil, err
	}
	defer done()
	s, release, err := e.sandboxOf(starting, c, session)
	if err != nil {
		return nil, err
	}
	p, err := s.talk(starting, release)
	if err != nil {
		release(false)
		return nil, err
	}
	return p, nil
}

// sandboxOf returns a sandbox that does not come from a warm pool.
func (e *Engine) sandboxOf(ctx context.Context, c *engine.Installed, session string) (*sandbox, func(bool), error) {
	if mode := c.Filesystem.Mode; mode == manifest.Session || mode == manifest.Persistent {
		s, _, release, err := e.fromVolume(ctx, c, session)
		return s, release, err
	}
	s, err := e.make(ctx, c, nil)
	if err != nil {
		return nil, nil, err
	}
	return s, func(bool) { s.kill() }, nil
}

// talk starts the program. Process.Close calls release.
func (s *sandbox) talk(ctx context.Context, release func(bool)) (*Process, error) {
	jails := s.engine.cfg.Jails
	live, stop := context.WithCancel(context.WithoutCancel(ctx))
	stream, st, err := jails.Exec(live, s.jail, jail.ExecRequest{Argv: s.c.Runtime.Entrypoint, Stdin: true, Ring: scriptRing}, lossless)
	if errors.Is(err, fault.Invalid) || errors.Is(err, fault.NotFound) {
		err = &engine.Failure{Kind: engine.Unstarted, Reason: "its entrypoint cannot be started: " + err.Error(), Err: err}
	}
	var in io.WriteCloser
	if err == nil {
		in, err = jails.Stdin(live, s.jail, st.ID)
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("start %s: %w", s.c.ID, err)
	}
	r, w := io.Pipe()
	p := &Process{Reader: r, Writer: in, sandbox: s}
	var reading sync.WaitGroup
	reading.Go(func() {
		err := collect(stream, func(c protocol.Chunk) error {
			if c.Stream == protocol.Stderr {
				p.stderr.add(c.Data)
				return nil
			}
			_, err := w.Write(c.Data)
			return err
		})
		w.CloseWithError(err) // nil is the end of the output
	})
	e := s.engine
	e.wg.Add(1)
	closing := context.AfterFunc(e.ctx, func() { p.Close() })
	p.end = sync.OnceValue(func() error {
		defer e.wg.Done()
		closing()
		p.settle()
		r.Close()
		stop()
		release(false)
		reading.Wait()
		return stream.Close()
	})
	return p, nil
}

// Close kills the process and its sandbox. It may be called more than once.
func (p *Process) Close() error { return p.end() }

// Jail returns the jail of the process, and what isolates it (see engine.Result).
func (p *Process) Jail() (jail, isolation string) {
	return string(p.sandbox.jail), p.sandbox.isolation
}

// Log returns the end of the standard error of the process.
func (p *Process) Log() string { return p.stderr.String() }

// Usage returns the usage of the process since its start. After Close it returns the last
// known usage.
func (p *Process) Usage() engine.Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return p.last
	}
	s := p.sandbox
	st, err := s.engine.cfg.Jails.Stats(context.Background(), s.jail)
	if err == nil && st.CPU > 0 {
		p.last = s.usage(s.mark(st), st.MemoryPeak, 0)
	}
	return p.last
}

// Limit returns the limit that the process has exceeded, or "".
func (p *Process) Limit() engine.Kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return p.met
	}
	s := p.sandbox
	st, err := s.engine.cfg.Jails.Stats(context.Background(), s.jail)
	switch {
	case s.outOfMemory(st, err):
		p.met = engine.Memory
	case s.outOfRoom(st, err):
		p.met = engine.Storage
	}
	return p.met
}

// settle records the final usage and limit.
func (p *Process) settle() {
	p.Usage()
	p.Limit()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}
