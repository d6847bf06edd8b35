package schedule_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/schedule"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A world is a Manager over a database, in a bubble whose time begins at
// midnight of a first of January, and which moves only when all wait.
type world struct {
	*schedule.Manager
	t      *testing.T
	store  *store.Store
	config schedule.Config

	mu      sync.Mutex
	fired   []string                    // when, and what was due, as minutes:seconds since the start
	running bool                        // what the schedule has made goes on
	fail    func(schedule.Firing) error // nil: nothing fails
	skew    time.Duration               // of the clock
	start   time.Time
}

func inWorld(t *testing.T, play func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := storetest.Open(t, "")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		w := &world{t: t, store: s, start: time.Now()}
		w.config = schedule.Config{Store: s.Schedules(), Fire: w.fire, Running: w.isRunning}
		w.open()
		defer func() { w.Close() }()
		play(w)
	})
}

func (w *world) open() {
	w.t.Helper()
	w.Manager = schedule.New(w.config)
	w.SetClock(w.now)
	if err := w.Open(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.skew)
}

// setClock sets the clock forward, or back.
func (w *world) setClock(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skew += by
}

func (w *world) fire(_ context.Context, f schedule.Firing) error {
	if want := string(f.Schedule.ID) + "/" + f.Due.Format(time.RFC3339Nano); f.Key != want {
		w.t.Errorf("the key is %q, want %q", f.Key, want)
	}
	if w.fail != nil {
		if err := w.fail(f); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fired = append(w.fired, fmt.Sprintf("%v:%v", time.Since(w.start), f.Due.Sub(w.start)))
	return nil
}

func (w *world) isRunning(context.Context, id.Schedule) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running, nil
}

func (w *world) setRunning(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = is
}

func (w *world) create(spec schedule.Spec) schedule.Schedule {
	w.t.Helper()
	s, err := w.Create(w.t.Context(), spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) get(s schedule.Schedule) schedule.Schedule {
	w.t.Helper()
	s, err := w.Get(w.t.Context(), s.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// after lets a time pass, and checks what has fired since the last call: "5m0s:5m0s"
// is at five minutes what was due at five.
func (w *world) after(d time.Duration, want ...string) {
	w.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.fired, want) {
		w.t.Errorf("at %v there has fired %v, want %v", time.Since(w.start), w.fired, want)
	}
	w.fired = nil
}

func (w *world) counts(s schedule.Schedule, want schedule.Counts) {
	w.t.Helper()
	if got := w.get(s).Counts; got != want {
		w.t.Errorf("counted %+v, want %+v", got, want)
	}
}

func TestANewScheduleNeverFiresAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.create(schedule.Spec{Cron: "0 */5 * * * *", Make: json.RawMessage(`{"goal":"x"}`)})
		w.after(0) // it is midnight, and due every five minutes
		w.after(4 * time.Minute)
		w.after(6*time.Minute, "5m0s:5m0s", "10m0s:10m0s")
		w.counts(s, schedule.Counts{Fired: 2})
		if got := w.get(s); got.Last.Sub(w.start) != 10*time.Minute || got.Next.Sub(w.start) != 15*time.Minute || got.Firing != nil {
			t.Errorf("last %v, next %v, firing %v", got.Last, got.Next, got.Firing)
		}
	})
}

func TestOnceAtATime(t *testing.T) {
	inWorld(t, func(w *world) {
		at := w.start.Add(90 * time.Second)
		s := w.create(schedule.Spec{At: &at})
		if s.Done() {
			t.Error("it is done before it fired")
		}
		w.after(10*time.Minute, "1m30s:1m30s")
		if got := w.get(s); !got.Done() || got.Counts.Fired != 1 {
			t.Errorf("it has fired: %+v", got)
		}
		_, err := w.Create(w.t.Context(), schedule.Spec{At: &at})
		if fault.FieldOf(err) != "at" {
			t.Errorf("Create at a time that has passed = %v", err)
		}
	})
}

func TestEveryCountsFromTheStart(t *testing.T) {
	inWorld(t, func(w *world) {
		w.after(100 * time.Second)
		s := w.create(schedule.Spec{Cron: "@every 1m"})
		w.after(2*time.Minute, "2m40s:2m40s", "3m40s:3m40s")
		var got []string
		for _, next := range w.get(s).NextTimes(10) {
			got = append(got, next.Sub(w.start).String())
		}
		if want := "4m40s 5m40s 6m40s 7m40s 8m40s 9m40s 10m40s 11m40s 12m40s 13m40s"; strings.Join(got, " ") != want {
			t.Errorf("the next ten are %v, want %s", got, want)
		}
	})
}

