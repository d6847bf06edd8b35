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

	"glasshouse/agents/schedule"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A harness is a Manager with a database in a synctest bubble. Its clock starts at midnight of
// January 1 and advances only when all goroutines are blocked.
type harness struct {
	*schedule.Manager
	t      *testing.T
	store  *store.Store
	config schedule.Config

	mu      sync.Mutex
	fired   []string                    // "actual:due" times since the start
	running bool                        // result of Config.Running
	fail    func(schedule.Firing) error // error of Fire; may be nil
	skew    time.Duration               // added to the fake clock
	start   time.Time
}

func withHarness(t *testing.T, test func(h *harness)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := storetest.Open(t, "")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		h := &harness{t: t, store: s, start: time.Now()}
		h.config = schedule.Config{Store: s.Schedules(), Fire: h.fire, Running: h.isRunning}
		h.open()
		defer func() { h.Close() }()
		test(h)
	})
}

func (h *harness) open() {
	h.t.Helper()
	h.Manager = schedule.New(h.config)
	h.SetClock(h.now)
	if err := h.Open(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Add(h.skew)
}

// setClock changes the clock by a duration.
func (h *harness) setClock(by time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.skew += by
}

func (h *harness) fire(_ context.Context, f schedule.Firing) error {
	if want := string(f.Schedule.ID) + "/" + f.Due.Format(time.RFC3339Nano); f.Key != want {
		h.t.Errorf("Key = %q, want %q", f.Key, want)
	}
	if h.fail != nil {
		if err := h.fail(f); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fired = append(h.fired, fmt.Sprintf("%v:%v", time.Since(h.start), f.Due.Sub(h.start)))
	return nil
}

func (h *harness) isRunning(context.Context, id.Schedule) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running, nil
}

func (h *harness) setRunning(is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = is
}

func (h *harness) create(spec schedule.Spec) schedule.Schedule {
	h.t.Helper()
	s, err := h.Create(h.t.Context(), spec)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *harness) get(s schedule.Schedule) schedule.Schedule {
	h.t.Helper()
	s, err := h.Get(h.t.Context(), s.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// after advances the clock and checks the firings since the last call. "5m0s:4m0s" fired at
// five minutes and was due at four.
func (h *harness) after(d time.Duration, want ...string) {
	h.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.fired, want) {
		h.t.Errorf("at %v: fired %v, want %v", time.Since(h.start), h.fired, want)
	}
	h.fired = nil
}

func (h *harness) counts(s schedule.Schedule, want schedule.Counts) {
	h.t.Helper()
	if got := h.get(s).Counts; got != want {
		h.t.Errorf("Counts = %+v, want %+v", got, want)
	}
}

func TestNewScheduleDoesNotFireImmediately(t *testing.T) {
	withHarness(t, func(h *harness) {
		s := h.create(schedule.Spec{Cron: "0 */5 * * * *", Run: json.RawMessage(`{"goal":"x"}`)})
		h.after(0) // midnight is a due time of the expression
		h.after(4 * time.Minute)
		h.after(6*time.Minute, "5m0s:5m0s", "10m0s:10m0s")
		h.counts(s, schedule.Counts{Fired: 2})
		if got := h.get(s); got.Last.Sub(h.start) != 10*time.Minute || got.Next.Sub(h.start) != 15*time.Minute || got.Firing != nil {
			t.Errorf("Last = %v, Next = %v, Firing = %v", got.Last, got.Next, got.Firing)
		}
	})
}

func TestAtFiresOnce(t *testing.T) {
	withHarness(t, func(h *harness) {
		at := h.start.Add(90 * time.Second)
		s := h.create(schedule.Spec{At: &at})
		if s.Done() {
			t.Error("Done before it has fired")
		}
		h.after(10*time.Minute, "1m30s:1m30s")
		if got := h.get(s); !got.Done() || got.Counts.Fired != 1 {
			t.Errorf("after it has fired: %+v, want done", got)
		}
		_, err := h.Create(h.t.Context(), schedule.Spec{At: &at})
		if fault.FieldOf(err) != "at" {
			t.Errorf("Create with a past time = %v, want an error about at", err)
		}
	})
}

func TestEveryCountsFromCreation(t *testing.T) {
	withHarness(t, func(h *harness) {
		h.after(100 * time.Second)
		s := h.create(schedule.Spec{Cron: "@every 1m"})
		h.after(2*time.Minute, "2m40s:2m40s", "3m40s:3m40s")
		var got []string
		for _, next := range h.get(s).NextTimes(10) {
			got = append(got, next.Sub(h.start).String())
		}
		if want := "4m40s 5m40s 6m40s 7m40s 8m40s 9m40s 10m40s 11m40s 12m40s 13m40s"; strings.Join(got, " ") != want {
			t.Errorf("NextTimes(10) = %v, want %s", got, want)
		}
	})
}

func TestMissedDueTimes(t *testing.T) {
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
			withHarness(t, func(h *harness) {
				s := h.create(schedule.Spec{Cron: "0 */10 * * * *", Missed: c.missed})
				h.Close()
				h.after(35 * time.Minute)
				h.open()
				h.after(0, c.want...)
				h.counts(s, c.counts)
				h.after(5*time.Minute, "40m0s:40m0s")
			})
		})
	}
}

