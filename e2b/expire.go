package e2b

import (
	"context"
	"errors"
	"time"

	"glasshouse/fault"
)

// arm has a sandbox that runs end when its time is over. Who calls it has the turn, or
// is alone.
func (s *Sandboxes) arm(c *cell) {
	c.stopTimer()
	b := c.box.Load()
	if b.State != Running || s.ctx.Err() != nil {
		return
	}
	c.timer = time.AfterFunc(time.Until(b.End), func() { s.expire(c) })
}

func (c *cell) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// answerTime is how long a sandbox whose time is over answers requests that came before,
// at most. pauseTime is the same for one that is told to rest.
const (
	answerTime = 10 * time.Minute
	pauseTime  = 30 * time.Second
)

// expireAfter has a sandbox expire again when it is quiet, or it is late. Who calls it
// has the turn.
func (s *Sandboxes) expireAfter(c *cell, quiet <-chan struct{}, late time.Duration) {
	s.wg.Go(func() {
		select {
		case <-quiet:
		case <-time.After(late):
		case <-s.ctx.Done():
			return
		}
		s.expire(c)
	})
}

// again is how long is waited before what failed is tried again.
const again = 5 * time.Second

// expire ends a sandbox whose time is over, or has it rest.
func (s *Sandboxes) expire(c *cell) {
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return
	}
	s.wg.Add(1) // before Close waits: it cancels first and takes mu then
	s.mu.Unlock()
	defer s.wg.Done()
	err := s.change(s.ctx, c, func(ctx context.Context, b Sandbox) error {
		switch {
		case b.State != Running || time.Now().Before(b.End):
			s.arm(c)
			return nil
		case !b.AutoPause:
			return s.kill(ctx, c)
		}
		quiet := c.uses.close()
		if late := time.Until(b.End.Add(answerTime)); quiet != nil && late > 0 {
			s.expireAfter(c, quiet, late)
			return nil
		}
		defer c.uses.open()
		return s.pause(ctx, c, !b.FilesOnly)
	})
	if err != nil && s.ctx.Err() == nil && !errors.Is(err, fault.NotFound) { // it was killed meanwhile
		s.cfg.Log.Warn("a sandbox whose time is over is still there; it is tried again", "sandbox", c.box.Load().ID, "err", err)
		s.change(s.ctx, c, func(context.Context, Sandbox) error {
			c.timer = time.AfterFunc(again, func() { s.expire(c) })
			return nil
		})
	}
}
