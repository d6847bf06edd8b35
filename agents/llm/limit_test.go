package llm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/fault"
)

func TestRequestsPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRateLimiter(Limit{Requests: 60})
		began := time.Now()
		for range 90 {
			leave, err := s.enter(t.Context(), "it", 0, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			leave()
		}
		if took := time.Since(began); took < 29*time.Second || took > 31*time.Second {
			t.Errorf("90 requests with a limit of 60 per minute took %v, want 30s", took)
		}
	})
}

func TestLongWaitIsRefusedWithRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRateLimiter(Limit{Tokens: 1000})
		if _, err := s.enter(t.Context(), "it", 1000, 0); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err := s.enter(t.Context(), "it", 500, 10*time.Second)
		wait, told := waitOf(err)
		if !errors.Is(err, fault.Exhausted) || !told || wait < 30*time.Second || wait > 32*time.Second || time.Since(began) != 0 {
			t.Errorf("got %v after %v, want an immediate error with a retry after 30s", err, time.Since(began))
		}
		if p := problemOf(err); p.status != http.StatusTooManyRequests || p.wait != wait {
			t.Errorf("the problem is %+v", p)
		}
		if _, err := s.enter(t.Context(), "it", 500, 31*time.Second); err != nil {
			t.Errorf("enter with more patience: %v", err)
		}
	})
}

func TestRequestLargerThanBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRateLimiter(Limit{Tokens: 1000})
		for range 2 {
			if _, err := s.enter(t.Context(), "it", 5000, 10*time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestUnusedTokensAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRateLimiter(Limit{Tokens: 1000})
		for range 50 {
			leave, err := s.enter(t.Context(), "it", 1000, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			s.correct(1000, 10)
			leave()
			time.Sleep(time.Second)
		}
	})
}

func TestConcurrencyLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRateLimiter(Limit{Concurrent: 3})
		var mu sync.Mutex
		inside, most := 0, 0
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				leave, err := s.enter(t.Context(), "it", 0, time.Hour)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				inside--
				mu.Unlock()
				leave()
				leave() // calling it twice has no effect
			})
		}
		wg.Wait()
		if most != 3 {
			t.Errorf("%d concurrent requests, want 3", most)
		}
		for range 3 {
			if _, err := s.enter(t.Context(), "it", 0, 0); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if _, err := s.enter(t.Context(), "it", 0, time.Minute); !errors.Is(err, fault.Exhausted) || time.Since(began) != time.Minute {
			t.Errorf("the fourth request got %v after %v, want an error after a minute", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.enter(ctx, "it", 0, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a cancelled request gets %v", err)
		}
	})
}

func TestShareOfLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRateLimiter(Limit{Requests: 60, Concurrent: 5})
		s.setShare(0.5)
		began := time.Now()
		for range 45 {
			leave, err := s.enter(t.Context(), "it", 0, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			leave()
		}
		if took := time.Since(began); took < 29*time.Second || took > 31*time.Second {
			t.Errorf("45 requests with half of 60 per minute took %v, want 30s", took)
		}
		time.Sleep(time.Minute)
		enter := func(patience time.Duration) error {
			_, err := s.enter(t.Context(), "it", 0, patience)
			return err
		}
		if err := errors.Join(enter(0), enter(0)); err != nil {
			t.Errorf("two of five requests with half of the limit: %v", err)
		}
		if err := enter(0); !errors.Is(err, fault.Exhausted) {
			t.Errorf("a third one: %v, want Exhausted", err)
		}
		waited := make(chan error)
		go func() { waited <- enter(time.Minute) }()
		synctest.Wait()
		s.setShare(1)
		if err := <-waited; err != nil {
			t.Errorf("a request that waits when the share grows: %v", err)
		}
		one := newRateLimiter(Limit{Concurrent: 5})
		one.setShare(0.01)
		_, err := one.enter(t.Context(), "it", 0, 0)
		_, second := one.enter(t.Context(), "it", 0, 0)
		if err != nil || !errors.Is(second, fault.Exhausted) {
			t.Errorf("two requests at once with a hundredth of 5: %v and %v, want only the second to be Exhausted", err, second)
		}
	})
}

func TestIdleCallersAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := callers{limit: Limit{Requests: 2}}
		busy, err := c.of("busy").enter(t.Context(), "it", 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 * manyCallers {
			leave, err := c.of(fmt.Sprint(i)).enter(t.Context(), "it", 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			leave()
			time.Sleep(time.Second)
		}
		if n := len(c.all); n > manyCallers+1 {
			t.Errorf("%d callers are stored", n)
		}
		if c.all["busy"] == nil {
			t.Error("an active caller was removed")
		}
		busy()
	})
}

func TestRetryAfterFormats(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, value string
		want        time.Duration
		ok          bool
	}{
		{"Retry-After", "7", 7 * time.Second, true},
		{"Retry-After", "0.5", 500 * time.Millisecond, true},
		{"Retry-After", "Sun, 01 Mar 2026 12:01:00 GMT", time.Minute, true},
		{"Retry-After", "Sun, 01 Mar 2026 11:00:00 GMT", 0, true},
		{"Retry-After-Ms", "250", 250 * time.Millisecond, true},
		{"Retry-After", "soon", 0, false},
		{"Retry-After", "-1", 0, false},
		{"Retry-After", "1e300", 0, false},
		{"Retry-After", "NaN", 0, false},
	} {
		if got, ok := retryAfter(http.Header{c.name: {c.value}}, now); got != c.want || ok != c.ok {
			t.Errorf("%s: %s is %v, %v; want %v, %v", c.name, c.value, got, ok, c.want, c.ok)
		}
	}
}
