package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// readiness reports whether the daemon can store records and data of jails. The endpoint
// is public, so one check serves all requests of a second.
type readiness struct {
	check func(context.Context) error

	busy chan struct{} // capacity 1; its holder owns the fields below
	at   time.Time
	err  error
}

func newReadiness(check func(context.Context) error) *readiness {
	return &readiness{check: check, busy: make(chan struct{}, 1)}
}

const (
	readyFresh = time.Second     // maximum age of a cached result
	readyTime  = 4 * time.Second // timeout of one check, below that of API clients
)

func (r *readiness) now(ctx context.Context) error {
	select {
	case r.busy <- struct{}{}:
		defer func() { <-r.busy }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if time.Since(r.at) >= readyFresh {
		// The result also serves other callers, so it must not depend on this caller's
		// context.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTime)
		defer cancel()
		r.err, r.at = r.check(ctx), time.Now()
	}
	return r.err
}

// checkReady returns nil if the audit log, the database and the data directory can be
// written.
func (d *Daemon) checkReady(ctx context.Context) error {
	if err := d.store.Writable(ctx); err != nil {
		return fmt.Errorf("the database cannot be written: %w", err)
	}
	if err := d.chain.Err(); err != nil {
		return fmt.Errorf("the audit log cannot be written: %w", err)
	}
	if err := writable(d.Config.Data); err != nil {
		return fmt.Errorf("the data directory cannot be written: %w", err)
	}
	return nil
}

// writable writes a small file to dir, and removes it.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".ready-")
	if err != nil {
		return fmt.Errorf("create a test file: %w", err)
	}
	_, err = f.Write(make([]byte, 64<<10))
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