func TestMissedAt(t *testing.T) {
	for _, c := range []struct {
		missed schedule.Missed
		want   []string
	}{{schedule.MissedSkip, nil}, {schedule.MissedOnce, []string{"1h0m0s:10m0s"}}, {schedule.MissedAll, []string{"1h0m0s:10m0s"}}} {
		t.Run(string(c.missed), func(t *testing.T) {
			withHarness(t, func(h *harness) {
				at := h.start.Add(10 * time.Minute)
				s := h.create(schedule.Spec{At: &at, Missed: c.missed})
				h.Close()
				h.after(time.Hour)
				h.open()
				h.after(time.Minute, c.want...)
				if got := h.get(s); !got.Done() || got.Counts.Fired+got.Counts.Missed != 1 {
					t.Errorf("schedule = %+v, want done after one due time", got)
				}
			})
		})
	}
}

func TestDelayWithinGraceIsNotMissed(t *testing.T) {
	withHarness(t, func(h *harness) {
		h.create(schedule.Spec{Cron: "0 */10 * * * *", Missed: schedule.MissedSkip})
		h.Close()
		h.after(10*time.Minute + 30*time.Second)
		h.open()
		h.after(0, "10m30s:10m0s")
	})
}

// TestMakeUpIsBounded misses a due time each second for a month. The number of later firings
// and the time to compute them are bounded.
func TestMakeUpIsBounded(t *testing.T) {
	for missed, want := range map[schedule.Missed]schedule.Counts{
		schedule.MissedSkip: {Fired: 1, Missed: schedule.MaxCatchUp},
		schedule.MissedOnce: {Fired: 1, Missed: schedule.MaxCatchUp},
		schedule.MissedAll:  {Fired: schedule.MaxCatchUp, Missed: schedule.MaxCatchUp + 1},
	} {
		t.Run(string(missed), func(t *testing.T) {
			withHarness(t, func(h *harness) {
				s := h.create(schedule.Spec{Cron: "* * * * * *", Missed: missed})
				h.Close()
				time.Sleep(30 * 24 * time.Hour)
				h.open()
				synctest.Wait()
				h.Close()
				h.counts(s, want)
				if last, first := h.fired[len(h.fired)-1], h.fired[0]; last != "720h0m0s:720h0m0s" || missed == schedule.MissedAll && first != "720h0m0s:719h43m21s" {
					t.Errorf("fired from %s to %s", first, last)
				}
			})
		})
	}
}

