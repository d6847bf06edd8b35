package llm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"

	"glasshouse/fault"
)

// A Journal stores the answers of a run, so that a run that resumes after a crash gets the
// same answers. Methods return after their data is durable.
//
// A request that was in flight when the daemon died is sent again. This has no side effects
// besides the cost of its tokens: a model's answer has no effect before the agent acts on it,
// and the agent has not seen the end of the answer, because End is called before it is sent.
type Journal interface {
	// Begin starts a request with this key and digest. If the same request was answered, Begin
	// returns that answer; if the key belongs to a request with another digest, the error is
	// fault.Mismatch.
	Begin(ctx context.Context, key, digest string) (*Recorded, error)

	// End stores the answer. It is called at most once for each Begin, and not if the answer
	// is incomplete.
	End(ctx context.Context, key, digest string, r Recorded) error

	// Abandon is called when a request has ended without End, after its Begin returned no answer.
	Abandon(ctx context.Context, key string)
}

// A Recorded is a stored answer, byte for byte. Errors and incomplete answers are not stored.
type Recorded struct {
	Status      int    `json:"status"`
	ContentType string `json:"content_type"`
	Body        []byte `json:"body"`
}

// maxKept is the maximum size of a stored answer. Longer answers are passed on without being
// stored.
const maxKept = 16 << 20

// replayed is the response header of an answer from the journal.
const replayed = "Idempotent-Replay"

func (r *Recorded) answer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", r.ContentType)
	w.Header().Set(replayed, "true")
	w.WriteHeader(r.Status)
	w.Write(r.Body)
}

// flights tracks the keys of requests in flight, so that the same request is not sent twice
// concurrently.
type flights struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[string]chan struct{} // closed when the request has ended
}

// board waits until no other request with this key is in flight.
func (f *flights) board(ctx context.Context, key string) (leave func(), err error) {
	for {
		f.mu.Lock()
		other, taken := f.all[key]
		if !taken {
			if f.all == nil {
				f.all = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			f.all[key] = mine
			f.mu.Unlock()
			return func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				delete(f.all, key)
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

// recall looks up the answer in the journal, if the request has a key and the caller a
// journal.
func (x *exchange) recall(ctx context.Context, key string) (was *Recorded, leave func(), err error) {
	leave = func() {}
	if key == "" || x.caller.Journal == nil {
		return nil, leave, nil
	}
	if len(key) > maxKey {
		return nil, leave, fault.Fieldf("llm.recall", "Idempotency-Key", "exceeds %d bytes", maxKey)
	}
	if leave, err = x.g.flights.board(ctx, x.caller.who()+"\x00"+key); err != nil {
		return nil, func() {}, err
	}
	sum := sha256.New()
	sum.Write([]byte(x.url + "\x00"))
	sum.Write(x.in)
	x.key, x.digest = key, hex.EncodeToString(sum.Sum(nil))
	was, err = x.caller.Journal.Begin(ctx, key, x.digest)
	if was != nil || err != nil {
		return was, leave, err
	}
	land := leave
	return nil, func() {
		if !x.stored {
			x.caller.Journal.Abandon(context.WithoutCancel(ctx), key)
		}
		land()
	}, nil
}
