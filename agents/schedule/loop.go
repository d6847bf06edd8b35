package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// Open starts to fire due schedules. Cancellation of ctx does not stop the Manager; Close does.
func (m *Manager) Open(ctx context.Context) error {
	if _, err := m.cfg.Store.Wake(ctx); err != nil {
		return fmt.Errorf("find the next due schedule: %w", err)
	}
	// The loop outlives the context of Open. Close cancels it.
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.wg.Go(func() { m.loop(ctx) })
	return nil
}

// Close cancels calls of Fire and waits for them. Their schedules are released, so that another
// Manager can claim them immediately. Close may be called twice, or without Open.
func (m *Manager) Close() error {
	if m.cancel != nil {
		m.cancel()
	}
	m.wg.Wait()
	return nil
}

// loop processes due schedules until ctx ends.
func (m *Manager) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		}
		wait, err := m.tick(ctx)
		if err != nil && ctx.Err() == nil {
			m.cfg.Log.Error("cannot read due schedules", "error", err)
			wait = pollInterval
		}
		timer.Reset(wait)
	}
}

// tick starts to process all due schedules and returns the time until the next poll.
func (m *Manager) tick(ctx context.Context) (time.Duration, error) {
	for {
		free, err := m.take(ctx)
		if err != nil {
			return 0, err
		}
		wait, err := m.claim(ctx, free)
		if err != nil || wait > 0 {
			return wait, err
		}
	}
}

// take waits for a free slot, acquires all free slots, and returns their number.
func (m *Manager) take(ctx context.Context) (int, error) {
	select {
	case m.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for n := 1; ; n++ {
		select {
		case m.slots <- struct{}{}:
		default:
			return n, nil
		}
	}
}

// claim claims up to free due schedules and processes them. If none is due it returns the time
// until the next poll. It releases unused slots.
func (m *Manager) claim(ctx context.Context, free int) (time.Duration, error) {
	var claimed []Schedule
	defer func() {
		for range free - len(claimed) {
			<-m.slots
		}
	}()
	now := m.cfg.Now()
	// A read is cheaper than an empty claim, which on SQLite waits for the write lock.
	due, err := m.cfg.Store.Wake(ctx)
	if err != nil {
		return 0, fmt.Errorf("find the next due schedule: %w", err)
	}
	if due.IsZero() {
		return pollInterval, nil
	}
	if wait := due.Sub(now); wait > 0 {
		return min(wait, pollInterval), nil
	}
	claimed, err = m.cfg.Store.Claim(ctx, now, now.Add(m.cfg.Lease), string(id.NewToken()), free)
	if err != nil {
		return 0, fmt.Errorf("claim the due schedules: %w", err)
	}
	for _, s := range claimed {
		m.wg.Go(func() {
			defer func() { <-m.slots; m.signalWake() }()
			m.attend(ctx, s)
		})
	}
	if len(claimed) == 0 {
		return 50 * time.Millisecond, nil // a concurrent Claim has locked it
	}
	return 0, nil
}

// attend processes a claimed schedule and releases the claim after an error.
func (m *Manager) attend(ctx context.Context, s Schedule) {
	err := m.advance(ctx, s)
	switch {
	case err == nil:
	case errors.Is(err, errClaimLost):
		m.cfg.Log.Info("lost the claim of a schedule", "schedule", s.ID, "error", err)
	case ctx.Err() != nil:
		m.release(ctx, s, 0)
	default:
		m.cfg.Log.Error("cannot process a schedule", "schedule", s.ID, "error", err)
		m.release(ctx, s, pollInterval)
	}
}

// release releases a claim. If that fails, the claim ends with its lease.
func (m *Manager) release(ctx context.Context, s Schedule, pause time.Duration) {
	err := m.commit(ctx, s, func(s *Schedule) { s.Claim, s.WakeAt = "", timePtr(m.cfg.Now().Add(pause)) })
	if err != nil && !errors.Is(err, errClaimLost) {
		m.cfg.Log.Warn("cannot release the claim of a schedule", "schedule", s.ID, "error", err)
	}
}

// advance evaluates a claimed schedule, stores the decision, fires, and stores the result.
func (m *Manager) advance(ctx context.Context, s Schedule) error {
	if s.Firing == nil {
		busy := false
		if s.Overlap != OverlapAllow {
			var err error
			busy, err = m.cfg.Running(ctx, s.ID)
			if err != nil {
				return fmt.Errorf("look for unfinished runs of the schedule: %w", err)
			}
		}
		var err error
		s, err = m.change(ctx, s, func(s *Schedule) { s.evaluate(m.cfg.Now(), busy) })
		if err != nil || s.Firing == nil {
			return err
		}
	}
	fireErr := m.fire(ctx, s)
	if fireErr != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if fireErr != nil {
		m.cfg.Log.Warn("cannot fire a schedule", "schedule", s.ID, "due", s.Firing.Due, "error", fireErr)
	}
	return m.commit(ctx, s, func(s *Schedule) { s.recordResult(m.cfg.Now(), fireErr) })
}

// fire calls Config.Fire for the due time being fired.
func (m *Manager) fire(ctx context.Context, s Schedule) error {
	ctx, stop := context.WithTimeout(ctx, m.cfg.Lease*2/3)
	defer stop()
	due := s.Firing.Due
	return m.cfg.Fire(ctx, Firing{Schedule: s, Due: due, Key: s.key(due)})
}

var errClaimLost = errors.New("the schedule was claimed by another manager or deleted")

// change changes a claimed schedule. It returns errClaimLost if the claim is lost.
func (m *Manager) change(ctx context.Context, claimed Schedule, f func(s *Schedule)) (Schedule, error) {
	s, err := m.cfg.Store.Change(ctx, claimed.ID, func(s *Schedule) error {
		if s.Claim != claimed.Claim {
			return errClaimLost
		}
		f(s)
		return nil
	})
	if errors.Is(err, fault.NotFound) {
		err = errClaimLost
	}
	return s, err
}

// commit is like change, but ignores the cancellation of ctx, because it records an event that
// has already happened. It is limited to a third of the lease, which Fire leaves unused.
func (m *Manager) commit(ctx context.Context, claimed Schedule, f func(s *Schedule)) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Lease/3)
	defer stop()
	_, err := m.change(ctx, claimed, f)
	return err
}
