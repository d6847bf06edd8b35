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
func (s *Sandboxes) Open(ctx context.Context, sandbox string, port int) (envd.Box, func(), error) {
	s.mu.Lock()
	c := s.cells[sandbox]
	s.mu.Unlock()
	if c == nil {
		return envd.Box{}, nil, missing(sandbox)
	}
	s.settle(c)
	if !c.box.Load().visible() {
		return envd.Box{}, nil, missing(sandbox)
	}
	if c.box.Load().State != Running {
		if err := s.wake(ctx, c); err != nil {
			return envd.Box{}, nil, err
		}
	}
	// A sandbox's time is over when its client said, whoever is using it.
	return c.box.Load().inside(), func() {}, nil
}

// wake has a sandbox go on to which somebody comes, if that is how it was wanted.
func (s *Sandboxes) wake(ctx context.Context, c *cell) error {
	return s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		switch {
		case b.State == Running: // meanwhile
			return nil
		case b.State != Paused || !b.AutoResume || b.Image == "":
			return fault.Newf(fault.Conflict, "e2b", b.ID, "the sandbox is %s", b.State)
		}
		return s.resume(ctx, c, max(wakeTime, b.Timeout), true)
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
		Env: merged(b.Env, map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": b.ID, "E2B_TEMPLATE_ID": b.Template}),
	}
}
