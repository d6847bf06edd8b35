package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"glasshouse/api/replay"
	"glasshouse/fault"
	"glasshouse/policy/access"
)

const (
	keyHeader    = "Idempotency-Key"
	replayHeader = "Idempotent-Replay"
	maxKey       = 255
)

// flights are the active requests with an idempotency key. A second request with the same key
// waits for the first instead of failing.
type flights struct {
	mu sync.Mutex
	// +checklocks:mu
	m map[replay.Key]chan struct{} // closed when the request is finished
}

// enter waits until no request with key k is active, and then registers the caller's request
// until leave is called.
func (f *flights) enter(ctx context.Context, k replay.Key) (leave func(), err error) {
	for {
		f.mu.Lock()
		other, busy := f.m[k]
		if !busy {
			mine := make(chan struct{})
			if f.m == nil {
				f.m = map[replay.Key]chan struct{}{}
			}
			f.m[k] = mine
			f.mu.Unlock()
			return func() {
				f.mu.Lock()
				delete(f.m, k)
				f.mu.Unlock()
				close(mine)
			}, nil
		}
		f.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// A replayer executes requests with an idempotency key once.
type replayer struct {
	active flights
	store  replay.Store
	log    *slog.Logger

	created func(ctx context.Context) // called before the response about a new object; nil: not
}

// answer writes the result of do. A POST with an Idempotency-Key is executed once: a repeated
// request receives the first response. Only successful responses are stored, so that a failed
// request can be retried with its key.
func (rp *replayer) answer(w http.ResponseWriter, r *http.Request, body []byte, do func() (replay.Response, error)) error {
	key := r.Header.Get(keyHeader)
	if key == "" || r.Method != http.MethodPost {
		a, err := do()
		if err == nil {
			writeAnswer(w, a)
		}
		return err
	}
	k, err := replayKey(r, key)
	if err != nil {
		return err
	}
	leave, err := rp.active.enter(r.Context(), k)
	if err != nil {
		return err
	}
	defer leave()

	sum := sha256.Sum256(body)
	kept, err := rp.store.Begin(r.Context(), k, hex.EncodeToString(sum[:]))
	if err != nil {
		return err
	}
	if kept != nil {
		w.Header().Set(replayHeader, "true")
		writeAnswer(w, *kept)
		return nil
	}
	a, err := rp.land(r.Context(), k, do)
	if err != nil {
		return err
	}
	writeAnswer(w, a)
	return nil
}

// land executes a claimed request and settles the claim, even if the client disconnects or do
// panics.
func (rp *replayer) land(ctx context.Context, k replay.Key, do func() (replay.Response, error)) (replay.Response, error) {
	// Storing the response has its own timeout, because do may take minutes: the first jail of
	// a host waits for its root filesystem.
	settle := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	}
	done := false
	defer func() {
		if done {
			return
		}
		ctx, cancel := settle()
		defer cancel()
		if err := rp.store.Abandon(ctx, k); err != nil {
			rp.log.Warn("idempotency key not released", "err", err)
		}
	}()
	a, err := do()
	if err != nil {
		return a, err
	}
	done = true
	ctx, cancel := settle()
	defer cancel()
	if err := rp.store.Finish(ctx, k, a); err != nil {
		// The object was created. An error would make the client create a second one.
		rp.log.Error("cannot store the response of an idempotency key", "err", err)
	}
	return a, nil
}

func replayKey(r *http.Request, key string) (replay.Key, error) {
	if len(key) > maxKey || strings.ContainsFunc(key, func(c rune) bool { return c < 0x21 || c > 0x7e }) {
		return replay.Key{}, fault.Fieldf("api.replayKey", keyHeader, "must be at most %d printable ASCII characters without blanks", maxKey)
	}
	who := access.CallerOf(r.Context()).ID()
	return replay.Key{Scope: who + " " + r.Method + " " + r.URL.Path, Key: key}, nil
}
