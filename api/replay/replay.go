// Package replay stores requests with an Idempotency-Key and their responses.
package replay

import (
	"context"
	"time"
)

// Retention is the retention time of a response.
const Retention = 24 * time.Hour

// A Key identifies a request by caller, target and idempotency key.
type Key struct {
	Scope string // caller, method and path; keys of different callers are independent
	Key   string // the Idempotency-Key header
}

// An Response is the response to a request.
type Response struct {
	Status      int
	ContentType string
	Location    string
	Body        []byte
}

// A Store persists responses across restarts of the daemon. It is safe for concurrent use.
type Store interface {
	// Begin claims the key for a request whose body has the given digest. It returns nil if
	// the caller must execute the request, or the stored response. It returns fault.Mismatch
	// if the key was used with another body, and fault.Conflict if the first request is still
	// active in this process. A request that a previous process left unfinished is claimed
	// again.
	Begin(ctx context.Context, k Key, body string) (*Response, error)

	// Finish stores the response for a claimed key.
	Finish(ctx context.Context, k Key, a Response) error

	// Abandon releases a claimed key, so that the request can be repeated.
	Abandon(ctx context.Context, k Key) error
}
