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

	"glasshouse/id"
	"glasshouse/schedule"
	"glasshouse/store"
	"glasshouse/store/postgrestest"
	"glasshouse/store/storetest"
)

// A receiver makes what is fired: once for each key.
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

// fired returns how often something was fired, with repetitions of the same key.
func (r *receiver) fired() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

// check says whether each of the schedules has made each of its due times until now.
func (r *receiver) check(t *testing.T, s *store.Store, made []schedule.Schedule, until time.Time) (total int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, first := range made {
		var want int64
		for _, due := range first.NextTimes(10_000) {
			if due.After(until) {
				break
			}
			want++
			key := string(first.ID) + "/" + due.Format(time.RFC3339Nano)
			if _, is := r.made[key]; !is {
				t.Errorf("%s was never made", key)
			}
			delete(r.made, key)
		}
		got, err := s.Schedules().Get(t.Context(), first.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.Counts != (schedule.Counts{Fired: want}) || got.Firing != nil || got.Claim != "" {
			t.Errorf("%s has counted %+v, want %d fired; it fires %v, claimed by %q", first.ID, got.Counts, want, got.Firing, got.Claim)
		}
		total += int(want)
	}
	for key := range r.made {
		t.Errorf("%s was made, and never due", key)
	}
	return total
}

func TestManyDaemons(t *testing.T) {
	server := postgrestest.Start(t)
	for name, play := range map[string]func(t *testing.T, where string){
		"FireEachDueTimeOnce": fireOnce, "LoseNothingAndDoubleNothingWhenTheyDie": dieAndLoseNothing,
	} {
		for database, where := range map[string]string{"SQLite": filepath.Join(t.TempDir(), "g.db"), "PostgreSQL": server.URL(t)} {
			t.Run(name+"/"+database, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { play(t, where) })
			})
		}
	}
}

// manager opens a daemon's Manager, with a connection of its own to the database.
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

func itself(s schedule.Store) schedule.Store { return s }

// Two daemons, and then five, fire each due time once.
func fireOnce(t *testing.T, where string) {
	r := &receiver{made: map[string]int64{}}
	s, err := storetest.Open(t, where)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	maker := schedule.New(schedule.Config{Store: s.Schedules()})
	var made []schedule.Schedule
	for range 10 {
		s, err := maker.Create(t.Context(), schedule.Spec{Cron: "*/15 * * * * *"})
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, s)
	}
	for _, more := range []int{2, 3} {
		for range more {
			_, end := manager(t, where, r.fire, itself)
			defer end()
		}
		time.Sleep(time.Minute)
	}
	time.Sleep(time.Second)
	if total, calls := r.check(t, s, made, time.Now()), r.fired(); total != 80 || calls != total {
		t.Errorf("%d were due, and fired %d times", total, calls)
	}
}

var errDead = errors.New("it is dead")

// A mortal is a daemon that dies: from then on it reaches neither the database nor
// the receiver, in the middle of whatever it does.
type mortal struct {
	schedule.Store
	fireOn func(context.Context, schedule.Firing) error
	left   atomic.Int64 // steps until it dies
}

// step does a step unless it is dead. If it dies at this step, that is before it or
// behind it: then it is done, and nobody hears of it.
func (m *mortal) step(do func() error) error {
	left := m.left.Add(-1)
	if left < 0 || left == 0 && rand.N(2) == 0 {
		return errDead
	}
	err := do()
	if left == 0 {
		return errDead
	}
	return err
}

func (m *mortal) fire(ctx context.Context, f schedule.Firing) error {
	return m.step(func() error { return m.fireOn(ctx, f) })
}

func (m *mortal) Wake(ctx context.Context) (t time.Time, err error) {
	if m.left.Load() <= 0 {
		return t, errDead
	}
	return m.Store.Wake(ctx) // which changes nothing: it is no step
}

func (m *mortal) Claim(ctx context.Context, now, until time.Time, claim string, n int) (list []schedule.Schedule, err error) {
	err = m.step(func() error { list, err = m.Store.Claim(ctx, now, until, claim, n); return err })
	return list, err
}

func (m *mortal) Change(ctx context.Context, sid id.Schedule, f func(*schedule.Schedule) error) (s schedule.Schedule, err error) {
	err = m.step(func() error { s, err = m.Store.Change(ctx, sid, f); return err })
	return s, err
}

// Five daemons, of which one dies every few seconds and another takes its place, make
// what is due, all of it, and nothing twice.
func dieAndLoseNothing(t *testing.T, where string) {
	r := &receiver{made: map[string]int64{}}
	s, err := storetest.Open(t, where)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	deaths := 0
	var daemons [5]*mortal
	var ends [5]func()
	revive := func(i int) {
		m := &mortal{fireOn: r.fire}
		m.left.Store(5 + rand.Int64N(60))
		daemons[i] = m
		_, ends[i] = manager(t, where, m.fire, func(s schedule.Store) schedule.Store { m.Store = s; return m })
	}
	for i := range daemons {
		revive(i)
		defer func() { ends[i]() }()
	}
	maker := schedule.New(schedule.Config{Store: s.Schedules()})
	var made []schedule.Schedule
	for range 20 {
		s, err := maker.Create(t.Context(), schedule.Spec{Cron: "*/30 0-12 * * * *", Overlap: schedule.OverlapAllow, Missed: schedule.MissedAll})
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, s)
	}
	for began := time.Now(); time.Since(began) < 13*time.Minute; time.Sleep(5 * time.Second) {
		for i, m := range daemons {
			if m.left.Load() <= 0 {
				ends[i]()
				revive(i)
				deaths++
			}
		}
	}
	for _, m := range daemons {
		m.left.Store(1 << 40) // they live on
	}
	time.Sleep(50 * time.Second) // time for what the dead have left; nothing more is due
	if total := r.check(t, s, made, time.Now()); total != 500 || deaths < 20 {
		t.Errorf("%d were due, and %d daemons died", total, deaths)
	} else {
		t.Logf("%d fired, in %d calls, and %d daemons died", total, r.fired(), deaths)
	}
}
