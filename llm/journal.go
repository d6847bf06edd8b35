package llm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"

	"glasshouse/fault"
)

// A Journal keeps what a run was answered, so that a run that goes on after a crash is
// answered the same again. What it has been told is durable when it returns.
//
// A request that had begun and not ended when the daemon died is made again. Nothing
// is done twice by that: what a model says changes nothing in the world before the
// agent acts on it, and the agent has not seen it, for End comes before the end of
// the answer. It costs its tokens twice, no more.
type Journal interface {
	// Begin says that a request with this key and digest is to be made. If one was
	// answered that answer is returned; if it was another request, by its digest,
	// the error is fault.Mismatch.
	Begin(ctx context.Context, key, digest string) (*Recorded, error)

	// End keeps the answer. It comes at most once for each Begin: not if there is
	// no whole answer.
	End(ctx context.Context, key, digest string, r Recorded) error
}

// A Recorded is an answer as it was given, byte for byte. It is a whole one: errors
// are not kept, and what broke off is not either.
type Recorded struct {
	Status      int    `json:"status"`
	ContentType string `json:"content_type"`
	Body        []byte `json:"body"`
}

// maxKept bounds an answer that is kept. Longer ones are given, and not kept.
const maxKept = 16 << 20

// replayed marks an answer that was given before.
const replayed = "Idempotent-Replay"

func (r *Recorded) answer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", r.ContentType)
	w.Header().Set(replayed, "true")
	w.WriteHeader(r.Status)
	w.Write(r.Body)
}

// flights are the requests with keys that are under way, so that the same one does
// not go out twice.
type flights struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[string]chan struct{} // closed when it has ended
}

// board waits until nobody else is under way with this key.
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

// recall asks the journal, if the request has a key and the caller one.
func (x *exchange) recall(ctx context.Context, key string) (was *Recorded, leave func(), err error) {
	leave = func() {}
	if key == "" || x.caller.Journal == nil {
		return nil, leave, nil
	}
	if len(key) > maxKey {
		return nil, leave, fault.Fieldf("llm", "Idempotency-Key", "it has more than %d bytes", maxKey)
	}
	if leave, err = x.g.flights.board(ctx, x.caller.who()+"\x00"+key); err != nil {
		return nil, func() {}, err
	}
	sum := sha256.New()
	sum.Write([]byte(x.url + "\x00"))
	sum.Write(x.in)
	x.key, x.digest = key, hex.EncodeToString(sum.Sum(nil))
	was, err = x.caller.Journal.Begin(ctx, key, x.digest)
	return was, leave, err
}