func TestOverlapPolicies(t *testing.T) {
	for _, c := range []struct {
		overlap schedule.Overlap
		during  []string
		after   []string
		counts  schedule.Counts
	}{
		{schedule.OverlapSkip, nil, nil, schedule.Counts{Fired: 1, Skipped: 3}},
		{schedule.OverlapQueue, nil, []string{"43m5s:20m0s"}, schedule.Counts{Fired: 2, Skipped: 2}},
		{schedule.OverlapAllow, []string{"20m0s:20m0s", "30m0s:30m0s", "40m0s:40m0s"}, nil, schedule.Counts{Fired: 4}},
	} {
		t.Run(string(c.overlap), func(t *testing.T) {
			withHarness(t, func(h *harness) {
				s := h.create(schedule.Spec{Cron: "0 */10 * * * *", Overlap: c.overlap})
				h.after(10*time.Minute, "10m0s:10m0s")
				h.setRunning(true)
				h.after(33*time.Minute, c.during...)
				if waiting := h.get(s).Queued; (waiting != nil) != (c.overlap == schedule.OverlapQueue) {
					t.Errorf("Waiting = %v", waiting)
				}
				h.setRunning(false)
				h.after(6*time.Second, c.after...)
				h.counts(s, c.counts)
				h.after(7*time.Minute, "50m0s:50m0s")
			})
		})
	}
}

// All missed due times fire, but no two runs are active at the same time.
func TestMissedAllFiresSequentially(t *testing.T) {
	for _, overlap := range []schedule.Overlap{schedule.OverlapSkip, schedule.OverlapQueue} {
		t.Run(string(overlap), func(t *testing.T) {
			withHarness(t, func(h *harness) {
				h.fail = func(schedule.Firing) error {
					if running, _ := h.isRunning(h.t.Context(), ""); running {
						t.Error("two runs are active at the same time")
					}
					h.setRunning(true)
					time.AfterFunc(100*time.Second, func() { h.setRunning(false) })
					return nil
				}
				s := h.create(schedule.Spec{Cron: "0 */10 * * * *", Missed: schedule.MissedAll, Overlap: overlap})
				h.Close()
				h.after(35 * time.Minute)
				h.open()
				time.Sleep(10 * time.Minute)
				h.counts(s, schedule.Counts{Fired: 4})
			})
		})
	}
}

