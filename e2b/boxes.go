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
func (s *Sandboxes) Open(ctx context.Context, sandbox string, visit envd.Visit) (envd.Box, func(), error) {
	s.mu.Lock()
	c := s.cells[sandbox]
	s.mu.Unlock()
	for {
		if c == nil {
			return envd.Box{}, nil, missing(sandbox)
		}
		s.settle(c)
		b := c.box.Load()
		switch {
		case !b.visible():
			return envd.Box{}, nil, missing(sandbox)
		case visit == envd.Glance: // who looks whether it runs changes nothing
			if b.State != Running {
				return envd.Box{}, nil, resting(b)
			}
			return b.inside(), func() {}, nil
		case b.State == Running && !b.over(time.Now()):
			// What runs now is not paused before it is left.
			if leave, in := c.uses.enter(visit == envd.Stay); in {
				if b = c.box.Load(); b.State == Running {
					return b.inside(), leave, nil
				}
				leave()
			}
		}
		if err := s.wake(ctx, c); err != nil { // or wait for who is at it
			return envd.Box{}, nil, err
		}
	}
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