func TestWhatWasDueWhileNoDaemonRan(t *testing.T) {
	for _, c := range []struct {
		missed schedule.Missed
		want   []string
		counts schedule.Counts
	}{
		{schedule.MissedSkip, nil, schedule.Counts{Missed: 3}},
		{schedule.MissedOnce, []string{"35m0s:30m0s"}, schedule.Counts{Fired: 1, Missed: 2}},
		{schedule.MissedAll, []string{"35m0s:10m0s", "35m0s:20m0s", "35m0s:30m0s"}, schedule.Counts{Fired: 3}},
	} {
		t.Run(string(c.missed), func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := w.create(schedule.Spec{Cron: "0 */10 * * * *", Missed: c.missed})
				w.Close()
				w.after(35 * time.Minute)
				w.open()
				w.after(0, c.want...)
				w.counts(s, c.counts)
				w.after(5*time.Minute, "40m0s:40m0s")
			})
		})
	}
}

func TestATimeThatPassedWhileNoDaemonRan(t *testing.T) {
	for _, c := range []struct {
		missed schedule.Missed
		want   []string
	}{{schedule.MissedSkip, nil}, {schedule.MissedOnce, []string{"1h0m0s:10m0s"}}, {schedule.MissedAll, []string{"1h0m0s:10m0s"}}} {
		t.Run(string(c.missed), func(t *testing.T) {
			inWorld(t, func(w *world) {
				at := w.start.Add(10 * time.Minute)
				s := w.create(schedule.Spec{At: &at, Missed: c.missed})
				w.Close()
				w.after(time.Hour)
				w.open()
				w.after(time.Minute, c.want...)
				if got := w.get(s); !got.Done() || got.Counts.Fired+got.Counts.Missed != 1 {
					t.Errorf("it is %+v", got)
				}
			})
		})
	}
}

func TestALittleLateIsNotMissed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(schedule.Spec{Cron: "0 */10 * * * *", Missed: schedule.MissedSkip})
		w.Close()
		w.after(10*time.Minute + 30*time.Second)
		w.open()
		w.after(0, "10m30s:10m0s")
	})
}

// A second is due each second for a month: what is made up for has a bound, and
// finding it takes no month.
func TestAMonthOfSecondsIsNoStorm(t *testing.T) {
	for missed, want := range map[schedule.Missed]schedule.Counts{
		schedule.MissedSkip: {Fired: 1, Missed: schedule.MaxMakeUp},
		schedule.MissedOnce: {Fired: 1, Missed: schedule.MaxMakeUp},
		schedule.MissedAll:  {Fired: schedule.MaxMakeUp, Missed: schedule.MaxMakeUp + 1},
	} {
		t.Run(string(missed), func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := w.create(schedule.Spec{Cron: "* * * * * *", Missed: missed})
				w.Close()
				time.Sleep(30 * 24 * time.Hour)
				w.open()
				synctest.Wait()
				w.Close()
				w.counts(s, want)
				if last, first := w.fired[len(w.fired)-1], w.fired[0]; last != "720h0m0s:720h0m0s" || missed == schedule.MissedAll && first != "720h0m0s:719h43m21s" {
					t.Errorf("from %s to %s", first, last)
				}
			})
		})
	}
}

func TestWhileARunGoesOn(t *testing.T) {
	for _, c := range []struct {
		overlap schedule.Overlap
		during  []string
		behind  []string
		counts  schedule.Counts
	}{
		{schedule.OverlapSkip, nil, nil, schedule.Counts{Fired: 1, Skipped: 3}},
		{schedule.OverlapQueue, nil, []string{"43m5s:20m0s"}, schedule.Counts{Fired: 2, Skipped: 2}},
		{schedule.OverlapAllow, []string{"20m0s:20m0s", "30m0s:30m0s", "40m0s:40m0s"}, nil, schedule.Counts{Fired: 4}},
	} {
		t.Run(string(c.overlap), func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := w.create(schedule.Spec{Cron: "0 */10 * * * *", Overlap: c.overlap})
				w.after(10*time.Minute, "10m0s:10m0s")
				w.setRunning(true)
				w.after(33*time.Minute, c.during...)
				if waiting := w.get(s).Waiting; (waiting != nil) != (c.overlap == schedule.OverlapQueue) {
					t.Errorf("there waits %v", waiting)
				}
				w.setRunning(false)
				w.after(6*time.Second, c.behind...)
				w.counts(s, c.counts)
				w.after(7*time.Minute, "50m0s:50m0s")
			})
		})
	}
}

