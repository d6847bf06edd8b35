// Package replay is the record of requests that carried an Idempotency-Key, and
// of what they were answered.
package replay

import (
	"context"
	"time"
)

// KeepFor is how long an answer is kept.
const KeepFor = 24 * time.Hour

// A Key names one request: who sent what to where, and the key they gave it.
type Key struct {
	Scope string // caller, method and path: one caller's keys mean nothing to another
	Key   string // the Idempotency-Key header
}

// An Answer is what a request was answered.
type Answer struct {
	Status      int
	ContentType string
	Location    string
	Body        []byte
}

// A Store keeps answers past the daemon's life. It is safe for concurrent use.
type Store interface {
	// Begin claims the key for a request whose body has the given digest. It
	// returns nil if the caller shall go on, and the answer if there is one.
	// It returns fault.Mismatch if the key came with another body before, and
	// fault.Conflict if the first request is still going on in this process;
	// one that an earlier process left unfinished is taken over.
	Begin(ctx context.Context, k Key, body string) (*Answer, error)

	// Finish keeps the answer to a claimed key.
	Finish(ctx context.Context, k Key, a Answer) error

	// Abandon gives a claimed key up, so that the request may be sent again.
	Abandon(ctx context.Context, k Key) error
}
