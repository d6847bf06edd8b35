package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Store stores schedules. It may be used by several processes concurrently.
type Store interface {
	Create(ctx context.Context, s Schedule) error
	Get(ctx context.Context, sid id.Schedule) (Schedule, error) // fault.NotFound
	List(ctx context.Context, f Filter) ([]Schedule, error)     // oldest first
	Delete(ctx context.Context, sid id.Schedule) error          // fault.NotFound

	// Change calls f with a schedule in a transaction and stores the result unless f
	// returns an error. It returns fault.NotFound if the schedule does not exist.
	Change(ctx context.Context, sid id.Schedule, f func(s *Schedule) error) (Schedule, error)

	// Claim selects up to n schedules with the earliest Wake not after now, sets their Wake
	// to until and their Claim to claim, and returns them in any order. It skips schedules
	// that a concurrent Claim has locked.
	Claim(ctx context.Context, now, until time.Time, claim string, n int) ([]Schedule, error)

	// Wake returns the earliest Wake of all schedules, or the zero time.
	Wake(ctx context.Context) (time.Time, error)
}

// A Filter selects schedules for List.
type Filter struct {
	Session string      // empty: all sessions
	After   id.Schedule // list schedules after this one; empty: from the first
	Limit   int         // 0: 100
}

// A Firing is a due time to fire.
type Firing struct {
	Schedule Schedule
	Due      time.Time

	// Key identifies the due time of the schedule. Repeated calls of Fire for the same due
	// time have the same Key, by any Manager. Use it to prevent a second run.
	Key string
}

// Config configures a Manager.
type Config struct {
	Store Store

	// Fire starts the run and returns nil when the run is stored durably. It is called
	// again if the result of a call is unknown. It must be idempotent with respect to
	// Firing.Key, even for concurrent calls. A permanent error, such as fault.Invalid, ends
	// the attempts for the due time. After any other error there are up to ten attempts
	// within a quarter of an hour.
	Fire func(ctx context.Context, f Firing) error

	// Running reports whether a run of the schedule is active. nil: never.
	Running func(ctx context.Context, sid id.Schedule) (bool, error)

	// Lease is the duration of a claim. When it expires, another Manager may claim the
	// schedule. Default: 30 s. Fire is limited to two thirds of it.
	Lease time.Duration

	// Now returns the time, by the same clock for all Managers of the Store. nil: time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// A Manager manages schedules. It fires due schedules between Open and Close. It is safe for
// concurrent use.
type Manager struct {
	cfg    Config
	wake   chan struct{} // signals that a schedule may be due earlier
	slots  chan struct{} // semaphore: one slot per schedule being processed
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

const (
	// maxConcurrent is the number of schedules that a Manager processes concurrently.
	maxConcurrent = 16

	// pollInterval is the maximum interval between two polls of the database.
	pollInterval = 5 * time.Second
)

// New returns a Manager. It does not fire before Open.
func New(cfg Config) *Manager {
	if cfg.Lease <= 0 {
		cfg.Lease = 30 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Running == nil {
		cfg.Running = func(context.Context, id.Schedule) (bool, error) { return false, nil }
	}
	return &Manager{cfg: cfg, wake: make(chan struct{}, 1), slots: make(chan struct{}, maxConcurrent)}
}

// Create stores a new schedule. Its first due time is always in the future.
func (m *Manager) Create(ctx context.Context, spec Spec) (Schedule, error) {
	now := m.cfg.Now().UTC()
	s := Schedule{ID: id.NewSchedule(), Spec: spec, Created: now, Changed: now, Since: now}
	if err := s.check(now); err != nil {
		return Schedule{}, err
	}
	s.Next = s.first(now)
	s.release(now)
	if err := m.cfg.Store.Create(ctx, s); err != nil {
		return Schedule{}, fmt.Errorf("store a schedule: %w", err)
	}
	m.signalWake()
	return s, nil
}

// Get returns a schedule.
func (m *Manager) Get(ctx context.Context, sid id.Schedule) (Schedule, error) {
	return m.cfg.Store.Get(ctx, sid)
}

// List returns schedules, oldest first.
func (m *Manager) List(ctx context.Context, f Filter) ([]Schedule, error) {
	return m.cfg.Store.List(ctx, f)
}

// Update changes the Spec of a schedule with the function change. If the timing changes, due
// times are computed as for a new schedule.
func (m *Manager) Update(ctx context.Context, sid id.Schedule, change func(*Spec) error) (Schedule, error) {
	return m.edit(ctx, sid, func(s *Schedule, now time.Time) error {
		old := s.Spec
		if old.At != nil {
			old.At = timePtr(*old.At)
		}
		if err := change(&s.Spec); err != nil {
			return err
		}
		from := now
		if sameTiming(old, s.Spec) {
			from = s.Since // the timing was checked at that time
		} else {
			s.Since = now
		}
		if err := s.check(from); err != nil {
			return err
		}
		if !s.Paused && !sameTiming(old, s.Spec) {
			s.Next, s.Error = s.first(now), ""
		}
		return nil
	})
}

// Pause pauses a schedule until Resume. Due times in between are not fired later. A due time
// that is being fired continues.
func (m *Manager) Pause(ctx context.Context, sid id.Schedule) (Schedule, error) {
	return m.edit(ctx, sid, func(s *Schedule, _ time.Time) error {
		if s.Queued != nil {
			s.Counts.Skipped++
		}
		s.Paused, s.Next, s.Queued = true, nil, nil
		return nil
	})
}

// Resume resumes a paused schedule with its next due time. It returns fault.Conflict if the
// only due time has passed.
func (m *Manager) Resume(ctx context.Context, sid id.Schedule) (Schedule, error) {
	return m.edit(ctx, sid, func(s *Schedule, now time.Time) error {
		if !s.Paused {
			return nil
		}
		next := s.first(now)
		if next == nil {
			return &fault.Error{Op: "schedule.Resume", On: string(sid), Kind: fault.Conflict,
				Err: errors.New("its due time passed while it was paused"), Remedy: "set a due time in the future"}
		}
		s.Paused, s.Next = false, next
		return nil
	})
}

// Delete deletes a schedule. A due time that is being fired continues.
func (m *Manager) Delete(ctx context.Context, sid id.Schedule) error {
	return m.cfg.Store.Delete(ctx, sid)
}

// edit applies a change by a user. If a Manager has claimed the schedule, that Manager sets the
// next Wake when it releases the claim.
func (m *Manager) edit(ctx context.Context, sid id.Schedule, f func(s *Schedule, now time.Time) error) (Schedule, error) {
	s, err := m.cfg.Store.Change(ctx, sid, func(s *Schedule) error {
		now := m.cfg.Now().UTC()
		if err := f(s, now); err != nil {
			return err
		}
		s.Changed = now
		if s.Claim == "" && s.Firing == nil {
			s.release(now)
		}
		return nil
	})
	if err != nil {
		return Schedule{}, err
	}
	m.signalWake()
	return s, nil
}

// signalWake makes the loop check for due schedules.
func (m *Manager) signalWake() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