// All that was missed is made up for, and yet no two runs go on at once.
func TestAllThatWasMissedIsMadeOneAfterTheOther(t *testing.T) {
	for _, overlap := range []schedule.Overlap{schedule.OverlapSkip, schedule.OverlapQueue} {
		t.Run(string(overlap), func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.fail = func(schedule.Firing) error {
					if is, _ := w.isRunning(w.t.Context(), ""); is {
						t.Error("two go on at once")
					}
					w.setRunning(true)
					time.AfterFunc(100*time.Second, func() { w.setRunning(false) })
					return nil
				}
				s := w.create(schedule.Spec{Cron: "0 */10 * * * *", Missed: schedule.MissedAll, Overlap: overlap})
				w.Close()
				w.after(35 * time.Minute)
				w.open()
				time.Sleep(10 * time.Minute)
				w.counts(s, schedule.Counts{Fired: 4})
			})
		})
	}
}

func TestWhatIsPausedFiresNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.create(schedule.Spec{Cron: "0 */10 * * * *", Overlap: schedule.OverlapQueue, Missed: schedule.MissedAll})
		w.setRunning(true)
		w.after(15 * time.Minute)
		if _, err := w.Pause(w.t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if got := w.get(s); got.Next != nil || got.Waiting != nil || got.Done() || got.NextTimes(10) != nil {
			t.Errorf("paused it is %+v", got)
		}
		w.setRunning(false)
		w.after(time.Hour)
		for range 2 { // resumed twice is resumed
			if _, err := w.Resume(w.t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
		}
		w.after(4 * time.Minute) // nothing is made up for
		w.after(time.Minute, "1h20m0s:1h20m0s")
		w.counts(s, schedule.Counts{Fired: 1, Skipped: 1})

		at := w.start.Add(2 * time.Hour)
		once := w.create(schedule.Spec{At: &at})
		if _, err := w.Pause(w.t.Context(), once.ID); err != nil {
			t.Fatal(err)
		}
		w.Pause(w.t.Context(), s.ID)
		w.after(time.Hour)
		if _, err := w.Resume(w.t.Context(), once.ID); fault.KindOf(err) != fault.Conflict {
			t.Errorf("Resume of what has passed = %v", err)
		}
	})
}

func TestAnUpdateCountsFromNowOn(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.create(schedule.Spec{Cron: "@every 10m", Name: "a"})
		w.after(9 * time.Minute)
		update := func(f func(*schedule.Spec)) (schedule.Schedule, error) {
			return w.Update(w.t.Context(), s.ID, func(spec *schedule.Spec) error { f(spec); return nil })
		}
		if got, err := update(func(s *schedule.Spec) { s.Name = "b" }); err != nil || !got.Next.Equal(*s.Next) || got.Name != "b" {
			t.Errorf("with another name it is %+v, %v", got, err)
		}
		if got, err := update(func(s *schedule.Spec) { s.Cron = "@every 2m" }); err != nil || got.Next.Sub(w.start) != 11*time.Minute {
			t.Errorf("with another time it is %+v, %v", got, err)
		}
		w.after(3*time.Minute, "11m0s:11m0s")
		for _, f := range []func(*schedule.Spec){
			func(s *schedule.Spec) { s.Cron = "nonsense" },
			func(s *schedule.Spec) { s.Cron = "0 0 30 2 *" },
			func(s *schedule.Spec) { s.Cron, s.At = "", &w.start },
			func(s *schedule.Spec) { s.At = &w.start },
			func(s *schedule.Spec) { s.Missed = "never" },
			func(s *schedule.Spec) { s.Overlap = "never" },
			func(s *schedule.Spec) { s.Jitter = -1 },
			func(s *schedule.Spec) { s.Make = json.RawMessage(`{`) },
			func(s *schedule.Spec) { s.Name = "\x00" },
			func(s *schedule.Spec) { s.Session = strings.Repeat("s", 200) },
		} {
			if _, err := update(f); fault.KindOf(err) != fault.Invalid {
				t.Errorf("Update = %v, want invalid", err)
			}
		}
		w.after(time.Minute, "13m0s:13m0s") // as before
		if _, err := w.Update(w.t.Context(), "h-none", func(*schedule.Spec) error { return nil }); fault.KindOf(err) != fault.NotFound {
			t.Errorf("Update of nothing = %v", err)
		}
		at := w.start.Add(20 * time.Minute)
		if _, err := update(func(s *schedule.Spec) { s.Cron, s.At = "", &at }); err != nil {
			t.Fatal(err)
		}
		w.after(10*time.Minute, "20m0s:20m0s")
		if got, err := update(func(s *schedule.Spec) { *s.At = s.At.Add(-time.Hour) }); fault.FieldOf(err) != "at" {
			t.Errorf("an update into the past = %+v, %v", got, err)
		}
	})
}

