package store

import (
	"context"
	"fmt"
	"time"
)

// Signals are reasons for a daemon to read more of the database.
type Signals struct {
	Runs     bool // are due, or wait for a supervisor that the daemon can be
	Requests bool // between agents are open

	// Secrets and Capabilities change with the data that all daemons share.
	Secrets, Capabilities int64
}

// Signals reads the signals for the daemon of a node in one statement, because idle daemons do it each
// second.
func (s *Store) Signals(ctx context.Context, node string, now time.Time) (Signals, error) {
	var got Signals
	err := s.read.QueryRowContext(ctx, `SELECT
		EXISTS (SELECT 1 FROM runs WHERE due IS NOT NULL AND due <= $1)
			OR EXISTS (SELECT 1 FROM sessions WHERE waiting = 1 AND (holder = $2 OR holder = '' AND assignee IN ('', $2))),
		EXISTS (`+openRequests+`),
		(SELECT n FROM versions WHERE name = 'secrets'), (SELECT n FROM versions WHERE name = 'capabilities')`,
		now.UnixNano(), node).Scan(&got.Runs, &got.Requests, &got.Secrets, &got.Capabilities)
	if err != nil {
		return got, fmt.Errorf("look for work: %w", err)
	}
	return got, nil
}
