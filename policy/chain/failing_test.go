package chain_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/policy/chain"
)

// A faultyStore is a store that simulates lost responses.
type faultyStore struct {
	chain.Store

	mu     sync.Mutex
	before error // Append returns this error without effect
	after  error // Append commits and then returns this error
	blind  error // reads return this error
	hold   chan struct{}
}

var errLost = errors.New("the connection was lost")

func (w *faultyStore) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *faultyStore) Append(ctx context.Context, last int64, rows []chain.Row, cp chain.Checkpoint) error {
	w.mu.Lock()
	before, after, hold := w.before, w.after, w.hold
	w.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if before != nil {
		return before
	}
	return errors.Join(w.Store.Append(ctx, last, rows, cp), after)
}

func (w *faultyStore) Last(ctx context.Context) (chain.Row, error) {
	w.mu.Lock()
	blind := w.blind
	w.mu.Unlock()
	if blind != nil {
		return chain.Row{}, blind
	}
	return w.Store.Last(ctx)
}

func TestFailedCommitFailsOnlyItsAppends(t *testing.T) {
	w := &faultyStore{}
	h := openHarness(t, t.TempDir(), chain.Config{Store: w})
	h.append(t, anEntry(1))
	w.set(func() { w.before = errLost })
	if _, err := h.Append(t.Context(), anEntry(2)); !errors.Is(err, fault.Unavailable) || !errors.Is(err, errLost) {
		t.Errorf("Append = %v, want unavailable", err)
	}
	if _, err := h.Checkpoint(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("Checkpoint = %v, want the error", err)
	}
	w.set(func() { w.before = nil })
	if e := h.append(t, anEntry(3)); e.Seq != 2 {
		t.Errorf("next entry = %d, want 2", e.Seq)
	}
	h.checkVerifies(t, 2)
}

func TestCommitWithLostResponse(t *testing.T) {
	w := &faultyStore{}
	h := openHarness(t, t.TempDir(), chain.Config{Store: w, Every: 1})
	w.set(func() { w.after = errLost })
	e := h.append(t, anEntry(1))
	if cp := h.Latest(); e.Seq != 1 || cp.Size != 1 {
		t.Errorf("entry = %d, signed = %d; want 1 and 1", e.Seq, cp.Size)
	}
	h.append(t, anEntry(2))
	h.checkVerifies(t, 2)
}

func TestNoAppendWhileCommitIsUncertain(t *testing.T) {
	for _, added := range []bool{true, false} {
		w := &faultyStore{}
		h := openHarness(t, t.TempDir(), chain.Config{Store: w})
		h.append(t, anEntry(1))
		w.set(func() {
			w.blind = errLost
			if added {
				w.after = errLost
			} else {
				w.before = errLost
			}
		})
		for range 2 {
			if _, err := h.Append(t.Context(), anEntry(2)); !errors.Is(err, errLost) {
				t.Errorf("Append = %v, want the error", err)
			}
		}
		w.set(func() { w.blind, w.before, w.after = nil, nil, nil })
		want := int64(2)
		if added {
			want = 3 // the first one was added, and its caller got an uncertain result
		}
		if e := h.append(t, anEntry(3)); e.Seq != want {
			t.Errorf("added %v: next entry = %d, want %d", added, e.Seq, want)
		}
		h.checkVerifies(t, want)
	}
}

func TestUncertainCheckpointIsRepeated(t *testing.T) {
	for _, added := range []bool{true, false} {
		w := &faultyStore{}
		h := openHarness(t, t.TempDir(), chain.Config{Store: w})
		h.append(t, anEntry(1))
		w.set(func() {
			w.blind = errLost
			if added {
				w.after = errLost
			} else {
				w.before = errLost
			}
		})
		if _, err := h.Checkpoint(t.Context()); !errors.Is(err, errLost) {
			t.Errorf("Checkpoint = %v, want the error", err)
		}
		w.set(func() { w.blind, w.before, w.after = nil, nil, nil })
		if cp, err := h.Checkpoint(t.Context()); err != nil || cp.Size != 1 {
			t.Errorf("added %v: Checkpoint = %+v, %v; want 1", added, cp, err)
		}
		h.checkVerifies(t, 1)
	}
}

func TestAppendBlocksOnSlowDatabase(t *testing.T) {
	w := &faultyStore{hold: make(chan struct{})}
	h := openHarness(t, t.TempDir(), chain.Config{Store: w})
	const writers = 3000 // more than a batch and the queue together
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, writers)
	for n := range writers {
		go func() {
			_, err := h.Append(ctx, anEntry(n))
			results <- err
		}()
	}
	select {
	case err := <-results:
		t.Fatalf("Append = %v before the database responded", err)
	case <-time.After(100 * time.Millisecond):
	}
	cancel() // ends the callers that are still queued
	hold := w.hold
	w.set(func() { w.hold = nil })
	close(hold)
	var added, left int64
	for range writers {
		switch err := <-results; {
		case err == nil:
			added++
		case errors.Is(err, context.Canceled):
			left++
		default:
			t.Fatal(err)
		}
	}
	if added == 0 || left == 0 || h.Last() != added {
		t.Errorf("%d entries added, %d cancelled, but the chain has %d", added, left, h.Last())
	}
	h.checkVerifies(t, added)
}

func TestAppendAfterForeignChangeFails(t *testing.T) {
	w := &faultyStore{}
	h := openHarness(t, t.TempDir(), chain.Config{Store: w})
	h.append(t, anEntry(1))
	tamper(t, h, "DELETE FROM chain_entries WHERE seq = 1")
	for range 2 {
		if _, err := h.Append(t.Context(), anEntry(2)); !errors.Is(err, fault.Conflict) {
			t.Errorf("Append = %v, want conflict", err)
		}
	}
}
