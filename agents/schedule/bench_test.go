package schedule_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/agents/schedule"
	"glasshouse/store/postgrestest"
	"glasshouse/store/storetest"
)

// BenchmarkTick measures a poll of the database without a due schedule and with one, for
// different numbers of idle schedules.
func BenchmarkTick(b *testing.B) {
	b.Run("SQLite", func(b *testing.B) {
		benchTick(b, "sqlite", func(b *testing.B) string { return filepath.Join(b.TempDir(), "g.db") })
	})
	b.Run("PostgreSQL", func(b *testing.B) {
		server := postgrestest.Start(b)
		benchTick(b, "pgx", func(b *testing.B) string { return server.URL(b) })
	})
}

func benchTick(b *testing.B, driver string, fresh func(b *testing.B) string) {
	for _, idle := range []int{0, 100_000} {
		where := fresh(b)
		s, err := storetest.Open(b, where)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		now := time.Now().Truncate(time.Second)
		fired := 0
		m := schedule.New(schedule.Config{Store: s.Schedules(), Fire: func(context.Context, schedule.Firing) error { fired++; return nil }})
		m.SetClock(func() time.Time { return now })
		sleeper, err := m.Create(b.Context(), schedule.Spec{Cron: "@yearly"})
		if err != nil {
			b.Fatal(err)
		}
		multiply(b, driver, where, string(sleeper.ID), idle)
		tick := func() {
			if _, err := m.Tick(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprintf("none due, %d idle", idle), func(b *testing.B) {
			for b.Loop() {
				tick()
			}
		})
		if _, err := m.Create(b.Context(), schedule.Spec{Cron: "@every 1s"}); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("one due, %d idle", idle), func(b *testing.B) {
			fired = 0
			for b.Loop() {
				now = now.Add(time.Second)
				tick()
			}
			if fired != b.N {
				b.Errorf("%d firings, want %d", fired, b.N)
			}
		})
	}
}

// multiply inserts n copies of a schedule that is not due.
func multiply(b *testing.B, driver, where, sid string, n int) {
	db, err := sql.Open(driver, where)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	_, err = db.Exec(`INSERT INTO schedules (id, session, created, wake, claim, document)
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
		SELECT 'h-copy' || i, session, created + i, wake + i, claim, document FROM schedules, n WHERE id = $2 AND $1 > 0`, n, sid)
	if err != nil {
		b.Fatal(err)
	}
}
