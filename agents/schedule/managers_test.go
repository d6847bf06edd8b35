package schedule_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/schedule"
	"glasshouse/id"
	"glasshouse/store"
	"glasshouse/store/postgrestest"
	"glasshouse/store/storetest"
)

// A receiver implements Config.Fire and records the due time of each key.
type receiver struct {
	mu sync.Mutex
	// +checklocks:mu
	made map[string]int64
	// +checklocks:mu
	calls int
}

func (r *receiver) fire(_ context.Context, f schedule.Firing) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	r.made[f.Key] = f.Due.Unix()
	return nil
}

// fired returns the number of calls of fire, including repeated keys.
func (r *receiver) fired() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

// check checks that all due times of the schedules until a time were fired, and no others. It
// returns their number.
func (r *receiver) check(t *testing.T, s *store.Store, created []schedule.Schedule, until time.Time) (total int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, first := range created {
		var want int64
		for _, due := range first.NextTimes(10_000) {
			if due.After(until) {
				break
			}
			want++
			key := string(first.ID) + "/" + due.Format(time.RFC3339Nano)
			if _, is := r.made[key]; !is {
				t.Errorf("due time %s was not fired", key)
			}
			delete(r.made, key)
		}
		got, err := s.Schedules().Get(t.Context(), first.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.Counts != (schedule.Counts{Fired: want}) || got.Firing != nil || got.Claim != "" {
			t.Errorf("schedule %s: Counts = %+v, want %d fired; Firing = %v, Claim = %q", first.ID, got.Counts, want, got.Firing, got.Claim)
		}
		total += int(want)
	}
	for key := range r.made {
		t.Errorf("%s was fired but not due", key)
	}
	return total
}

func TestConcurrentManagers(t *testing.T) {
	server := postgrestest.Start(t)
	for name, test := range map[string]func(t *testing.T, where string){
		"FireEachDueTimeOnce": fireOnce, "SurviveKills": surviveKills,
	} {
		for database, where := range map[string]string{"SQLite": filepath.Join(t.TempDir(), "g.db"), "PostgreSQL": server.URL(t)} {
			t.Run(name+"/"+database, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { test(t, where) })
			})
		}
	}
}

// manager opens a Manager with its own connection to the database.
func manager(t *testing.T, where string, fire func(context.Context, schedule.Firing) error, around func(schedule.Store) schedule.Store) (m *schedule.Manager, end func()) {
	t.Helper()
	s, err := storetest.Open(t, where)
	if err != nil {
		t.Fatal(err)
	}
	m = schedule.New(schedule.Config{Store: around(s.Schedules()), Fire: fire})
	if err := m.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m, sync.OnceFunc(func() {
		m.Close()
		s.Close()
	})
}

func identity(s schedule.Store) schedule.Store { return s }

// fireOnce: two Managers, and then five, fire each due time once.
func fireOnce(t *testing.T, where string) {
	r := &receiver{made: map[string]int64{}}
	s, err := storetest.Open(t, where)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	creator := schedule.New(schedule.Config{Store: s.Schedules()})
	var created []schedule.Schedule
	for range 10 {
		s, err := creator.Create(t.Context(), schedule.Spec{Cron: "*/15 * * * * *"})
		if err != nil {
			t.Fatal(err)
		}
		created = append(created, s)
	}
	for _, more := range []int{2, 3} {
		for range more {
			_, end := manager(t, where, r.fire, identity)
			defer end()
		}
		time.Sleep(time.Minute)
	}
	time.Sleep(time.Second)
	if total, calls := r.check(t, s, created, time.Now()), r.fired(); total != 80 || calls != total {
		t.Errorf("%d due times and %d calls of Fire, want 80 each", total, calls)
	}
}

var errKilled = errors.New("the manager was killed")

// A failingManager simulates a killed Manager. After a number of steps it reaches neither the
// database nor the receiver.
type failingManager struct {
	schedule.Store
	fireOn func(context.Context, schedule.Firing) error
	left   atomic.Int64 // remaining steps
}

// step executes do unless the Manager is killed. At the last step it is killed at random either
// before or after do; in both cases it does not learn the result.
func (m *failingManager) step(do func() error) error {
	left := m.left.Add(-1)
	if left < 0 || left == 0 && rand.N(2) == 0 {
		return errKilled
	}
	err := do()
	if left == 0 {
		return errKilled
	}
	return err
}

func (m *failingManager) fire(ctx context.Context, f schedule.Firing) error {
	return m.step(func() error { return m.fireOn(ctx, f) })
}

func (m *failingManager) Wake(ctx context.Context) (t time.Time, err error) {
	if m.left.Load() <= 0 {
		return t, errKilled
	}
	return m.Store.Wake(ctx) // Wake only reads, so it does not count as a step
}

func (m *failingManager) Claim(ctx context.Context, now, until time.Time, claim string, n int) (list []schedule.Schedule, err error) {
	err = m.step(func() error { list, err = m.Store.Claim(ctx, now, until, claim, n); return err })
	return list, err
}

func (m *failingManager) Change(ctx context.Context, sid id.Schedule, f func(*schedule.Schedule) error) (s schedule.Schedule, err error) {
	err = m.step(func() error { s, err = m.Store.Change(ctx, sid, f); return err })
	return s, err
}

// surviveKills runs five Managers and replaces a killed one every few seconds. They fire every
// due time and nothing else.
func surviveKills(t *testing.T, where string) {
	r := &receiver{made: map[string]int64{}}
	s, err := storetest.Open(t, where)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	kills := 0
	var daemons [5]*failingManager
	var ends [5]func()
	restart := func(i int) {
		m := &failingManager{fireOn: r.fire}
		m.left.Store(5 + rand.Int64N(60))
		daemons[i] = m
		_, ends[i] = manager(t, where, m.fire, func(s schedule.Store) schedule.Store { m.Store = s; return m })
	}
	for i := range daemons {
		restart(i)
		defer func() { ends[i]() }()
	}
	creator := schedule.New(schedule.Config{Store: s.Schedules()})
	var created []schedule.Schedule
	for range 20 {
		s, err := creator.Create(t.Context(), schedule.Spec{Cron: "*/30 0-12 * * * *", Overlap: schedule.OverlapAllow, Missed: schedule.MissedAll})
		if err != nil {
			t.Fatal(err)
		}
		created = append(created, s)
	}
	for began := time.Now(); time.Since(began) < 13*time.Minute; time.Sleep(5 * time.Second) {
		for i, m := range daemons {
			if m.left.Load() <= 0 {
				ends[i]()
				restart(i)
				kills++
			}
		}
	}
	for _, m := range daemons {
		m.left.Store(1 << 40) // no more kills
	}
	time.Sleep(50 * time.Second) // leases of killed managers expire; nothing else is due
	if total := r.check(t, s, created, time.Now()); total != 500 || kills < 20 {
		t.Errorf("%d due times and %d kills, want 500 and at least 20", total, kills)
	} else {
		t.Logf("%d due times, %d calls of Fire, %d kills", total, r.fired(), kills)
	}
}
