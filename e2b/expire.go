package e2b

import (
	"context"
	"errors"
	"time"

	"glasshouse/fault"
)

// arm schedules the expiry of a running sandbox for its end time, or later if an expiry failed.
// The caller holds c.lock, or is the only user of c.
func (s *Sandboxes) arm(c *handle) {
	c.stopTimer()
	if s.ctx.Err() != nil {
		return
	}
	b := c.box.Load()
	wait := time.Until(c.retry)
	switch {
	case b.State == Running:
		wait = max(wait, time.Until(b.End))
	case b.State != Killing || wait <= 0: // nothing is due, or the removal is in progress
		return
	}
	c.timer = time.AfterFunc(wait, func() { s.expire(c) })
}

// retryLater schedules another attempt after a failed expiry. The caller holds c.lock.
func (s *Sandboxes) retryLater(c *handle, err error) {
	c.retryDelay = min(max(firstRetry, 2*c.retryDelay), lastRetry)
	c.retry = time.Now().Add(c.retryDelay)
	s.arm(c)
	s.cfg.Log.Warn("cannot end a sandbox", "sandbox", c.box.Load().ID, "retry_in", c.retryDelay, "err", err)
}

func (c *handle) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// answerTime limits how long requests that arrived before a sandbox's timeout are served.
// pauseTime is the limit for an explicit pause.
const (
	answerTime = 10 * time.Minute
	pauseTime  = 30 * time.Second
)

// expireAfter schedules another expiry for when quiet is closed, or after late. The caller holds
// h.lock.
func (s *Sandboxes) expireAfter(c *handle, quiet <-chan struct{}, late time.Duration) {
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

// The delay before a failed expiry is retried doubles with each failure.
const (
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
)

// expire kills or pauses a sandbox after its timeout.
func (s *Sandboxes) expire(c *handle) {
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return
	}
	s.wg.Add(1) // before Close waits: Close cancels s.ctx first and then takes mu
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

// pauseAtEnd pauses a sandbox after its timeout. If its memory cannot be saved, because the host
// does not support it or because it has failed for answerTime, the sandbox is paused with its
// files only. It would otherwise use the host without a limit. The caller holds c.lock.
func (s *Sandboxes) pauseAtEnd(ctx context.Context, c *handle, b Sandbox) error {
	err := s.pause(ctx, c, !b.FilesOnly)
	if err == nil || b.FilesOnly || c.box.Load().State != Running {
		return err
	}
	if !errors.Is(err, fault.Unsupported) && time.Since(b.End) < answerTime {
		return err
	}
	s.cfg.Log.Warn("pausing a sandbox without its memory, which cannot be saved", "sandbox", b.ID, "err", err)
	return s.pause(ctx, c, false)
}