func TestADeletedScheduleIsGone(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.create(schedule.Spec{Cron: "@every 1m"})
		if err := w.Delete(w.t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		w.after(10 * time.Minute)
		if _, err := w.Get(w.t.Context(), s.ID); fault.KindOf(err) != fault.NotFound {
			t.Errorf("Get = %v", err)
		}
		if err := w.Delete(w.t.Context(), s.ID); fault.KindOf(err) != fault.NotFound {
			t.Errorf("Delete again = %v", err)
		}
	})
}

func TestJitterSpreadsAndAlwaysAsMuch(t *testing.T) {
	inWorld(t, func(w *world) {
		seen := map[time.Duration]bool{}
		for range 50 {
			s := w.create(schedule.Spec{Cron: "0 0 * * * *", Jitter: 10 * time.Minute})
			other := w.get(s) // as another daemon reads it
			due := *s.Next
			j := s.Fires(due).Sub(due)
			if j < 0 || j >= 10*time.Minute || other.Fires(due).Sub(due) != j {
				t.Fatalf("it fires %v after it is due, elsewhere %v", j, other.Fires(due).Sub(due))
			}
			seen[j.Truncate(time.Minute)] = true
		}
		if len(seen) < 5 {
			t.Errorf("fifty fire in %d of ten minutes", len(seen))
		}
		time.Sleep(time.Hour + 11*time.Minute)
		synctest.Wait()
		if len(w.fired) != 50 || slices.ContainsFunc(w.fired, func(s string) bool { return !strings.HasSuffix(s, ":1h0m0s") }) {
			t.Errorf("%d have fired: %v", len(w.fired), w.fired)
		}
	})
	inWorld(t, func(w *world) { // longer than there is time until the next
		s := w.create(schedule.Spec{Cron: "0 * * * * *", Jitter: time.Hour})
		time.Sleep(10*time.Minute - time.Millisecond)
		synctest.Wait()
		w.counts(s, schedule.Counts{Fired: int64(len(w.fired))})
		if n := len(w.fired); n < 8 || n > 9 {
			t.Errorf("in ten minutes it has fired %d times: %v", n, w.fired)
		}
	})
}

func TestTheClockIsSet(t *testing.T) {
	for _, missed := range []schedule.Missed{schedule.MissedSkip, schedule.MissedOnce} {
		t.Run(string(missed), func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.create(schedule.Spec{Cron: "0 */10 * * * *", Missed: missed})
				w.after(12*time.Minute, "10m0s:10m0s")
				w.setClock(-time.Hour)
				w.after(65 * time.Minute) // what was due at ten minutes past is not due again
				w.after(3*time.Minute, "1h20m0s:20m0s")
				w.setClock(time.Hour) // half an hour and more passes at once
				if missed == schedule.MissedOnce {
					w.after(5*time.Second, "1h20m5s:1h20m0s") // one, and not six
				} else {
					w.after(5*time.Second, "1h20m5s:1h20m0s") // it is not late
				}
				w.after(10*time.Minute, "1h30m0s:1h30m0s")
			})
		})
	}
	t.Run("forward", func(t *testing.T) {
		inWorld(t, func(w *world) {
			s := w.create(schedule.Spec{Cron: "0 */10 * * * *"})
			w.after(5 * time.Minute)
			w.setClock(time.Hour)
			w.after(5*time.Second, "5m5s:1h0m0s")
			w.setClock(-time.Hour)
			w.after(59 * time.Minute)
			w.after(6*time.Minute, "1h10m0s:1h10m0s")
			w.counts(s, schedule.Counts{Fired: 2, Missed: 5})
		})
	})
}

func TestWhatFailsIsTriedAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		var tries atomic.Int32
		w.fail = func(f schedule.Firing) error {
			if tries.Add(1) < 4 {
				return errors.New("the disk is full")
			}
			return nil
		}
		s := w.create(schedule.Spec{Cron: "0 */10 * * * *"})
		w.after(10*time.Minute + 2*time.Second)
		if got := w.get(s); got.Firing == nil || got.Firing.Attempts != 2 || got.Firing.Error != "the disk is full" {
			t.Errorf("meanwhile it is %+v", got.Firing)
		}
		w.after(10*time.Second, "10m7s:10m0s") // after pauses of 1, 2 and 4 s
		w.counts(s, schedule.Counts{Fired: 1})
	})
}

