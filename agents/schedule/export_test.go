package schedule

import (
	"context"
	"time"
)

// SetClock sets the clock of the Manager.
func (m *Manager) SetClock(now func() time.Time) { m.cfg.Now = now }

// Fires exports fireTime.
func (s *Schedule) Fires(due time.Time) time.Time { return s.fireTime(due) }

// Last exports last.
func (t *Timing) Last(due, at time.Time) time.Time { return t.last(due, at) }

// Tick processes all due schedules, waits for them, and returns the time until the next poll.
func (m *Manager) Tick(ctx context.Context) (time.Duration, error) {
	wait, err := m.tick(ctx)
	m.wg.Wait()
	return wait, err
}
