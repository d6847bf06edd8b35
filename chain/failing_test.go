package chain_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"glasshouse/chain"
	"glasshouse/fault"
)

// A wounded is a real store whose answers are lost, as a network loses them.
type wounded struct {
	chain.Store

	mu     sync.Mutex
	before error // Append answers this and does nothing
	after  error // Append does what it is asked, and answers this
	blind  error // nothing can be read
	hold   chan struct{}
}

var errLost = errors.New("the connection was lost")

func (w *wounded) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *wounded) Append(ctx context.Context, last int64, rows []chain.Row, cp chain.Checkpoint) error {
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

func (w *wounded) Last(ctx context.Context) (chain.Row, error) {
	w.mu.Lock()
	blind := w.blind
	w.mu.Unlock()
	if blind != nil {
		return chain.Row{}, blind
	}
	return w.Store.Last(ctx)
}

func TestACommitThatFailsFailsItsAppendsAndNoOthers(t *testing.T) {
	w := &wounded{}
	h := openHouse(t, t.TempDir(), chain.Config{Store: w})
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
		t.Errorf("the next entry is %d, want 2", e.Seq)
	}
	h.right(t, 2)
}

func TestACommitWhoseAnswerIsLostIsNotLost(t *testing.T) {
	w := &wounded{}
	h := openHouse(t, t.TempDir(), chain.Config{Store: w, Every: 1})
	w.set(func() { w.after = errLost })
	e := h.append(t, anEntry(1))
	if cp := h.Latest(); e.Seq != 1 || cp.Size != 1 {
		t.Errorf("it is entry %d, and %d are signed; want 1 and 1", e.Seq, cp.Size)
	}
	h.append(t, anEntry(2))
	h.right(t, 2)
}

func TestWhileItIsNotKnownWhetherItWasAddedNothingIs(t *testing.T) {
	for _, added := range []bool{true, false} {
		w := &wounded{}
		h := openHouse(t, t.TempDir(), chain.Config{Store: w})
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
			want = 3 // the first of the two is there, and its sender was told that this is not known
		}
		if e := h.append(t, anEntry(3)); e.Seq != want {
			t.Errorf("added %v: the next entry is %d, want %d", added, e.Seq, want)
		}
		h.right(t, want)
	}
}

func TestACheckpointWhoseFateIsNotKnownIsMadeAgain(t *testing.T) {
	for _, added := range []bool{true, false} {
		w := &wounded{}
		h := openHouse(t, t.TempDir(), chain.Config{Store: w})
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
		h.right(t, 1)
	}
}

func TestWhoAppendsWaitsWhileTheDatabaseDoesNotAnswer(t *testing.T) {
	w := &wounded{hold: make(chan struct{})}
	h := openHouse(t, t.TempDir(), chain.Config{Store: w})
	const writers = 3000 // more than a batch and the queue hold
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
		t.Fatalf("Append returned %v, and the database had said nothing", err)
	case <-time.After(100 * time.Millisecond):
	}
	cancel() // who is not being added leaves
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
		t.Errorf("%d were added, %d left, and there are %d entries", added, left, h.Last())
	}
	h.right(t, added)
}

func TestAChainThatSomebodyElseChangedIsNotContinued(t *testing.T) {
	w := &wounded{}
	h := openHouse(t, t.TempDir(), chain.Config{Store: w})
	h.append(t, anEntry(1))
	tamper(t, h, "DELETE FROM chain_entries WHERE seq = 1")
	for range 2 {
		if _, err := h.Append(t.Context(), anEntry(2)); !errors.Is(err, fault.Conflict) {
			t.Errorf("Append = %v, want conflict", err)
		}
	}
}
