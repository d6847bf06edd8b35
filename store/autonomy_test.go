package store_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/agents/autonomy"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/store/postgrestest"
)

func TestAutonomyInSQLite(t *testing.T) {
	autonomyConforms(t, func(t *testing.T) string { return filepath.Join(t.TempDir(), "g.db") })
}

func TestAutonomyInPostgreSQL(t *testing.T) {
	server := postgrestest.Start(t)
	autonomyConforms(t, func(t *testing.T) string { return server.URL(t) })
}

func autonomyConforms(t *testing.T, fresh func(t *testing.T) string) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, where string)
	}{
		{"RequestsComeBackAsTheyWere", requestsComeBack},
		{"AGroupIsChangedByOneAtATime", groupAlone},
		{"TwoDaemonsSeeOneGraph", twoDaemonsOneGraph},
		{"TwoDaemonsDeliverOnce", twoDaemonsDeliverOnce},
		{"GrantsComeBackUntilTheyGiveNothing", grantsComeBack},
		{"TasksComeBackAsTheyWere", tasksComeBack},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, fresh(t)) })
	}
}

func aRequest(n int, from, to string, state autonomy.State) autonomy.Request {
	return autonomy.Request{
		ID: id.NewRequest(), From: sibling(from), To: sibling(to), Action: "review", Context: "a 'strange' \u202e one\n", State: state, Created: epoch.Add(time.Duration(n)),
		Deadline: epoch.Add(time.Hour), Root: "q-root", Parent: "q-parent", Depth: 2, Hops: 3, Wait: true, Deliveries: 1, Lease: epoch, Next: epoch, Acked: true,
	}
}

func sibling(name string) autonomy.Member {
	return autonomy.Member{Jail: id.Jail("j-" + name), Session: "sess-" + name, Name: name, Group: "team", Level: 3}
}

