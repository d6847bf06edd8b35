package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"glasshouse/api/replay"
	"glasshouse/fault"
)

// Replays stores the responses to requests with an Idempotency-Key; it implements
// replay.Store.
type Replays struct{ s *Store }

// Replays returns the database's responses.
func (s *Store) Replays() Replays { return Replays{s} }

// Begin implements replay.Store.
func (rs Replays) Begin(ctx context.Context, k replay.Key, body string) (*replay.Response, error) {
	var answer *replay.Response
	err := rs.s.update(ctx, "replays", func(tx *sql.Tx) error {
		now := time.Now()
		if _, err := tx.ExecContext(ctx, "DELETE FROM replays WHERE started < $1", now.Add(-replay.Retention).UnixNano()); err != nil {
			return fmt.Errorf("delete expired keys: %w", err)
		}
		var err error
		answer, err = rs.claim(ctx, tx, k, body, now)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim idempotency key: %w", err)
	}
	return answer, nil
}

func (rs Replays) claim(ctx context.Context, tx *sql.Tx, k replay.Key, body string, now time.Time) (*replay.Response, error) {
	const op = "store.Begin"
	var a replay.Response
	var had, process string
	var status sql.NullInt64
	var contentType, location, answer sql.NullString
	err := tx.QueryRowContext(ctx, `SELECT body, process, status, content_type, location, answer
		FROM replays WHERE scope = $1 AND key = $2`, text(k.Scope), text(k.Key)).
		Scan(&had, &process, &status, &contentType, &location, &answer)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		_, err := tx.ExecContext(ctx, "INSERT INTO replays (scope, key, body, process, started) VALUES ($1, $2, $3, $4, $5)",
			text(k.Scope), text(k.Key), body, rs.s.process, now.UnixNano())
		if err != nil {
			return nil, fmt.Errorf("store the key: %w", err)
		}
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the key: %w", err)
	case had != body:
		return nil, &fault.Error{Op: op, Kind: fault.Mismatch, Field: "Idempotency-Key",
			Err: errors.New("this key was used for another request"), Remedy: "use a new key for a new request"}
	case status.Valid:
		a = replay.Response{Status: int(status.Int64), ContentType: contentType.String, Location: location.String, Body: []byte(answer.String)}
		return &a, nil
	case process == rs.s.process:
		return nil, &fault.Error{Op: op, Kind: fault.Conflict, Field: "Idempotency-Key",
			Err: errors.New("the first request with this key is in progress"), Remedy: "retry after it has finished"}
	}
	_, err = tx.ExecContext(ctx, "UPDATE replays SET process = $3, started = $4 WHERE scope = $1 AND key = $2",
		text(k.Scope), text(k.Key), rs.s.process, now.UnixNano())
	if err != nil {
		return nil, fmt.Errorf("take over the key: %w", err)
	}
	return nil, nil
}

// Finish implements replay.Store.
func (rs Replays) Finish(ctx context.Context, k replay.Key, a replay.Response) error {
	_, err := rs.s.write.ExecContext(ctx, `UPDATE replays SET status = $3, content_type = $4, location = $5, answer = $6
		WHERE scope = $1 AND key = $2 AND process = $7`,
		text(k.Scope), text(k.Key), a.Status, a.ContentType, a.Location, text(string(a.Body)), rs.s.process)
	if err != nil {
		return fmt.Errorf("store response: %w", err)
	}
	return nil
}

// Abandon implements replay.Store.
func (rs Replays) Abandon(ctx context.Context, k replay.Key) error {
	_, err := rs.s.write.ExecContext(ctx, "DELETE FROM replays WHERE scope = $1 AND key = $2 AND status IS NULL AND process = $3",
		text(k.Scope), text(k.Key), rs.s.process)
	if err != nil {
		return fmt.Errorf("release idempotency key: %w", err)
	}
	return nil
}
