package store

import (
	"context"
	"fmt"
	"time"
)

// A Health describes a database that several daemons share.
type Health struct {
	Latency time.Duration // of a short statement
	Ahead   time.Duration // by which its clock is ahead of the host's; half of Latency is uncertain
	Lossy   string        // why it can lose a transaction that was committed, or ""
}

// Health measures the database. For SQLite, only the latency is known.
func (s *Store) Health(ctx context.Context) (Health, error) {
	var h Health
	var one int64
	if err := s.read.QueryRowContext(ctx, "SELECT 1").Scan(&one); err != nil { // connects if necessary
		return h, fmt.Errorf("measure the database: %w", err)
	}
	var clock int64
	began := time.Now()
	err := s.read.QueryRowContext(ctx, "SELECT "+s.clock()).Scan(&clock)
	h.Latency = time.Since(began)
	if err != nil {
		return h, fmt.Errorf("measure the database: %w", err)
	}
	if !s.postgres {
		return h, nil
	}
	h.Ahead = time.Unix(0, clock).Sub(began.Add(h.Latency / 2))
	var fsync, pages, commit string
	err = s.read.QueryRowContext(ctx, "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')").Scan(&fsync, &pages, &commit)
	if err != nil {
		return h, fmt.Errorf("read the settings of the database: %w", err)
	}
	// Without the role pg_monitor, the state of the replication is NULL.
	var standbys, synchronous, known int
	err = s.read.QueryRowContext(ctx, "SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')), count(sync_state) FROM pg_stat_replication").Scan(&standbys, &synchronous, &known)
	if err != nil {
		return h, fmt.Errorf("read the replication of the database: %w", err)
	}
	switch {
	case fsync == "off":
		h.Lossy = "fsync is off: a crash of its host can damage it"
	case pages == "off":
		h.Lossy = "full_page_writes is off: a crash of its host can damage it"
	case commit == "off":
		h.Lossy = "synchronous_commit is off: a crash can undo transactions"
	case known > 0 && (synchronous == 0 || commit == "local"):
		h.Lossy = fmt.Sprintf("none of its %d standby servers is synchronous: a failover can undo transactions", standbys)
	}
	return h, nil
}
