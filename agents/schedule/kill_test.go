package schedule_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/schedule"
	"glasshouse/id"
	"glasshouse/internal/killtest"
	"glasshouse/store"
)

func TestMain(m *testing.M) { killtest.Main(m, daemon) }

// daemon fires due schedules forever. Its clock jumps to the next wake time. It prints the key
// of each Firing.
func daemon(args []string) error {
	ctx := context.Background()
	s, err := store.Open(ctx, args[0])
	if err != nil {
		return err
	}
	m := schedule.New(schedule.Config{Store: s.Schedules(), Fire: func(_ context.Context, f schedule.Firing) error {
		_, err := fmt.Println(f.Key)
		return err
	}})
	var now time.Time
	m.SetClock(func() time.Time { return now })
	for {
		wake, err := s.Schedules().Wake(ctx)
		if err != nil {
			return err
		}
		if wake.After(now) {
			now = wake
		}
		if _, err := m.Tick(ctx); err != nil {
			return err
		}
	}
}

func TestKilledDaemonLosesAndRepeatsNothing(t *testing.T) {
	where := filepath.Join(t.TempDir(), "g.db")
	s, err := store.Open(t.Context(), where)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := schedule.New(schedule.Config{Store: s.Schedules()})
	var created []schedule.Schedule
	for range 20 {
		s, err := m.Create(t.Context(), schedule.Spec{Cron: "* * * * * *", Missed: schedule.MissedAll, Overlap: schedule.OverlapAllow})
		if err != nil {
			t.Fatal(err)
		}
		created = append(created, s)
	}
	fired, kills := map[string]bool{}, 8
	lines := 0
	// On a busy machine a daemon may be killed before it has counted much. The test continues until
	// each schedule has been counted often enough for a meaningful result.
	leastCounted := func() (n int64) {
		n = math.MaxInt64
		for _, one := range created {
			got, err := s.Schedules().Get(t.Context(), one.ID)
			if err != nil {
				t.Fatal(err)
			}
			n = min(n, int64(got.Counts.Fired))
		}
		return n
	}
	for round := 0; round < kills || leastCounted() < 5; round++ {
		if round == 20*kills {
			t.Fatalf("after %d kills a schedule has counted %d firings, want at least 5", round, leastCounted())
		}
		killtest.Start(t, where).KillAfter(30+11*round, 0, func(key string) {
			fired[key] = true
			lines++
		})
	}
	for _, first := range created {
		checkKilled(t, s, first, fired)
	}
	for key := range fired {
		t.Errorf("%s was fired but not due", key)
	}
	t.Logf("%d calls, at least %d kills", lines, kills)
}

// checkKilled checks that the counted due times, from the first one, are those that were fired.
func checkKilled(t *testing.T, s *store.Store, first schedule.Schedule, fired map[string]bool) {
	t.Helper()
	got, err := s.Schedules().Get(t.Context(), first.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.Counts != (schedule.Counts{Fired: got.Counts.Fired}) || got.Counts.Fired < 5 {
		t.Errorf("schedule %s: Counts = %+v", first.ID, got.Counts)
	}
	key := func(sid id.Schedule, due time.Time) string { return string(sid) + "/" + due.Format(time.RFC3339Nano) }
	for _, due := range first.NextTimes(int(got.Counts.Fired)) {
		if !fired[key(first.ID, due)] {
			t.Errorf("%s is counted but was not fired", due)
		}
		delete(fired, key(first.ID, due))
	}
	if got.Firing != nil { // the last daemon was killed while it fired
		delete(fired, key(first.ID, got.Firing.Due))
	}
	for k := range fired {
		if strings.HasPrefix(k, string(first.ID)) {
			t.Errorf("%s was fired but is not counted", k)
		}
	}
}
