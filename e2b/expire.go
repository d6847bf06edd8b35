package e2b

import (
	"context"
	"errors"
	"time"

	"glasshouse/fault"
)

// arm has a sandbox that runs expire when its time is over, or later if that failed. The
// caller has the turn, or is alone.
func (s *Sandboxes) arm(c *cell) {
	c.stopTimer()
	if s.ctx.Err() != nil {
		return
	}
	b := c.box.Load()
	wait := time.Until(c.retry)
	switch {
	case b.State == Running:
		wait = max(wait, time.Until(b.End))
	case b.State != Killing || wait <= 0: // nothing is due, or the removal is under way
		return
	}
	c.timer = time.AfterFunc(wait, func() { s.expire(c) })
}

// retryLater has expire try again what has failed. The caller has the turn.
func (s *Sandboxes) retryLater(c *cell, err error) {
	c.retryDelay = min(max(firstRetry, 2*c.retryDelay), lastRetry)
	c.retry = time.Now().Add(c.retryDelay)
	s.arm(c)
	s.cfg.Log.Warn("a sandbox cannot be ended", "sandbox", c.box.Load().ID, "retry_in", c.retryDelay, "err", err)
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

// The delay before a failed expiry is tried again: it doubles with each failure.
const (
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
)

// expire kills or pauses a sandbox whose time is over.
func (s *Sandboxes) expire(c *cell) {
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return
	}
	s.wg.Add(1) // before Close waits: it cancels first and takes mu then
	s.mu.Unlock()
	defer s.wg.Done()
	s.change(s.ctx, c, func(ctx context.Context, b Sandbox) error {
		now := time.Now()
		switch {
		case now.Before(c.retry), b.State == Running && now.Before(b.End):
			s.arm(c)
			return nil
		case b.State == Killing, b.State == Running && !b.AutoPause:
			return s.kill(ctx, c) // logs its failure
		case b.State != Running:
			return nil
		}
		quiet := c.uses.close()
		if late := time.Until(b.End.Add(answerTime)); quiet != nil && late > 0 {
			s.expireAfter(c, quiet, late)
			return nil
		}
		defer c.uses.open()
		if err := s.pauseAtEnd(ctx, c, b); err != nil {
			s.retryLater(c, err)
			return nil
		}
		c.retryDelay = 0
		return nil
	})
}

// pauseAtEnd pauses a sandbox whose time is over. If its memory cannot be saved, because
// the host cannot do so or because it has failed for answerTime, the sandbox is paused
// with its files alone: it would otherwise use the host for ever. The caller has the turn.
func (s *Sandboxes) pauseAtEnd(ctx context.Context, c *cell, b Sandbox) error {
	err := s.pause(ctx, c, !b.FilesOnly)
	if err == nil || b.FilesOnly || c.box.Load().State != Running {
		return err
	}
	if !errors.Is(err, fault.Unsupported) && time.Since(b.End) < answerTime {
		return err
	}
	s.cfg.Log.Warn("a sandbox is paused without its memory, which cannot be saved", "sandbox", b.ID, "err", err)
	return s.pause(ctx, c, false)
}
