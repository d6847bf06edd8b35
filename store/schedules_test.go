package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/agents/schedule"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/store/postgrestest"
)

func TestSchedules(t *testing.T) {
	tests := map[string]func(t *testing.T, where string){
		"ComeBackAsTheyWere":            schedulesComeBack,
		"AreListedInPages":              schedulesInPages,
		"AreChangedOneByOne":            schedulesChanged,
		"AreClaimedByOneEach":           schedulesClaimed,
		"AreClaimedAgainBehindTheLease": schedulesLeased,
	}
	server := postgrestest.Start(t)
	for name, test := range tests {
		t.Run(name+"/SQLite", func(t *testing.T) { test(t, filepath.Join(t.TempDir(), "g.db")) })
		t.Run(name+"/PostgreSQL", func(t *testing.T) { test(t, server.URL(t)) })
	}
}

func aSchedule(n int) schedule.Schedule {
	wake, next := epoch.Add(time.Duration(n)*time.Minute), epoch.Add(time.Duration(n)*time.Minute-time.Second)
	return schedule.Schedule{
		ID: id.NewSchedule(), Created: epoch.Add(time.Duration(n)), Changed: epoch, Since: epoch, Next: &next, WakeAt: &wake,
		Spec: schedule.Spec{Name: fmt.Sprintf("\u202e %d '\\", n), Cron: "0 * * * *", TZ: "Europe/Berlin", Run: json.RawMessage(`{"goal":"x"}`),
			Session: "s", Missed: schedule.MissedAll, Overlap: schedule.OverlapQueue, Jitter: time.Minute},
	}
}

func schedulesComeBack(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	want := aSchedule(1)
	want.Queued, want.Firing = &epoch, &schedule.Attempt{Due: epoch, Attempts: 3, Error: "e"}
	want.Last, want.Claim, want.Counts = &epoch, "somebody", schedule.Counts{Fired: 1, Missed: 2, Skipped: 3, Failed: 4}
	if err := s.Schedules().Create(ctx, want); err != nil {
		t.Fatal(err)
	}
	never := aSchedule(2)
	never.WakeAt, never.Next, never.Paused = nil, nil, true
	if err := s.Schedules().Create(ctx, never); err != nil {
		t.Fatal(err)
	}
	if err := s.Schedules().Create(ctx, never); err == nil {
		t.Error("a schedule was created twice")
	}
	s.Close()
	ss := open(t, where).Schedules()
	for _, want := range []schedule.Schedule{want, never} {
		got, err := ss.Get(ctx, want.ID)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	if wake, err := ss.Wake(ctx); err != nil || !wake.Equal(*want.WakeAt) {
		t.Errorf("Wake = %v, %v, want %v", wake, err, want.WakeAt)
	}
	if err := ss.Delete(ctx, want.ID); err != nil {
		t.Fatal(err)
	}
	if wake, err := ss.Wake(ctx); err != nil || !wake.IsZero() {
		t.Errorf("Wake without schedules = %v, %v", wake, err)
	}
	_, err := ss.Get(ctx, want.ID)
	_, change := ss.Change(ctx, want.ID, func(*schedule.Schedule) error { return nil })
	_, list := ss.List(ctx, schedule.Filter{After: want.ID})
	for _, err := range []error{err, ss.Delete(ctx, want.ID), change, list} {
		if !errors.Is(err, fault.NotFound) {
			t.Errorf("a deleted schedule: %v", err)
		}
	}
}

func schedulesInPages(t *testing.T, where string) {
	ss := open(t, where).Schedules()
	var want []id.Schedule
	for n := range 10 {
		s := aSchedule(9 - n)
		s.Created = epoch.Add(time.Duration(n / 3)) // several have the same creation time
		s.Session = fmt.Sprint(n % 2)
		want = append(want, s.ID)
		if err := ss.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	all, err := ss.List(t.Context(), schedule.Filter{})
	if err != nil || len(all) != 10 {
		t.Fatalf("%d are listed, %v", len(all), err)
	}
	var got []id.Schedule
	for after := id.Schedule(""); ; {
		page, err := ss.List(t.Context(), schedule.Filter{After: after, Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, s := range page {
			if !s.Created.Equal(all[len(got)].Created) || s.ID != all[len(got)].ID {
				t.Errorf("schedule %s is at position %d of the pages", s.ID, len(got))
			}
			got = append(got, s.ID)
		}
		after = got[len(got)-1]
	}
	if len(got) != len(want) {
		t.Errorf("pages have %d of %d schedules", len(got), len(want))
	}
	if odd, err := ss.List(t.Context(), schedule.Filter{Session: "1", After: got[4]}); err != nil || len(odd) == 0 || len(odd) > 4 {
		t.Errorf("%d further schedules of the session, %v", len(odd), err)
	}
}

func schedulesChanged(t *testing.T, where string) {
	first, second := open(t, where).Schedules(), open(t, where).Schedules()
	s := aSchedule(1)
	if err := first.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for n := range 40 {
		wg.Go(func() {
			ss := first
			if n%2 == 0 {
				ss = second
			}
			if _, err := ss.Change(t.Context(), s.ID, func(s *schedule.Schedule) error { s.Counts.Fired++; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	no := errors.New("no")
	if _, err := first.Change(t.Context(), s.ID, func(s *schedule.Schedule) error { s.Counts.Fired = 0; return no }); !errors.Is(err, no) {
		t.Errorf("Change = %v", err)
	}
	if got, err := first.Get(t.Context(), s.ID); err != nil || got.Counts.Fired != 40 {
		t.Errorf("counter after forty changes is %d, %v", got.Counts.Fired, err)
	}
}

func schedulesClaimed(t *testing.T, where string) {
	const due = 60
	ss := open(t, where).Schedules()
	for n := range due + 5 {
		if err := ss.Create(t.Context(), aSchedule(n)); err != nil {
			t.Fatal(err)
		}
	}
	now := epoch.Add((due - 1) * time.Minute)
	var mu sync.Mutex
	claimed := map[id.Schedule]int{}
	var wg sync.WaitGroup
	for n := range 8 {
		ss := open(t, where).Schedules()
		wg.Go(func() {
			for {
				list, err := ss.Claim(t.Context(), now, now.Add(time.Hour), fmt.Sprint(n), 3)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, s := range list {
					claimed[s.ID]++
					if s.Claim != fmt.Sprint(n) || !s.WakeAt.Equal(now.Add(time.Hour)) || s.Name == "" {
						t.Errorf("claimed schedule is %+v", s)
					}
				}
				done := len(claimed) == due
				mu.Unlock()
				if wake, err := ss.Wake(t.Context()); err != nil || done || wake.After(now) || len(list) > 3 {
					return
				}
			}
		})
	}
	wg.Wait()
	for sid, n := range claimed {
		if n != 1 {
			t.Errorf("%s is claimed %d times", sid, n)
		}
	}
	if len(claimed) != due {
		t.Errorf("%d schedules are claimed, want %d", len(claimed), due)
	}
}

func schedulesLeased(t *testing.T, where string) {
	ss := open(t, where).Schedules()
	s := aSchedule(0)
	if err := ss.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	lease := epoch.Add(30 * time.Second)
	for _, c := range []struct {
		at   time.Time
		want int
	}{{epoch.Add(-1), 0}, {epoch, 1}, {epoch, 0}, {lease.Add(-1), 0}, {lease, 1}} {
		list, err := ss.Claim(t.Context(), c.at, lease, "x", 5)
		if err != nil || len(list) != c.want {
			t.Errorf("at %v %d schedules can be claimed, %v; want %d", c.at, len(list), err, c.want)
		}
	}
}