func TestPausedScheduleDoesNotFire(t *testing.T) {
	withHarness(t, func(h *harness) {
		s := h.create(schedule.Spec{Cron: "0 */10 * * * *", Overlap: schedule.OverlapQueue, Missed: schedule.MissedAll})
		h.setRunning(true)
		h.after(15 * time.Minute)
		if _, err := h.Pause(h.t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if got := h.get(s); got.Next != nil || got.Queued != nil || got.Done() || got.NextTimes(10) != nil {
			t.Errorf("paused schedule = %+v", got)
		}
		h.setRunning(false)
		h.after(time.Hour)
		for range 2 { // Resume is idempotent
			if _, err := h.Resume(h.t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
		}
		h.after(4 * time.Minute) // due times during the pause do not fire
		h.after(time.Minute, "1h20m0s:1h20m0s")
		h.counts(s, schedule.Counts{Fired: 1, Skipped: 1})

		at := h.start.Add(2 * time.Hour)
		once := h.create(schedule.Spec{At: &at})
		if _, err := h.Pause(h.t.Context(), once.ID); err != nil {
			t.Fatal(err)
		}
		h.Pause(h.t.Context(), s.ID)
		h.after(time.Hour)
		if _, err := h.Resume(h.t.Context(), once.ID); fault.KindOf(err) != fault.Conflict {
			t.Errorf("Resume after the only due time = %v, want conflict", err)
		}
	})
}

func TestUpdateOfTheTiming(t *testing.T) {
	withHarness(t, func(h *harness) {
		s := h.create(schedule.Spec{Cron: "@every 10m", Name: "a"})
		h.after(9 * time.Minute)
		update := func(f func(*schedule.Spec)) (schedule.Schedule, error) {
			return h.Update(h.t.Context(), s.ID, func(spec *schedule.Spec) error { f(spec); return nil })
		}
		if got, err := update(func(s *schedule.Spec) { s.Name = "b" }); err != nil || !got.Next.Equal(*s.Next) || got.Name != "b" {
			t.Errorf("Update of the name = %+v, %v; want the same Next", got, err)
		}
		if got, err := update(func(s *schedule.Spec) { s.Cron = "@every 2m" }); err != nil || got.Next.Sub(h.start) != 11*time.Minute {
			t.Errorf("Update of the interval = %+v, %v; want Next at 11m", got, err)
		}
		h.after(3*time.Minute, "11m0s:11m0s")
		for _, f := range []func(*schedule.Spec){
			func(s *schedule.Spec) { s.Cron = "nonsense" },
			func(s *schedule.Spec) { s.Cron = "0 0 30 2 *" },
			func(s *schedule.Spec) { s.Cron, s.At = "", &h.start },
			func(s *schedule.Spec) { s.At = &h.start },
			func(s *schedule.Spec) { s.Missed = "never" },
			func(s *schedule.Spec) { s.Overlap = "never" },
			func(s *schedule.Spec) { s.Jitter = -1 },
			func(s *schedule.Spec) { s.Run = json.RawMessage(`{`) },
			func(s *schedule.Spec) { s.Name = "\x00" },
			func(s *schedule.Spec) { s.Session = strings.Repeat("s", 200) },
		} {
			if _, err := update(f); fault.KindOf(err) != fault.Invalid {
				t.Errorf("Update = %v, want invalid", err)
			}
		}
		h.after(time.Minute, "13m0s:13m0s") // unchanged by the failed updates
		if _, err := h.Update(h.t.Context(), "h-none", func(*schedule.Spec) error { return nil }); fault.KindOf(err) != fault.NotFound {
			t.Errorf("Update of an unknown schedule = %v, want not found", err)
		}
		at := h.start.Add(20 * time.Minute)
		if _, err := update(func(s *schedule.Spec) { s.Cron, s.At = "", &at }); err != nil {
			t.Fatal(err)
		}
		h.after(10*time.Minute, "20m0s:20m0s")
		if got, err := update(func(s *schedule.Spec) { *s.At = s.At.Add(-time.Hour) }); fault.FieldOf(err) != "at" {
			t.Errorf("Update to a past time = %+v, %v, want an error about at", got, err)
		}
	})
}

func TestDeletedScheduleDoesNotFire(t *testing.T) {
	withHarness(t, func(h *harness) {
		s := h.create(schedule.Spec{Cron: "@every 1m"})
		if err := h.Delete(h.t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		h.after(10 * time.Minute)
		if _, err := h.Get(h.t.Context(), s.ID); fault.KindOf(err) != fault.NotFound {
			t.Errorf("Get = %v, want not found", err)
		}
		if err := h.Delete(h.t.Context(), s.ID); fault.KindOf(err) != fault.NotFound {
			t.Errorf("second Delete = %v, want not found", err)
		}
	})
}

func TestJitterIsDeterministic(t *testing.T) {
	withHarness(t, func(h *harness) {
		seen := map[time.Duration]bool{}
		for range 50 {
			s := h.create(schedule.Spec{Cron: "0 0 * * * *", Jitter: 10 * time.Minute})
			other := h.get(s) // as read from the database
			due := *s.Next
			j := s.Fires(due).Sub(due)
			if j < 0 || j >= 10*time.Minute || other.Fires(due).Sub(due) != j {
				t.Fatalf("jitter is %v, of the stored schedule %v; want equal values below 10m", j, other.Fires(due).Sub(due))
			}
			seen[j.Truncate(time.Minute)] = true
		}
		if len(seen) < 5 {
			t.Errorf("50 schedules fire in %d of 10 minutes, want at least 5", len(seen))
		}
		time.Sleep(time.Hour + 11*time.Minute)
		synctest.Wait()
		if len(h.fired) != 50 || slices.ContainsFunc(h.fired, func(s string) bool { return !strings.HasSuffix(s, ":1h0m0s") }) {
			t.Errorf("%d firings, want 50: %v", len(h.fired), h.fired)
		}
	})
	withHarness(t, func(h *harness) { // jitter exceeds the interval
		s := h.create(schedule.Spec{Cron: "0 * * * * *", Jitter: time.Hour})
		time.Sleep(10*time.Minute - time.Millisecond)
		synctest.Wait()
		h.counts(s, schedule.Counts{Fired: int64(len(h.fired))})
		if n := len(h.fired); n < 8 || n > 9 {
			t.Errorf("%d firings in ten minutes, want 8 or 9: %v", n, h.fired)
		}
	})
}

func TestClockChanges(t *testing.T) {
	for _, missed := range []schedule.Missed{schedule.MissedSkip, schedule.MissedOnce} {
		t.Run(string(missed), func(t *testing.T) {
			withHarness(t, func(h *harness) {
				h.create(schedule.Spec{Cron: "0 */10 * * * *", Missed: missed})
				h.after(12*time.Minute, "10m0s:10m0s")
				h.setClock(-time.Hour)
				h.after(65 * time.Minute) // the due time at 10m does not fire again
				h.after(3*time.Minute, "1h20m0s:20m0s")
				h.setClock(time.Hour) // skips more than half an hour
				if missed == schedule.MissedOnce {
					h.after(5*time.Second, "1h20m5s:1h20m0s") // one instead of six
				} else {
					h.after(5*time.Second, "1h20m5s:1h20m0s") // within Grace
				}
				h.after(10*time.Minute, "1h30m0s:1h30m0s")
			})
		})
	}
	t.Run("forward", func(t *testing.T) {
		withHarness(t, func(h *harness) {
			s := h.create(schedule.Spec{Cron: "0 */10 * * * *"})
			h.after(5 * time.Minute)
			h.setClock(time.Hour)
			h.after(5*time.Second, "5m5s:1h0m0s")
			h.setClock(-time.Hour)
			h.after(59 * time.Minute)
			h.after(6*time.Minute, "1h10m0s:1h10m0s")
			h.counts(s, schedule.Counts{Fired: 2, Missed: 5})
		})
	})
}

func TestTemporaryErrorIsRetried(t *testing.T) {
	withHarness(t, func(h *harness) {
		var tries atomic.Int32
		h.fail = func(f schedule.Firing) error {
			if tries.Add(1) < 4 {
				return errors.New("the disk is full")
			}
			return nil
		}
		s := h.create(schedule.Spec{Cron: "0 */10 * * * *"})
		h.after(10*time.Minute + 2*time.Second)
		if got := h.get(s); got.Firing == nil || got.Firing.Attempts != 2 || got.Firing.Error != "the disk is full" {
			t.Errorf("Firing = %+v, want 2 failed attempts", got.Firing)
		}
		h.after(10*time.Second, "10m7s:10m0s") // after delays of 1, 2 and 4 s
		h.counts(s, schedule.Counts{Fired: 1})
	})
}

func TestAttemptsAreLimited(t *testing.T) {
	for _, c := range []struct {
		err   error
		tries int32
	}{{errors.New("the disk is full"), 10}, {fault.Newf(fault.Unavailable, "", "", "later"), 10}, {fault.Newf(fault.Invalid, "", "", "nonsense"), 1}} {
		t.Run(c.err.Error(), func(t *testing.T) {
			withHarness(t, func(h *harness) {
				var tries atomic.Int32
				h.fail = func(f schedule.Firing) error {
					if tries.Add(1) > c.tries {
						return nil
					}
					return c.err
				}
				s := h.create(schedule.Spec{Cron: "0 0 * * * *"})
				time.Sleep(time.Hour + 20*time.Minute)
				synctest.Wait()
				if got := h.get(s); tries.Load() != c.tries || got.Error != c.err.Error() || got.Firing != nil || got.Counts != (schedule.Counts{Failed: 1}) {
					t.Errorf("%d attempts, schedule = %+v", tries.Load(), got)
				}
				h.after(40*time.Minute, "2h0m0s:2h0m0s")
				if got := h.get(s); got.Error != "" {
					t.Errorf("Error after a success = %q, want none", got.Error)
				}
			})
		})
	}
}

func TestErrorOfRunningIsRetried(t *testing.T) {
	withHarness(t, func(h *harness) {
		h.Close()
		var broken atomic.Bool
		broken.Store(true)
		h.config.Running = func(context.Context, id.Schedule) (bool, error) {
			if broken.Load() {
				return false, fault.Newf(fault.NotFound, "", "", "no such session yet")
			}
			return false, nil
		}
		h.open()
		h.create(schedule.Spec{Cron: "0 */10 * * * *"})
		h.after(10*time.Minute + 12*time.Second)
		broken.Store(false)
		h.after(5*time.Second, "10m15s:10m0s")
	})
}

func TestCloseReleasesFiringSchedules(t *testing.T) {
	withHarness(t, func(h *harness) {
		began := make(chan struct{})
		h.config.Fire = func(ctx context.Context, f schedule.Firing) error {
			close(began)
			<-ctx.Done()
			return ctx.Err()
		}
		h.Close()
		h.open()
		s := h.create(schedule.Spec{Cron: "0 */10 * * * *", Missed: schedule.MissedSkip})
		<-began
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if got := h.get(s); got.Claim != "" || got.Firing == nil || got.Firing.Attempts != 0 {
			t.Errorf("schedule after Close = %+v, want it released with Firing set", got)
		}
		h.config.Fire = h.fire
		h.open()
		h.after(0, "10m0s:10m0s")
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if err := schedule.New(h.config).Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestUpdateWhileFiring(t *testing.T) {
	withHarness(t, func(h *harness) {
		var s schedule.Schedule
		h.fail = func(f schedule.Firing) error {
			time.Sleep(5 * time.Second)
			return nil
		}
		s = h.create(schedule.Spec{Cron: "0 */10 * * * *"})
		time.Sleep(10*time.Minute + time.Second)
		if _, err := h.Update(h.t.Context(), s.ID, func(s *schedule.Spec) error { s.Cron = "@every 1m"; return nil }); err != nil {
			t.Fatal(err)
		}
		h.after(70*time.Second, "10m5s:10m0s", "11m6s:11m1s")
		h.counts(s, schedule.Counts{Fired: 2})
		time.Sleep(51 * time.Second)
		if _, err := h.Pause(h.t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		h.after(10*time.Minute, "12m6s:12m1s")
		if got := h.get(s); got.WakeAt != nil || got.Claim != "" || got.Firing != nil || got.Counts.Fired != 3 {
			t.Errorf("schedule paused while firing = %+v", got)
		}
	})
}

func TestSpecTimes(t *testing.T) {
	from := at(t, "2026-01-02T03:04:05Z")
	got, err := schedule.Spec{Cron: "0 0 * * * *"}.Times(from, 2)
	if diff := cmp.Diff([]time.Time{at(t, "2026-01-02T04:00:00Z"), at(t, "2026-01-02T05:00:00Z")}, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	soon := from.Add(time.Second)
	if got, err := (schedule.Spec{At: &soon}).Times(from, 10); err != nil || len(got) != 1 {
		t.Errorf("Times with at = %v, %v, want one", got, err)
	}
	if _, err := (schedule.Spec{}).Times(from, 10); fault.FieldOf(err) != "cron" {
		t.Errorf("Times of an empty Spec = %v, want an error about cron", err)
	}
}
