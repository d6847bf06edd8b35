package fleet_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/store/storetest"
)

// A faultyStore is a store whose calls fail if fail is set. If lose or loseJoin is set, calls of
// Renew or Join are executed and their results lost.
type faultyStore struct {
	fleet.Store
	fail, lose, loseJoin atomic.Bool
}

var errNoAnswer = errors.New("the database does not answer")

func (s *faultyStore) Renew(ctx context.Context, id string, epoch int64, nonce, next string, lease time.Duration, f fleet.Facts) (fleet.Renewal, error) {
	if s.fail.Load() {
		return fleet.Renewal{}, errNoAnswer
	}
	got, err := s.Store.Renew(ctx, id, epoch, nonce, next, lease, f)
	if s.lose.Load() {
		return fleet.Renewal{}, errNoAnswer
	}
	return got, err
}

func (s *faultyStore) Join(ctx context.Context, n fleet.Node, again bool, lease time.Duration) (fleet.Node, error) {
	if s.fail.Load() {
		return fleet.Node{}, errNoAnswer
	}
	n, err := s.Store.Join(ctx, n, again, lease)
	if s.loseJoin.Load() {
		return fleet.Node{}, errNoAnswer
	}
	return n, err
}

// A shiftedStore is a store whose clock differs from that of this host.
type shiftedStore struct {
	fleet.Store
	by atomic.Int64 // nanoseconds
}

func (s *shiftedStore) Join(ctx context.Context, n fleet.Node, again bool, lease time.Duration) (fleet.Node, error) {
	n, err := s.Store.Join(ctx, n, again, lease)
	n.Now = n.Now.Add(time.Duration(s.by.Load()))
	return n, err
}

func (s *shiftedStore) Renew(ctx context.Context, id string, epoch int64, nonce, next string, lease time.Duration, f fleet.Facts) (fleet.Renewal, error) {
	got, err := s.Store.Renew(ctx, id, epoch, nonce, next, lease, f)
	if !got.Now.IsZero() {
		got.Now = got.Now.Add(time.Duration(s.by.Load()))
	}
	return got, err
}

// inBubble runs test with a fake clock and an empty database.
func inBubble(t *testing.T, test func(t *testing.T, s fleet.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db, err := storetest.Open(t, "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		test(t, db.Nodes())
	})
}

// bubbleClock is the fake clock.
func bubbleClock() time.Duration { return time.Duration(time.Now().UnixNano()) }

func join(s fleet.Store, id, host string) (*fleet.Member, error) {
	return fleet.Join(context.Background(), fleet.Config{Store: s, ID: id, Host: host, Clock: bubbleClock})
}

// member joins, and leaves at the end of the test.
func member(t *testing.T, s fleet.Store, id, host string) *fleet.Member {
	t.Helper()
	m, err := join(s, id, host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func node(t *testing.T, s fleet.Store, id string) fleet.Node {
	t.Helper()
	list, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list {
		if n.ID == id {
			return n
		}
	}
	t.Fatalf("there is no node %s", id)
	return fleet.Node{}
}

func TestLeaseIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		a := member(t, s, "a", "1")
		member(t, s, "b", "2")
		term, epoch := a.Term()
		time.Sleep(time.Hour)
		if term.Err() != nil {
			t.Errorf("the term ended: %v", context.Cause(term))
		}
		if now, e := a.Term(); now != term || e != epoch {
			t.Error("there is another term, want the first")
		}
		if n := node(t, s, "a"); n.State != fleet.Up || n.Epoch != epoch {
			t.Errorf("node = %+v, want up with epoch %d", n, epoch)
		}
	})
}

// The term ends before another node can declare this one lost, however long its requests take.
func TestTermEndsBeforeLease(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		db := &faultyStore{Store: s}
		a := member(t, db, "a", "1")
		member(t, s, "b", "2")
		time.Sleep(time.Minute)
		term, epoch := a.Term()
		db.fail.Store(true)
		<-term.Done()
		n := node(t, s, "a")
		if rest := n.Until.Sub(n.Now); n.State != fleet.Up || rest < fleet.DefaultLease/3-time.Second {
			t.Errorf("at the end of the term the node is %s, and its lease ends in %v, want up and about 10s", n.State, rest)
		}
		if !errors.Is(context.Cause(term), fleet.ErrSuspended) {
			t.Errorf("cause = %v, want ErrSuspended", context.Cause(term))
		}
		if now, _ := a.Term(); now.Err() == nil {
			t.Error("there is a new term without a renewal")
		}
		db.fail.Store(false)
		time.Sleep(fleet.DefaultLease/6 + time.Second)
		now, e := a.Term()
		if now.Err() != nil || e != epoch {
			t.Errorf("after a renewal in time: term %v, epoch %d; want a new term with epoch %d", context.Cause(now), e, epoch)
		}
		if term.Err() == nil {
			t.Error("the earlier term continued")
		}
	})
}

func TestLostNodeHasNewEpoch(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		db := &faultyStore{Store: s}
		a := member(t, db, "a", "1")
		member(t, s, "b", "2")
		_, epoch := a.Term()
		db.fail.Store(true)
		time.Sleep(time.Minute)
		if n := node(t, s, "a"); n.State != fleet.Lost {
			t.Fatalf("after a minute the node is %s, want lost", n.State)
		}
		db.fail.Store(false)
		time.Sleep(fleet.DefaultLease/6 + time.Second)
		term, e := a.Term()
		if term.Err() != nil || e <= epoch {
			t.Errorf("term %v, epoch %d; want a term with an epoch above %d", context.Cause(term), e, epoch)
		}
	})
}

