package e2b

import (
	"context"
	"net/url"
	"time"

	"glasshouse/e2b/envd"
	"glasshouse/fault"
)

// wakeTime is the minimum remaining lifetime of a sandbox after a request has resumed it.
const wakeTime = 5 * time.Minute

// Open implements envd.Boxes.
func (s *Sandboxes) Open(ctx context.Context, sandbox string, v envd.Visit) (envd.Box, func(), error) {
	for {
		c, b, err := s.locate(sandbox)
		if err != nil {
			return envd.Box{}, nil, err
		}
		if err := v.Admit(b.envdBox(), b.State == Running); err != nil {
			return envd.Box{}, nil, err
		}
		switch {
		case b.State != Running:
		case v.Use == envd.HealthCheck:
			return b.envdBox(), func() {}, nil
		case !b.expired(time.Now()):
			// a sandbox in use is not paused
			if leave, in := c.uses.enter(v.Use == envd.Stay); in {
				b = c.box.Load()
				if b.State == Running {
					return b.envdBox(), leave, nil
				}
				leave()
			}
		}
		if err := s.wake(ctx, c); err != nil { // or wait for the change in progress
			return envd.Box{}, nil, err
		}
	}
}

// Check implements envd.Boxes.
func (s *Sandboxes) Check(sandbox string) error {
	_, b, err := s.locate(sandbox)
	if err == nil && b.State != Running {
		err = stateError(b)
	}
	return err
}

// locate returns the current state of a sandbox of any team.
func (s *Sandboxes) locate(sandbox string) (*handle, *Sandbox, error) {
	s.mu.Lock()
	c := s.handles[sandbox]
	s.mu.Unlock()
	if c == nil {
		return nil, nil, missing(sandbox)
	}
	s.settle(c)
	b := c.box.Load()
	if !b.visible() {
		return nil, nil, missing(sandbox)
	}
	return c, b, nil
}

// expired reports whether the time of an auto-pausing sandbox is over. The sandbox still runs
// while requests that arrived before are served.
func (b *Sandbox) expired(now time.Time) bool { return b.AutoPause && !now.Before(b.End) }

func stateError(b *Sandbox) error {
	return fault.Newf(fault.Conflict, "e2b.stateError", b.ID, "the sandbox is %s", b.State)
}

// wake resumes a sandbox for an incoming request if the sandbox was created with autoResume.
func (s *Sandboxes) wake(ctx context.Context, c *handle) error {
	return s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		stay := max(wakeTime, b.Timeout)
		switch {
		case b.State == Running && !b.expired(time.Now()): // changed in the meantime
			return nil
		case b.State == Running && b.AutoResume: // treat it as paused
			return s.stay(ctx, c, stay, true)
		case b.State != Paused || !b.AutoResume || b.Image == "":
			return stateError(&b)
		}
		return s.resume(ctx, c, stay, true)
	})
}

// signed returns the sandbox whose token signed a link to a file.
func (s *Sandboxes) signed(q url.Values, operation string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.handles {
		if b := c.box.Load(); b.Token != "" && envd.SignedWith(b.Token, q, operation) {
			return b.ID, true
		}
	}
	return "", false
}

// envdBox returns the sandbox as envd needs it.
func (b *Sandbox) envdBox() envd.Box {
	user := b.User
	if user == "" {
		user = User
	}
	return envd.Box{
		Jail: b.Jail, User: user, Dir: b.Dir, Token: b.Token, Traffic: b.Traffic, Host: b.Network.MaskHost,
		Env: merged(b.Env, b.info()), HTTPS: b.Network.HTTPS,
	}
}