func TestWhatFailsForEverIsGivenUp(t *testing.T) {
	for _, c := range []struct {
		err   error
		tries int32
	}{{errors.New("the disk is full"), 10}, {fault.Newf(fault.Unavailable, "", "", "later"), 10}, {fault.Newf(fault.Invalid, "", "", "nonsense"), 1}} {
		t.Run(c.err.Error(), func(t *testing.T) {
			inWorld(t, func(w *world) {
				var tries atomic.Int32
				w.fail = func(f schedule.Firing) error {
					if tries.Add(1) > c.tries {
						return nil
					}
					return c.err
				}
				s := w.create(schedule.Spec{Cron: "0 0 * * * *"})
				time.Sleep(time.Hour + 20*time.Minute)
				synctest.Wait()
				if got := w.get(s); tries.Load() != c.tries || got.Error != c.err.Error() || got.Firing != nil || got.Counts != (schedule.Counts{Failed: 1}) {
					t.Errorf("tried %d times, it is %+v", tries.Load(), got)
				}
				w.after(40*time.Minute, "2h0m0s:2h0m0s")
				if got := w.get(s); got.Error != "" {
					t.Errorf("it has fired, and the error is still %q", got.Error)
				}
			})
		})
	}
}

// Who cannot tell whether a run goes on is asked again.
func TestNothingFiresWhileItIsNotKnownWhatRuns(t *testing.T) {
	inWorld(t, func(w *world) {
		w.Close()
		var broken atomic.Bool
		broken.Store(true)
		w.config.Running = func(context.Context, id.Schedule) (bool, error) {
			if broken.Load() {
				return false, fault.Newf(fault.NotFound, "", "", "no such session yet")
			}
			return false, nil
		}
		w.open()
		w.create(schedule.Spec{Cron: "0 */10 * * * *"})
		w.after(10*time.Minute + 12*time.Second)
		broken.Store(false)
		w.after(5*time.Second, "10m15s:10m0s")
	})
}

func TestAnEndingDaemonLeavesWhatFiresToOthers(t *testing.T) {
	inWorld(t, func(w *world) {
		began := make(chan struct{})
		w.config.Fire = func(ctx context.Context, f schedule.Firing) error {
			close(began)
			<-ctx.Done()
			return ctx.Err()
		}
		w.Close()
		w.open()
		s := w.create(schedule.Spec{Cron: "0 */10 * * * *", Missed: schedule.MissedSkip})
		<-began
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got := w.get(s); got.Claim != "" || got.Firing == nil || got.Firing.Attempts != 0 {
			t.Errorf("it is left as %+v", got)
		}
		w.config.Fire = w.fire
		w.open()
		w.after(0, "10m0s:10m0s")
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if err := schedule.New(w.config).Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAUserChangesWhatIsFiring(t *testing.T) {
	inWorld(t, func(w *world) {
		var s schedule.Schedule
		w.fail = func(f schedule.Firing) error {
			time.Sleep(5 * time.Second)
			return nil
		}
		s = w.create(schedule.Spec{Cron: "0 */10 * * * *"})
		time.Sleep(10*time.Minute + time.Second)
		if _, err := w.Update(w.t.Context(), s.ID, func(s *schedule.Spec) error { s.Cron = "@every 1m"; return nil }); err != nil {
			t.Fatal(err)
		}
		w.after(70*time.Second, "10m5s:10m0s", "11m6s:11m1s")
		w.counts(s, schedule.Counts{Fired: 2})
		time.Sleep(51 * time.Second)
		if _, err := w.Pause(w.t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		w.after(10*time.Minute, "12m6s:12m1s")
		if got := w.get(s); got.Wake != nil || got.Claim != "" || got.Firing != nil || got.Counts.Fired != 3 {
			t.Errorf("paused while it fired it is %+v", got)
		}
	})
}

func TestTimesAreShownBeforeItIsMade(t *testing.T) {
	from := at(t, "2026-01-02T03:04:05Z")
	got, err := schedule.Spec{Cron: "0 0 * * * *"}.Times(from, 2)
	if diff := cmp.Diff([]time.Time{at(t, "2026-01-02T04:00:00Z"), at(t, "2026-01-02T05:00:00Z")}, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	soon := from.Add(time.Second)
	if got, err := (schedule.Spec{At: &soon}).Times(from, 10); err != nil || len(got) != 1 {
		t.Errorf("Times of one time = %v, %v", got, err)
	}
	if _, err := (schedule.Spec{}).Times(from, 10); fault.FieldOf(err) != "cron" {
		t.Errorf("Times of nothing = %v", err)
	}
}