// A node that was declared lost joins again, and the answer is lost.
func TestJoinWithLostAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		db := &faultyStore{Store: s}
		a := member(t, db, "a", "1")
		member(t, s, "b", "2")
		expired := node(t, s, "a")
		if renewed, err := s.Renew(t.Context(), "a", expired.Epoch, expired.Nonce, expired.Nonce, -time.Second, fleet.Facts{}); err != nil || renewed.Now.IsZero() {
			t.Fatal(renewed, err)
		}
		if lost, err := s.DeclareLost(t.Context()); err != nil || len(lost) != 1 {
			t.Fatal(lost, err)
		}
		db.loseJoin.Store(true)
		time.Sleep(fleet.DefaultLease/6 + time.Second)
		if term, _ := a.Term(); term.Err() == nil {
			t.Error("there is a term without an answer")
		}
		db.loseJoin.Store(false)
		time.Sleep(fleet.DefaultLease/6 + time.Second)
		if term, e := a.Term(); term.Err() != nil || e <= expired.Epoch {
			t.Errorf("term %v, epoch %d; want a term with an epoch above %d", context.Cause(term), e, expired.Epoch)
		}
	})
}

// A renewal whose answer was lost is repeated with the same nonce.
func TestRenewalWithLostAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		db := &faultyStore{Store: s}
		a := member(t, db, "a", "1")
		_, epoch := a.Term()
		for range 5 {
			db.lose.Store(true)
			time.Sleep(fleet.DefaultLease / 2)
			db.lose.Store(false)
			time.Sleep(fleet.DefaultLease / 4)
		}
		if term, e := a.Term(); term.Err() != nil || e != epoch {
			t.Errorf("term %v, epoch %d; want a term with epoch %d", context.Cause(term), e, epoch)
		}
	})
}

func TestCopyOfDataDirectory(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		db := &faultyStore{Store: s}
		original := member(t, db, "a", "1")
		if _, err := join(s, "a", "2"); !errors.Is(err, fault.Conflict) {
			t.Fatalf("Join of a copy = %v, want a conflict", err)
		}
		term, epoch := original.Term()
		if term.Err() != nil {
			t.Errorf("the copy ended the term of the original: %v", context.Cause(term))
		}
		// Without a connection, the original loses the lease when it has expired.
		db.fail.Store(true)
		began := time.Now()
		taken := member(t, s, "a", "2")
		if took := time.Since(began); took < fleet.DefaultLease/2 || took > fleet.DefaultLease+2*time.Second {
			t.Errorf("the copy waited %v, want the rest of the lease", took)
		}
		if _, e := taken.Term(); e <= epoch {
			t.Errorf("epoch of the copy = %d, want more than %d", e, epoch)
		}
		db.fail.Store(false)
		time.Sleep(5 * time.Minute)
		if now, _ := original.Term(); now.Err() == nil {
			t.Error("the original and the copy have a term")
		}
		if now, _ := taken.Term(); now.Err() != nil {
			t.Errorf("the copy lost its term: %v", context.Cause(now))
		}
	})
}

// A copy of a running host, with its memory, has the host identity and the nonce of the original.
func TestCopyOfRunningHost(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		a, copied := member(t, s, "a", "1"), member(t, s, "a", "1")
		time.Sleep(time.Minute)
		first, _ := a.Term()
		second, _ := copied.Term()
		if (first.Err() == nil) == (second.Err() == nil) {
			t.Errorf("terms: %v and %v, want one of them", context.Cause(first), context.Cause(second))
		}
	})
}

// A host that was suspended has no term when it continues.
func TestSuspendedHost(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		var slept atomic.Int64
		clock := func() time.Duration { return bubbleClock() + time.Duration(slept.Load()) }
		a, err := fleet.Join(t.Context(), fleet.Config{Store: s, ID: "a", Host: "1", Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		term, _ := a.Term()
		slept.Store(int64(time.Hour))
		if now, _ := a.Term(); now != term || !errors.Is(context.Cause(term), fleet.ErrSuspended) {
			t.Errorf("the term after an hour without renewals: %v, want that it ended", context.Cause(term))
		}
	})
}

// The next boot of a host need not wait for the lease of the process that was stopped.
func TestStoppedNodeJoinsFromAnotherBoot(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		a, err := join(s, "a", "boot 1")
		if err != nil {
			t.Fatal(err)
		}
		_, epoch := a.Term()
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if n := node(t, s, "a"); n.State != fleet.Up || !n.Until.After(n.Now) {
			t.Errorf("node = %+v, want that its lease remains", n)
		}
		began := time.Now()
		again := member(t, s, "a", "boot 2")
		if took := time.Since(began); took != 0 {
			t.Errorf("Join waited %v", took)
		}
		if _, e := again.Term(); e <= epoch {
			t.Errorf("epoch = %d, want more than %d", e, epoch)
		}
	})
}

func TestJoinEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		db := &faultyStore{Store: s}
		member(t, db, "a", "1")
		db.fail.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := fleet.Join(ctx, fleet.Config{Store: s, ID: "a", Host: "2", Clock: bubbleClock})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Join = %v, want the end of its context", err)
		}
	})
}

func TestNowIsClockOfDatabase(t *testing.T) {
	inBubble(t, func(t *testing.T, s fleet.Store) {
		shifted := &shiftedStore{Store: s}
		m := member(t, shifted, "a", "1")
		for _, by := range []time.Duration{time.Hour, time.Hour, -time.Minute} {
			shifted.by.Store(int64(by))
			time.Sleep(fleet.DefaultLease / 2)
			synctest.Wait()
			if got := time.Until(m.Now()); got != by {
				t.Errorf("Now is %v after the clock of the host, want %v", got, by)
			}
		}
	})
}
