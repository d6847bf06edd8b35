package daemon

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy/access"
	"glasshouse/store/postgrestest"
	"glasshouse/store/storetest"
)

// A quotaNode is a daemon whose jails demand what its fields say.
type quotaNode struct {
	*quotas
	mu  sync.Mutex
	own map[id.Token]jail.Demand
}

func (n *quotaNode) Demand(t id.Token) jail.Demand { return n.Demands()[t] }

func (n *quotaNode) Demands() map[id.Token]jail.Demand {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.own)
}

func (n *quotaNode) set(t id.Token, jails int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if jails == 0 {
		delete(n.own, t)
	} else {
		n.own[t] = jail.Demand{Jails: jails}
	}
}

// create creates a jail within the quota, as a jail.Manager does.
func (n *quotaNode) create(t id.Token) error {
	return n.Share(context.Background(), t, func(quota, others jail.Demand) (jail.Demand, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		next := n.own[t].Plus(jail.Demand{Jails: 1})
		if quota.Jails > 0 && next.Jails+others.Jails > quota.Jails {
			return next, fault.Exhausted
		}
		n.own[t] = next
		return next, nil
	})
}

// newQuotaNode returns a daemon of the fleet with the database at where.
func newQuotaNode(t *testing.T, where, name string) (*quotaNode, *access.Tokens) {
	t.Helper()
	s, err := storetest.Open(t, where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if _, err := s.Nodes().Join(t.Context(), fleet.Node{ID: name, Host: name, Nonce: "1"}, false, time.Hour); err != nil {
		t.Fatal(err)
	}
	n := &quotaNode{own: map[id.Token]jail.Demand{}}
	tokens := &access.Tokens{Store: s.Tokens()}
	n.quotas = &quotas{tokens: tokens, jails: n, shared: s.Demands(), node: name, log: slog.New(slog.DiscardHandler)}
	return n, tokens
}

func TestNodesShareQuotaInSQLite(t *testing.T) {
	nodesShareQuota(t, filepath.Join(t.TempDir(), "g.db"))
}

func TestNodesShareQuotaInPostgreSQL(t *testing.T) {
	nodesShareQuota(t, postgrestest.Start(t).URL(t))
}

// Two daemons of a fleet never exceed a quota together.
func nodesShareQuota(t *testing.T, where string) {
	a, tokens := newQuotaNode(t, where, "a")
	b, _ := newQuotaNode(t, where, "b")
	token, _, err := tokens.Create(t.Context(), "ci", access.Operator, nil, access.Quota{Jails: 7})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, n := range []*quotaNode{a, b} {
		for range 20 {
			wg.Go(func() {
				if err := n.create(token.ID); err != nil && !errors.Is(err, fault.Exhausted) {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			for range 10 {
				n.sync(t.Context())
			}
		})
	}
	wg.Wait()
	if n := a.Demand(token.ID).Jails + b.Demand(token.ID).Jails; n != 7 {
		t.Errorf("jails = %d, want 7", n)
	}
	wantUsed := func(want int) {
		t.Helper()
		used, err := a.used(t.Context())
		if err != nil || used[token.ID].Jails != want {
			t.Errorf("used = %+v, %v, want %d jails", used, err, want)
		}
	}
	wantUsed(7)

	// The jails of a are deleted, which b notices with the next sync.
	a.set(token.ID, 0)
	b.set(token.ID, 6)
	a.sync(t.Context())
	b.sync(t.Context())
	if err := b.create(token.ID); err != nil {
		t.Errorf("creation after jails of the other node were deleted = %v", err)
	}
	if err := a.create(token.ID); !errors.Is(err, fault.Exhausted) {
		t.Errorf("creation over the quota = %v, want exhausted", err)
	}
	wantUsed(7)

	// A token without a quota asks no database, and gets one later.
	free, _, err := tokens.Create(t.Context(), "free", access.Operator, nil, access.Quota{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := a.create(free.ID); err != nil {
			t.Fatal(err)
		}
	}
	a.sync(t.Context())
	most := 4
	if _, err := tokens.SetQuota(t.Context(), free.ID, access.QuotaChange{Jails: &most}); err != nil {
		t.Fatal(err)
	}
	if err := b.create(free.ID); err != nil {
		t.Errorf("creation within the quota = %v", err)
	}
	if err := b.create(free.ID); !errors.Is(err, fault.Exhausted) {
		t.Errorf("creation over the quota = %v, want exhausted", err)
	}
	if err := a.create("t-revoked"); err != nil {
		t.Errorf("creation with a revoked token = %v, want nil", err)
	}
}

// Without the shared database nothing is created with a limited token, and the demand is stored when
// the database answers.
func TestQuotaWithoutDatabaseIsUnavailable(t *testing.T) {
	a, tokens := newQuotaNode(t, filepath.Join(t.TempDir(), "g.db"), "a")
	token, _, err := tokens.Create(t.Context(), "ci", access.Operator, nil, access.Quota{Jails: 9})
	if err != nil {
		t.Fatal(err)
	}
	a.sync(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, when := range []string{"during", "before"} {
		err := a.Share(ctx, token.ID, func(_, _ jail.Demand) (jail.Demand, error) {
			cancel() // the transaction cannot be committed
			return jail.Demand{Jails: 1}, nil
		})
		if !errors.Is(err, fault.Unavailable) {
			t.Errorf("creation, the database ends %s it = %v, want unavailable", when, err)
		}
	}
	a.set(token.ID, 1)
	a.sync(t.Context())
	if stored, err := a.shared.OfNode(t.Context(), "a"); err != nil || stored[token.ID].Jails != 1 {
		t.Errorf("stored demand = %+v, %v, want one jail", stored, err)
	}
}

// A daemon that was killed after it deleted jails removes their demand when it starts.
func TestRestartedNodeCorrectsDemand(t *testing.T) {
	where := filepath.Join(t.TempDir(), "g.db")
	a, tokens := newQuotaNode(t, where, "a")
	token, _, err := tokens.Create(t.Context(), "ci", access.Operator, nil, access.Quota{Jails: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.create(token.ID), a.create(token.ID)); err != nil {
		t.Fatal(err)
	}
	a, _ = newQuotaNode(t, where, "a")
	b, _ := newQuotaNode(t, where, "b")
	if err := b.create(token.ID); !errors.Is(err, fault.Exhausted) {
		t.Errorf("creation before the start = %v, want exhausted", err)
	}
	a.sync(t.Context())
	if err := b.create(token.ID); err != nil {
		t.Errorf("creation after the start = %v, want nil", err)
	}
}

// A daemon that is not in a fleet reads no database for a creation.
func TestQuotaWithoutFleetNeedsNoQuery(t *testing.T) {
	s, err := storetest.Open(t, "")
	if err != nil {
		t.Fatal(err)
	}
	tokens := &access.Tokens{Store: s.Tokens()}
	token, secret, err := tokens.Create(t.Context(), "ci", access.Operator, nil, access.Quota{Jails: 1})
	if err == nil {
		_, err = tokens.Check(t.Context(), secret)
	}
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	n := &quotaNode{own: map[id.Token]jail.Demand{}}
	n.quotas = &quotas{tokens: tokens, jails: n}
	if err := n.create(token.ID); err != nil {
		t.Errorf("creation = %v, want nil", err)
	}
	if err := n.create(token.ID); !errors.Is(err, fault.Exhausted) {
		t.Errorf("creation over the quota = %v, want exhausted", err)
	}
	if used, err := n.used(t.Context()); err != nil || used[token.ID].Jails != 1 {
		t.Errorf("used = %+v, %v, want one jail", used, err)
	}
}
