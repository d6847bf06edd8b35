package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"glasshouse/agents/schedule"
	"glasshouse/fault"
	"glasshouse/id"
)

// Schedules stores schedules of runs; it implements schedule.Store.
type Schedules struct{ s *Store }

// Schedules returns the database's schedules.
func (s *Store) Schedules() Schedules { return Schedules{s} }

// Create stores a new schedule.
func (ss Schedules) Create(ctx context.Context, s schedule.Schedule) error {
	doc, err := json.Marshal(s)
	if err == nil {
		_, err = ss.s.write.ExecContext(ctx, "INSERT INTO schedules (id, session, created, wake, claim, document) VALUES ($1, $2, $3, $4, $5, $6)",
			s.ID, s.Session, s.Created.UnixNano(), nanos(s.WakeAt), s.Claim, doc)
	}
	if err != nil {
		return fmt.Errorf("record schedule %s: %w", s.ID, err)
	}
	return nil
}

const scheduleColumns = "wake, claim, document"

// Get returns a schedule.
func (ss Schedules) Get(ctx context.Context, sid id.Schedule) (schedule.Schedule, error) {
	return ss.one("store.Schedules.Get", ss.s.read.QueryRowContext(ctx, "SELECT "+scheduleColumns+" FROM schedules WHERE id = $1", sid), sid)
}

func (ss Schedules) one(op string, row *sql.Row, sid id.Schedule) (schedule.Schedule, error) {
	s, err := readSchedule(row)
	if errors.Is(err, sql.ErrNoRows) {
		return s, noSchedule(op, sid)
	}
	if err != nil {
		return s, fmt.Errorf("read schedule %s: %w", sid, err)
	}
	return s, nil
}

func noSchedule(op string, sid id.Schedule) error {
	return fault.Newf(fault.NotFound, op, string(sid), "no such schedule")
}

func readSchedule(row interface{ Scan(...any) error }) (s schedule.Schedule, err error) {
	var wake sql.NullInt64
	var claim string
	var doc []byte
	if err = row.Scan(&wake, &claim, &doc); err != nil {
		return s, err
	}
	err = json.Unmarshal(doc, &s)
	s.WakeAt, s.Claim = instant(wake), claim
	if err != nil {
		return s, fmt.Errorf("decode the schedule: %w", err)
	}
	return s, nil
}

// List returns schedules, oldest first.
func (ss Schedules) List(ctx context.Context, f schedule.Filter) ([]schedule.Schedule, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	var w where
	if f.Session != "" {
		w.add("session = ", f.Session)
	}
	if f.After != "" {
		if _, err := ss.Get(ctx, f.After); err != nil {
			return nil, err
		}
		w.add("(created, id) > (SELECT created, id FROM schedules WHERE id = ", f.After)
		w.more(")")
	}
	rows, err := ss.s.read.QueryContext(ctx, fmt.Sprintf("SELECT %s FROM schedules%s ORDER BY created, id LIMIT $%d", scheduleColumns, w.String(), len(w.args)+1), append(w.args, f.Limit)...)
	return schedules(rows, err)
}

func schedules(rows *sql.Rows, err error) ([]schedule.Schedule, error) {
	if err != nil {
		return nil, fmt.Errorf("read schedules: %w", err)
	}
	defer rows.Close()
	var list []schedule.Schedule
	for rows.Next() {
		s, err := readSchedule(rows)
		if err != nil {
			return nil, fmt.Errorf("read schedules: %w", err)
		}
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read schedules: %w", err)
	}
	return list, nil
}

// Delete deletes a schedule.
func (ss Schedules) Delete(ctx context.Context, sid id.Schedule) error {
	done, err := ss.s.write.ExecContext(ctx, "DELETE FROM schedules WHERE id = $1", sid)
	if err != nil {
		return fmt.Errorf("delete schedule %s: %w", sid, err)
	}
	if n, err := done.RowsAffected(); err == nil && n == 0 {
		return noSchedule("store.Schedules.Delete", sid)
	}
	return nil
}

// Change implements schedule.Store. The row is locked before it is read.
func (ss Schedules) Change(ctx context.Context, sid id.Schedule, f func(s *schedule.Schedule) error) (schedule.Schedule, error) {
	var s schedule.Schedule
	err := transact(ctx, ss.s.write, func(tx *sql.Tx) error {
		var err error
		s, err = ss.one("store.Schedules.Change", tx.QueryRowContext(ctx, "SELECT "+scheduleColumns+" FROM schedules WHERE id = $1"+ss.lock(""), sid), sid)
		if err != nil {
			return err
		}
		if err := f(&s); err != nil {
			return err
		}
		doc, err := json.Marshal(s)
		if err == nil {
			_, err = tx.ExecContext(ctx, "UPDATE schedules SET session = $2, wake = $3, claim = $4, document = $5 WHERE id = $1",
				sid, s.Session, nanos(s.WakeAt), s.Claim, doc)
		}
		if err != nil {
			return fmt.Errorf("change schedule %s: %w", sid, err)
		}
		return nil
	})
	return s, err
}

// lock returns the suffix of a SELECT that locks its rows. SQLite has a single writer and
// needs none.
func (ss Schedules) lock(how string) string {
	if !ss.s.postgres {
		return ""
	}
	return " FOR UPDATE " + how
}

// Claim implements schedule.Store.
func (ss Schedules) Claim(ctx context.Context, now, until time.Time, claim string, n int) ([]schedule.Schedule, error) {
	rows, err := ss.s.write.QueryContext(ctx, `
		WITH due AS (SELECT id FROM schedules WHERE wake <= $1 ORDER BY wake, id LIMIT $4`+ss.lock("SKIP LOCKED")+`)
		UPDATE schedules SET wake = $2, claim = $3 WHERE id IN (SELECT id FROM due)
		RETURNING `+scheduleColumns, now.UnixNano(), until.UnixNano(), claim, n)
	list, err := schedules(rows, err)
	if err != nil {
		return nil, fmt.Errorf("claim due schedules: %w", err)
	}
	return list, nil
}

// Wake returns when the next schedule is due.
func (ss Schedules) Wake(ctx context.Context) (time.Time, error) {
	var wake int64
	err := ss.s.read.QueryRowContext(ctx, "SELECT wake FROM schedules WHERE wake IS NOT NULL ORDER BY wake, id LIMIT 1").Scan(&wake)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read when a schedule is due: %w", err)
	}
	return time.Unix(0, wake).UTC(), nil
}
