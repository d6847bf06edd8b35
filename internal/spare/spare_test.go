package spare_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/internal/spare"
)

// things counts the created and dropped values.
type things struct {
	spare.Pool[int]
	mu            sync.Mutex // Make is called by the test and the pool concurrently
	made, dropped int
	err           error
}

func newThings(keep int) *things {
	t := &things{}
	t.Keep = keep
	t.Make = func() (int, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.err != nil {
			return 0, t.err
		}
		t.made++
		return t.made, nil
	}
	t.Drop = func(int) { t.dropped++ }
	return t
}

func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestTakeUsesPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newThings(2)
		if p.made != 0 {
			t.Errorf("%d values created before the first Take, want 0", p.made)
		}
		first, err := p.Take()
		if err != nil || first != 1 {
			t.Fatalf("Take = %d, %v", first, err)
		}
		settle()
		if p.made != 3 {
			t.Errorf("%d values created, want the one that was taken and two spares", p.made)
		}
		for range 3 { // one more than the pool has
			if _, err := p.Take(); err != nil {
				t.Fatal(err)
			}
		}
		if p.made != 4 {
			t.Errorf("%d values created for four concurrent Takes", p.made)
		}
		settle()
		p.Close()
		p.Close()
		if p.made != 6 || p.dropped != 2 {
			t.Errorf("%d values created and %d dropped, want 6 and 2", p.made, p.dropped)
		}
		if _, err := p.Take(); err != nil || p.made != 7 {
			t.Errorf("Take from a closed pool: %v", err)
		}
	})
}

func TestCloseBeforeRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newThings(2)
		if _, err := p.Take(); err != nil {
			t.Fatal(err)
		}
		p.Close()
		settle()
		if p.made != 1 || p.dropped != 0 {
			t.Errorf("%d values created, %d dropped", p.made, p.dropped)
		}
	})
}

func TestTakeReturnsMakeError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newThings(2)
		p.err = errors.New("none")
		if _, err := p.Take(); !errors.Is(err, p.err) {
			t.Errorf("Take: %v", err)
		}
		settle()
		p.err = nil
		if _, err := p.Take(); err != nil {
			t.Errorf("Take after the error: %v", err)
		}
		settle()
		p.Close()
		if p.made != 3 || p.dropped != 2 {
			t.Errorf("%d values created, %d dropped", p.made, p.dropped)
		}
	})
}
