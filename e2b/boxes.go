package e2b

import (
	"context"
	"net/url"
	"time"

	"glasshouse/e2b/envd"
	"glasshouse/fault"
)

// wakeTime is how long a sandbox stays at least that somebody's request woke.
const wakeTime = 5 * time.Minute

// Open implements envd.Boxes.
func (s *Sandboxes) Open(ctx context.Context, sandbox string, v envd.Visit) (envd.Box, func(), error) {
	for {
		c, b, err := s.locate(sandbox)
		if err != nil {
			return envd.Box{}, nil, err
		}
		if err := v.Admit(b.inside(), b.State == Running); err != nil {
			return envd.Box{}, nil, err
		}
		switch {
		case b.State != Running:
		case v.Use == envd.Glance:
			return b.inside(), func() {}, nil
		case !b.over(time.Now()):
			// A sandbox that is in use is not paused.
			if leave, in := c.uses.enter(v.Use == envd.Stay); in {
				b = c.box.Load()
				if b.State == Running {
					return b.inside(), leave, nil
				}
				leave()
			}
		}
		if err := s.wake(ctx, c); err != nil { // or wait for the change that is under way
			return envd.Box{}, nil, err
		}
	}
}

// Check implements envd.Boxes.
func (s *Sandboxes) Check(sandbox string) error {
	_, b, err := s.locate(sandbox)
	if err == nil && b.State != Running {
		err = resting(b)
	}
	return err
}

// locate returns a sandbox of any team, where it is now.
func (s *Sandboxes) locate(sandbox string) (*cell, *Sandbox, error) {
	s.mu.Lock()
	c := s.cells[sandbox]
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

// over reports whether a sandbox is to rest, and does not yet because requests that it
// was sent before are still being answered.
func (b *Sandbox) over(now time.Time) bool { return b.AutoPause && !now.Before(b.End) }

func resting(b *Sandbox) error {
	return fault.Newf(fault.Conflict, "e2b", b.ID, "the sandbox is %s", b.State)
}

// wake has a sandbox go on to which somebody comes, if that is how it was wanted.
func (s *Sandboxes) wake(ctx context.Context, c *cell) error {
	return s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		stay := max(wakeTime, b.Timeout)
		switch {
		case b.State == Running && !b.over(time.Now()): // meanwhile
			return nil
		case b.State == Running && b.AutoResume: // as if it had rested
			return s.stay(ctx, c, stay, true)
		case b.State != Paused || !b.AutoResume || b.Image == "":
			return resting(&b)
		}
		return s.resume(ctx, c, stay, true)
	})
}

// signed returns the sandbox whose token a link to a file was made with.
func (s *Sandboxes) signed(q url.Values, operation string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.cells {
		if b := c.box.Load(); b.Token != "" && envd.SignedWith(b.Token, q, operation) {
			return b.ID, true
		}
	}
	return "", false
}

// inside is a sandbox as its envd knows it.
func (b *Sandbox) inside() envd.Box {
	user := b.User
	if user == "" {
		user = User
	}
	return envd.Box{
		Jail: b.Jail, User: user, Dir: b.Dir, Token: b.Token, Traffic: b.Traffic, Host: b.Network.MaskHost,
		Env: merged(b.Env, b.told()), HTTPS: b.Network.HTTPS,
	}
}