func requestsComeBack(t *testing.T, where string) {
	ctx := t.Context()
	a := open(t, where).Autonomy()
	one, two, three := aRequest(1, "a", "b", autonomy.Queued), aRequest(2, "b", "c", autonomy.Answered), aRequest(3, "c", "a", autonomy.Delivered)
	one.Key, two.Key, two.Answer, two.Wait = "k", "k", "yes", false
	history := autonomy.History{
		Buckets: map[string]autonomy.Bucket{"": {Tokens: 1.5, At: epoch}}, Exchanges: []autonomy.Exchange{{Pair: "a<>b", Topic: "t", At: epoch}},
		Hops: map[id.Request]int{"q-root": 3},
	}
	put := func(group string, rs ...autonomy.Request) error {
		return a.ChangeGroup(ctx, group, func(g *autonomy.Group) ([]autonomy.Request, error) {
			g.History = history
			return rs, nil
		})
	}
	if err := put("team", three, one, two); err != nil {
		t.Fatal(err)
	}
	if err := put("others", aRequest(4, "x", "y", autonomy.Queued)); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("changed my mind")
	err := a.ChangeGroup(ctx, "team", func(g *autonomy.Group) ([]autonomy.Request, error) {
		g.History = autonomy.History{}
		return []autonomy.Request{aRequest(5, "a", "c", autonomy.Queued)}, broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("ChangeGroup = %v", err)
	}
	again := aRequest(6, "a", "c", autonomy.Queued)
	again.Key = "k"
	if err := put("team", again); !errors.Is(err, fault.Conflict) {
		t.Errorf("a duplicate key: %v", err)
	}

	a = open(t, where).Autonomy()
	err = a.ChangeGroup(ctx, "team", func(g *autonomy.Group) ([]autonomy.Request, error) {
		if diff := cmp.Diff(autonomy.Group{Name: "team", Open: []autonomy.Request{one, three}, History: history}, *g); diff != "" {
			t.Errorf("the group:\n%s", diff)
		}
		return nil, nil
	})
	if err != nil {
		t.Error(err)
	}
	check := func(name string, want []autonomy.Request, got []autonomy.Request, err error) {
		t.Helper()
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	got, err := a.OpenRequests(ctx, "team")
	check("open", []autonomy.Request{one, three}, got, err)
	got, err = a.OpenRequests(ctx, "")
	if err != nil || len(got) != 3 {
		t.Errorf("open of all groups: %d, %v", len(got), err)
	}
	got, err = a.Requests(ctx, autonomy.RequestFilter{Group: "team", Limit: 10})
	check("all", []autonomy.Request{three, two, one}, got, err)
	got, err = a.Requests(ctx, autonomy.RequestFilter{Member: sibling("a").Key(), Limit: 10, Before: three.ID})
	check("of a member, the next page", []autonomy.Request{one}, got, err)
	got, err = a.Requests(ctx, autonomy.RequestFilter{State: autonomy.Answered, Limit: 10})
	check("answered", []autonomy.Request{two}, got, err)
	single, err := a.Request(ctx, two.ID)
	check("get", []autonomy.Request{two}, []autonomy.Request{single}, err)
	single, err = a.RequestByKey(ctx, sibling("b").Key(), "k")
	check("by key", []autonomy.Request{two}, []autonomy.Request{single}, err)
	if _, err := a.RequestByKey(ctx, sibling("c").Key(), ""); !errors.Is(err, fault.NotFound) {
		t.Errorf("an empty key: %v", err)
	}
	if _, err := a.Request(ctx, "q-none"); !errors.Is(err, fault.NotFound) {
		t.Errorf("a missing request: %v", err)
	}
}

func groupAlone(t *testing.T, where string) {
	a, b := open(t, where).Autonomy(), open(t, where).Autonomy()
	var wg sync.WaitGroup
	for i := range 40 {
		from := a
		if i%2 == 0 {
			from = b
		}
		wg.Go(func() {
			err := from.ChangeGroup(t.Context(), "team", func(g *autonomy.Group) ([]autonomy.Request, error) {
				g.History.Hops = map[id.Request]int{"q-root": g.History.Hops["q-root"] + 1}
				return nil, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	err := a.ChangeGroup(t.Context(), "team", func(g *autonomy.Group) ([]autonomy.Request, error) {
		if n := g.History.Hops["q-root"]; n != 40 {
			t.Errorf("%d of 40 changes were stored", n)
		}
		return nil, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// team is a group whose members may all send requests to each other.
type team []string

func (f team) Members(context.Context, string) (list []autonomy.Member, err error) {
	for _, n := range f {
		list = append(list, sibling(n))
	}
	return list, nil
}

func broker(t *testing.T, where string, cfg autonomy.BrokerConfig) *autonomy.Broker {
	t.Helper()
	cfg.Policy = func(context.Context, autonomy.Member, autonomy.Member, string, string) (bool, string, error) {
		return true, "", nil
	}
	cfg.Quotas.Open, cfg.Quotas.Queue, cfg.Quotas.FanOut = 1000, 1000, 1000
	cfg.Quotas.GroupRate, cfg.Quotas.EdgeRate = autonomy.Rate{Burst: 1 << 20, Every: 1}, autonomy.Rate{Burst: 1 << 20, Every: 1}
	cfg.Poll = 20 * time.Millisecond
	b, err := autonomy.NewBroker(open(t, where).Autonomy(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// In twoDaemonsOneGraph, each member of a group waits for the next one concurrently, through two
// daemons. Exactly one request would close the cycle and is refused.
func twoDaemonsOneGraph(t *testing.T, where string) {
	names := team{"a", "b", "c", "d", "e", "f"}
	two := []*autonomy.Broker{broker(t, where, autonomy.BrokerConfig{Siblings: names}), broker(t, where, autonomy.BrokerConfig{Siblings: names})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := make(chan autonomy.Request, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		wg.Go(func() {
			next := names[(i+1)%len(names)]
			r, err := two[i%2].Ask(ctx, sibling(n), autonomy.Ask{To: next, Action: "help", Context: n, ReplyWithin: time.Hour})
			switch {
			case err != nil && ctx.Err() == nil:
				t.Error(err)
			case r.State == autonomy.Refused:
				refused <- r
			}
		})
	}
	r := <-refused
	if r.Refusal.Code != "cycle" {
		t.Errorf("refused: %+v", r.Refusal)
	}
	waitFor(t, func() bool {
		list, err := two[0].List(ctx, autonomy.RequestFilter{State: autonomy.Queued})
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == len(names)-1
	})
	cancel()
	wg.Wait()
	if n := len(refused); n != 0 {
		t.Errorf("%d further requests were refused", n)
	}
}

func waitFor(t *testing.T, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the condition is not true after five minutes")
		}
	}
}

// counter counts how often each request is delivered.
type counter struct {
	mu sync.Mutex
	n  map[id.Request]int
}

func (c *counter) Deliver(_ context.Context, r autonomy.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[r.ID]++
	return nil
}

// In twoDaemonsDeliverOnce, two daemons deliver the same requests. If no daemon is killed, each
// request is delivered once, and its reply reaches the sender through the other daemon.
func twoDaemonsDeliverOnce(t *testing.T, where string) {
	c := &counter{n: map[id.Request]int{}}
	names := team{"a", "b", "c", "d"}
	cfg := autonomy.BrokerConfig{Siblings: names, Deliverer: c, Lease: time.Hour}
	one, other := broker(t, where, cfg), broker(t, where, cfg)
	const asks = 100
	var wg sync.WaitGroup
	for i := range asks {
		wg.Go(func() {
			r, err := one.Ask(t.Context(), sibling("a"), autonomy.Ask{To: names[1+i%3], Action: "x", Context: fmt.Sprint(i), ReplyWithin: time.Hour})
			if err != nil || r.Answer != fmt.Sprint("yes ", i) {
				t.Errorf("%d: %q, %s, %v", i, r.Answer, r.State, err)
			}
		})
	}
	answered := 0
	waitFor(t, func() bool {
		list, err := other.List(t.Context(), autonomy.RequestFilter{State: autonomy.Delivered})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			if !r.Acked {
				continue
			}
			if _, err := other.Reply(t.Context(), r.To, r.ID, "yes "+r.Context); err != nil {
				t.Error(err)
			}
			answered++
		}
		return answered == asks
	})
	wg.Wait()
	if len(c.n) != asks {
		t.Errorf("%d of %d requests were delivered", len(c.n), asks)
	}
	for q, n := range c.n {
		if n != 1 {
			t.Errorf("%s was delivered %d times", q, n)
		}
	}
}

func grantsComeBack(t *testing.T, where string) {
	ctx := t.Context()
	a := open(t, where).Autonomy()
	g := autonomy.Grant{
		Jail: "j-a", Group: "team", Host: "here", Base: autonomy.Limits{CPU: 1000, Memory: 512}, Held: autonomy.Limits{CPU: 2000, Memory: 512}, Since: epoch, Until: epoch.Add(time.Hour), Applied: true,
	}
	c := autonomy.Change{
		Jail: "j-a", Group: "team", At: epoch, Verdict: autonomy.Applied, Why: "asked", By: "anna", Want: autonomy.Limits{CPU: 2000}, From: g.Base, To: g.Held, Until: epoch, Entry: 3,
		Refusal: &autonomy.Refusal{Code: "pool", Reason: "none", RetryAfter: time.Second},
	}
	other := c
	other.Jail = "j-b"
	change := func(gs []autonomy.Grant, cs []autonomy.Change) {
		t.Helper()
		if err := a.ChangeGrants(ctx, func([]autonomy.Grant) ([]autonomy.Grant, []autonomy.Change, error) { return gs, cs, nil }); err != nil {
			t.Fatal(err)
		}
	}
	change([]autonomy.Grant{g}, []autonomy.Change{c, other})
	change(nil, []autonomy.Change{c})
	a = open(t, where).Autonomy()
	if got, err := a.Grants(ctx); err != nil || cmp.Diff([]autonomy.Grant{g}, got) != "" {
		t.Errorf("grants: %v\n%s", err, cmp.Diff([]autonomy.Grant{g}, got))
	}
	third := c
	c.N, other.N, third.N = 1, 2, 3
	for name, tt := range map[string]struct {
		f    autonomy.ChangeFilter
		want []autonomy.Change
	}{
		"all": {autonomy.ChangeFilter{Limit: 10}, []autonomy.Change{c, other, third}}, "of a jail": {autonomy.ChangeFilter{Jail: "j-a", Limit: 10}, []autonomy.Change{c, third}},
		"the next": {autonomy.ChangeFilter{After: 1, Limit: 1}, []autonomy.Change{other}},
	} {
		if got, err := a.Changes(ctx, tt.f); err != nil || cmp.Diff(tt.want, got) != "" {
			t.Errorf("%s: %v\n%s", name, err, cmp.Diff(tt.want, got))
		}
	}
	g.Held, g.Applied = g.Base, false // the grant is being revoked
	change([]autonomy.Grant{g}, nil)
	if got, err := a.Grants(ctx); err != nil || len(got) != 1 {
		t.Errorf("%d grants, %v", len(got), err)
	}
	g.Applied = true
	change([]autonomy.Grant{g}, nil)
	if got, err := a.Grants(ctx); err != nil || len(got) != 0 {
		t.Errorf("%d grants, %v", len(got), err)
	}
}

func tasksComeBack(t *testing.T, where string) {
	ctx := t.Context()
	a := open(t, where).Autonomy()
	task := func(n int, jail id.Jail, p autonomy.Priority) autonomy.Task {
		return autonomy.Task{
			ID: fmt.Sprint("task-", n), Jail: jail, Session: "sess-a", Title: "Add 'it'", Description: "a\nb", Priority: p, Status: autonomy.ToDo, By: "worker",
			Created: epoch.Add(time.Duration(n)), Changed: epoch, Path: ".tasks/x.md", Digest: "sha256:00",
		}
	}
	one, two, three := task(1, "j-a", autonomy.Low), task(2, "j-b", autonomy.High), task(3, "j-a", autonomy.High)
	for _, x := range []autonomy.Task{two, one, three} {
		if err := a.AddTask(ctx, x); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.AddTask(ctx, one); !errors.Is(err, fault.Conflict) {
		t.Errorf("a duplicate id: %v", err)
	}
	two.Status, two.Written = autonomy.Done, true
	if err := a.ChangeTask(ctx, two.ID, func(x *autonomy.Task) error { *x = two; return nil }); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no")
	if err := a.ChangeTask(ctx, one.ID, func(x *autonomy.Task) error { x.Title = "y"; return broken }); !errors.Is(err, broken) {
		t.Errorf("ChangeTask = %v", err)
	}
	a = open(t, where).Autonomy()
	for name, tt := range map[string]struct {
		f    autonomy.TaskFilter
		want []autonomy.Task
	}{
		"all": {autonomy.TaskFilter{}, []autonomy.Task{three, two, one}}, "of a jail": {autonomy.TaskFilter{Jail: "j-a"}, []autonomy.Task{three, one}},
		"open": {autonomy.TaskFilter{Status: autonomy.ToDo}, []autonomy.Task{three, one}}, "high": {autonomy.TaskFilter{Priority: autonomy.High, Session: "sess-a"}, []autonomy.Task{three, two}},
		"unwritten": {autonomy.TaskFilter{Unwritten: true}, []autonomy.Task{three, one}}, "the next page": {autonomy.TaskFilter{Before: "task-2"}, []autonomy.Task{one}},
	} {
		tt.f.Limit = 10
		if got, err := a.Tasks(ctx, tt.f); err != nil || cmp.Diff(tt.want, got) != "" {
			t.Errorf("%s: %v\n%s", name, err, cmp.Diff(tt.want, got))
		}
	}
	if got, err := a.Task(ctx, two.ID); err != nil || got != two {
		t.Errorf("Task = %+v, %v", got, err)
	}
	for _, tid := range []string{"task-9", "\x00"} {
		if _, err := a.Task(ctx, tid); !errors.Is(err, fault.NotFound) {
			t.Errorf("Task(%q) = %v", tid, err)
		}
	}
}
