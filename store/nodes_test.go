package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/policy/secret"
	"glasshouse/store"
	"glasshouse/store/postgrestest"
)

func TestNodesInSQLite(t *testing.T) {
	nodesConform(t, func(t *testing.T) string { return filepath.Join(t.TempDir(), "g.db") })
}

func TestNodesInPostgreSQL(t *testing.T) {
	server := postgrestest.Start(t)
	nodesConform(t, func(t *testing.T) string { return server.URL(t) })
}

// nodesConform checks the contract of fleet.Store on one database.
func nodesConform(t *testing.T, fresh func(t *testing.T) string) {
	for name, test := range map[string]func(t *testing.T, s *store.Store){
		"Join": nodesJoin, "Renew": nodesRenew, "DeclareLost": nodesLost, "LostNodeCannotWrite": nodesFenced,
		"EachSessionIsAssignedOnce": nodesAssign, "OneDeclaresEachNodeLost": nodesConcurrent,
		"Drain": nodesDrain, "Remove": nodesRemove, "Invite": nodesInvite, "Index": ownersIndex, "Pages": pagesOfChangingIndex,
		"Signals": nodesSignals, "Demands": demandsShared,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t, fresh(t))) })
	}
}

// joined joins as a node with the lease of an hour, and fails the test unless host gets the lease.
func joined(t *testing.T, s *store.Store, id, host, nonce string) fleet.Node {
	t.Helper()
	n := got(s.Nodes().Join(t.Context(), fleet.Node{ID: id, Name: "box of " + id, Version: "1", Host: host, Nonce: nonce}, false, time.Hour))(t)
	if n.Host != host || n.Nonce != nonce || n.State != fleet.Up || n.Until.Sub(n.Now) != time.Hour {
		t.Fatalf("Join = %+v, want a lease of an hour for %s with nonce %s", n, host, nonce)
	}
	return n
}

// expire lets the lease of a node expire.
func expire(t *testing.T, s *store.Store, n fleet.Node) {
	t.Helper()
	if now := got(s.Nodes().Renew(t.Context(), n.ID, n.Epoch, n.Nonce, n.Nonce, -time.Second, fleet.Facts{}))(t).Now; now.IsZero() {
		t.Fatalf("the lease of %s was not changed", n.ID)
	}
}

func nodesJoin(t *testing.T, s *store.Store) {
	ctx := t.Context()
	a := joined(t, s, "a", "host", "1")
	if a.Epoch < 1 {
		t.Errorf("first epoch = %d, want at least 1", a.Epoch)
	}
	if skew := time.Since(a.Now).Abs(); skew > time.Minute {
		t.Errorf("the clock of the database differs by %v from that of this host, on which it runs", skew)
	}
	// A restarted process continues, because its host lets only one process use the directory.
	if again := joined(t, s, "a", "host", "2"); again.Epoch != a.Epoch {
		t.Errorf("epoch after a restart = %d, want %d", again.Epoch, a.Epoch)
	}
	if n := got(s.Nodes().Join(ctx, fleet.Node{ID: "a", Host: "host", Nonce: "3"}, true, time.Hour))(t); n.Nonce != "2" {
		t.Errorf("Join of the earlier process = %+v, want the row of the later", n)
	}
	other := got(s.Nodes().Join(ctx, fleet.Node{ID: "a", Host: "copy", Nonce: "3"}, false, time.Hour))(t)
	if other.Host != "host" || other.Nonce != "2" {
		t.Errorf("Join of a copy = %+v, want the row of the original", other)
	}
	a.Nonce = "2"
	expire(t, s, a)
	if taken := joined(t, s, "a", "copy", "3"); taken.Epoch <= a.Epoch {
		t.Errorf("epoch of another host = %d, want more than %d", taken.Epoch, a.Epoch)
	}
	if now := got(s.Nodes().Renew(ctx, "a", a.Epoch, "2", "4", time.Hour, fleet.Facts{}))(t).Now; !now.IsZero() {
		t.Error("the original renewed its lease after the copy had taken it")
	}
	joined(t, s, "b", "host", "1")
	list := got(s.Nodes().Nodes(ctx))(t)
	if len(list) != 2 || list[0].ID != "a" || list[1].ID != "b" || list[1].Name != "box of b" || list[1].Version != "1" {
		t.Errorf("Nodes = %+v, want a and b with their names and versions", list)
	}
}

func nodesRenew(t *testing.T, s *store.Store) {
	ctx := t.Context()
	a := joined(t, s, "a", "host", "1")
	renew := func(epoch int64, nonce, next string, want bool) {
		t.Helper()
		now := got(s.Nodes().Renew(ctx, "a", epoch, nonce, next, 2*time.Hour, fleet.Facts{Memory: 5}))(t).Now
		if list := got(s.Nodes().Nodes(ctx))(t); !now.IsZero() && list[0].Facts.Memory != 5 {
			t.Errorf("facts after a renewal = %+v, want those of the renewal", list[0].Facts)
		}
		if now.IsZero() == want || want && (now.Before(a.Now) || now.After(a.Now.Add(time.Hour))) {
			t.Errorf("Renew(epoch %d, nonce %s) = %v, want renewed %v, and shortly after %v", epoch, nonce, now, want, a.Now)
		}
	}
	renew(a.Epoch, "1", "2", true)
	renew(a.Epoch, "1", "2", true)  // the answer to the first was lost
	renew(a.Epoch, "1", "3", false) // a copy of the running host
	renew(a.Epoch+1, "2", "3", false)
	renew(a.Epoch, "2", "3", true)
	if n := got(s.Nodes().Nodes(ctx))(t)[0]; n.Until.Sub(n.Now).Round(time.Minute) != 2*time.Hour {
		t.Errorf("rest of the lease = %v, want 2h", n.Until.Sub(n.Now))
	}
}

func nodesLost(t *testing.T, s *store.Store) {
	ctx := t.Context()
	a := joined(t, s, "a", "host", "1")
	joined(t, s, "b", "host", "1")
	if lost := got(s.Nodes().DeclareLost(ctx))(t); len(lost) != 0 {
		t.Errorf("DeclareLost = %v, want none", lost)
	}
	expire(t, s, a)
	if lost := got(s.Nodes().DeclareLost(ctx))(t); !slices.Equal(lost, []string{"a"}) {
		t.Errorf("DeclareLost = %v, want a", lost)
	}
	if lost := got(s.Nodes().DeclareLost(ctx))(t); len(lost) != 0 {
		t.Errorf("second DeclareLost = %v, want none", lost)
	}
	if n := got(s.Nodes().Nodes(ctx))(t)[0]; n.State != fleet.Lost || n.Epoch <= a.Epoch {
		t.Errorf("node = %+v, want lost, with an epoch above %d", n, a.Epoch)
	}
	if now := got(s.Nodes().Renew(ctx, "a", a.Epoch, "1", "2", time.Hour, fleet.Facts{}))(t).Now; !now.IsZero() {
		t.Error("a lost node renewed its lease")
	}
	if back := joined(t, s, "a", "host", "2"); back.Epoch <= a.Epoch+1 {
		t.Errorf("epoch after the loss = %d, want more than %d", back.Epoch, a.Epoch+1)
	}
}

// A node that was declared lost cannot write with the claims that it had.
func nodesFenced(t *testing.T, s *store.Store) {
	ctx := t.Context()
	rs := s.Runs()
	a, b := joined(t, s, "a", "host", "1"), joined(t, s, "b", "host", "1")
	session := aSession("s")
	session.Recorder = "a"
	r := aRun("s", 1)
	write(t, rs, run.Change{ID: "s", Session: session, Runs: []run.Run{r}})
	claim := func(n fleet.Node, want bool) {
		t.Helper()
		if won := got(rs.Claim(ctx, "s", n.ID, n.Epoch))(t); won != want {
			t.Errorf("%s claims the session: %v, want %v", n.ID, won, want)
		}
	}
	waiting := func(node string, want int) {
		t.Helper()
		if list := got(rs.Unclaimed(ctx, node, "", 10))(t); len(list) != want {
			t.Errorf("%s finds %d runs, want %d", node, len(list), want)
		}
	}
	waiting("b", 0)
	claim(a, true)
	claim(b, false)
	write(t, rs, run.Change{ID: "s", Holder: "a", Epoch: a.Epoch})
	expire(t, s, a)
	claim(a, false) // its lease has expired
	claim(b, false) // a is not declared lost yet
	got(s.Nodes().DeclareLost(ctx))(t)
	if err := rs.Write(ctx, &run.Change{ID: "s", Holder: "a", Epoch: a.Epoch}); err == nil {
		t.Error("a lost node wrote")
	}
	waiting("a", 0)
	waiting("b", 1)
	claim(a, false)
	claim(b, true)
	back := joined(t, s, "a", "host", "2")
	claim(back, false)
	waiting("a", 0)
	// The session is given back to the node that has its jail.
	if ok, err := rs.Assign(ctx, "s", "a"); ok || err != nil {
		t.Fatalf("Assign of a claimed session = %t, %v; want false", ok, err)
	}
	waiting("a", 0) // b has claimed it
	if err := rs.Release(ctx, "s", "b"); err != nil {
		t.Fatal(err)
	}
	if ok, err := rs.Assign(ctx, "s", "nobody"); ok || err != nil {
		t.Fatalf("Assign to an unknown node = %t, %v; want false", ok, err)
	}
	waiting("b", 1)
	if ok, err := rs.Assign(ctx, "s", "a"); !ok || err != nil {
		t.Fatalf("Assign = %t, %v; want true", ok, err)
	}
	waiting("b", 0)
	waiting("a", 1)
}

func nodesAssign(t *testing.T, s *store.Store) {
	lost := joined(t, s, "lost", "host", "1")
	for n := range 3 {
		joined(t, s, fmt.Sprint("up", n), "host", "1")
	}
	for n := range 60 {
		session := aSession(fmt.Sprint("s", n))
		session.Recorder = "lost"
		write(t, s.Runs(), run.Change{ID: session.ID, Session: session, Runs: []run.Run{aRun(session.ID, n)}})
	}
	expire(t, s, lost)
	if r := got(s.Nodes().Renew(t.Context(), "up0", 1, "1", "1", time.Hour, fleet.Facts{}))(t); r.Now.IsZero() || !r.Lost {
		t.Errorf("Renew of another node = %+v, want that a lease has expired", r)
	}
	got(s.Nodes().DeclareLost(t.Context()))(t)
	if r := got(s.Nodes().Renew(t.Context(), "up0", 1, "1", "1", time.Hour, fleet.Facts{}))(t); r.Now.IsZero() || r.Lost {
		t.Errorf("Renew after the node was declared lost = %+v, want no expired lease", r)
	}
	seen := map[string]int{}
	for n := range 3 {
		list := got(s.Runs().Unclaimed(t.Context(), fmt.Sprint("up", n), "", 100))(t)
		if len(list) != 20 {
			t.Errorf("node up%d got %d runs, want 20", n, len(list))
		}
		for _, r := range list {
			seen[r.Session]++
		}
	}
	if len(seen) != 60 {
		t.Errorf("%d sessions were assigned, want 60", len(seen))
	}
}

func nodesSignals(t *testing.T, s *store.Store) {
	ctx := t.Context()
	check := func(when, node string, want store.Signals) {
		t.Helper()
		if now := got(s.Signals(ctx, node, epoch))(t); now != want {
			t.Errorf("%s: signals for %s = %+v, want %+v", when, node, now, want)
		}
	}
	want := store.Signals{Secrets: 1, Capabilities: 1}
	check("at first", "a", want)

	due := aRun("later", 1)
	at := epoch.Add(time.Second)
	due.State, due.NextRunAt = run.Scheduled, at
	session := aSession("later")
	write(t, s.Runs(), run.Change{ID: "later", Session: session, Runs: []run.Run{due}})
	check("before a run is due", "a", want)
	if now := got(s.Signals(ctx, "a", at))(t); !now.Runs {
		t.Error("no signal for a run that is due")
	}

	session = aSession("s")
	session.Recorder = "a"
	write(t, s.Runs(), run.Change{ID: "s", Session: session, Runs: []run.Run{aRun("s", 2)}})
	check("a session of another node", "b", want)
	want.Runs = true
	check("a session without a supervisor", "a", want)

	if err := s.Autonomy().ChangeGroup(ctx, "team", func(*autonomy.Group) ([]autonomy.Request, error) {
		return []autonomy.Request{aRequest(1, "a", "b", autonomy.Queued), aRequest(2, "a", "b", autonomy.Answered)}, nil
	}); err != nil {
		t.Fatal(err)
	}
	want.Requests = true
	check("an open request", "a", want)
	if err := s.Secrets().PutSecret(ctx, secret.Record{Name: "key", Sealed: "x"}); err != nil {
		t.Fatal(err)
	}
	want.Secrets++
	check("a changed secret", "a", want)
	if done := got(s.Capabilities().PutTrust(ctx, nil, []byte("{}")))(t); !done {
		t.Error("PutTrust has stored nothing")
	}
	want.Capabilities++
	check("a changed publisher", "a", want)
}

func nodesConcurrent(t *testing.T, s *store.Store) {
	for n := range 4 {
		expire(t, s, joined(t, s, fmt.Sprint("n", n), "host", "1"))
	}
	var mu sync.Mutex
	var all []string
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			lost, err := s.Nodes().DeclareLost(t.Context())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, lost...)
		})
	}
	wg.Wait()
	slices.Sort(all)
	if !slices.Equal(all, []string{"n0", "n1", "n2", "n3"}) {
		t.Errorf("declared lost: %v, want each node once", all)
	}
}

func nodesDrain(t *testing.T, s *store.Store) {
	ctx := t.Context()
	joined(t, s, "a", "host", "1")
	if err := s.Nodes().Drain(ctx, "none", true); !errors.Is(err, fault.NotFound) {
		t.Errorf("Drain of an unknown node = %v, want not found", err)
	}
	for _, on := range []bool{true, false} {
		if err := s.Nodes().Drain(ctx, "a", on); err != nil {
			t.Fatal(err)
		}
		if n := got(s.Nodes().Nodes(ctx))(t)[0]; n.Draining != on {
			t.Errorf("node = %+v, want draining: %v", n, on)
		}
	}
}

func nodesRemove(t *testing.T, s *store.Store) {
	ctx := t.Context()
	a := got(s.Nodes().Join(ctx, fleet.Node{ID: "a", Addr: "10.0.0.1:8443", Host: "host", Nonce: "1"}, false, time.Hour))(t)
	joined(t, s, "b", "host", "1")
	jail := fleet.Object{Kind: fleet.Jail, ID: "j-1", Created: time.Unix(1, 0).UTC(), Summary: "{}"}
	if err := s.Owners().Publish(ctx, "a", []fleet.Object{jail}, nil); err != nil {
		t.Fatal(err)
	}
	if n := got(s.Nodes().Nodes(ctx))(t)[0]; n.Jails != 1 || n.Addr != "10.0.0.1:8443" {
		t.Errorf("node = %+v, want one jail and its address", n)
	}
	if n := got(s.Nodes().Peers(ctx))(t)[0]; n.Jails != 0 || n.Addr != "10.0.0.1:8443" {
		t.Errorf("node = %+v, want its address, and no count of jails", n)
	}
	if err := s.Nodes().Remove(ctx, "a", false); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
		t.Errorf("Remove of a node with a jail = %v, want conflict and how to go on", err)
	}
	if err := s.Nodes().Remove(ctx, "a", true); err != nil {
		t.Fatal(err)
	}
	if list := got(s.Nodes().Nodes(ctx))(t); len(list) != 1 || list[0].ID != "b" {
		t.Errorf("nodes = %+v, want b", list)
	}
	if node := got(s.Owners().Owner(ctx, jail.Key()))(t); node != "" {
		t.Errorf("owner of a jail of a removed node = %q, want none", node)
	}
	if now := got(s.Nodes().Renew(ctx, "a", a.Epoch, "1", "2", time.Hour, fleet.Facts{}))(t).Now; !now.IsZero() {
		t.Error("a removed node renewed its lease")
	}
	back := fleet.Node{ID: "a", Host: "host", Nonce: "3"}
	for _, again := range []bool{false, true} {
		if _, err := s.Nodes().Join(ctx, back, again, time.Hour); !errors.Is(err, fault.Denied) {
			t.Errorf("Join of a removed node = %v, want denied", err)
		}
	}
	if err := s.Nodes().Remove(ctx, "a", true); !errors.Is(err, fault.NotFound) {
		t.Errorf("second Remove = %v, want not found", err)
	}
	if err := s.Nodes().Invite(ctx, "hash", time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := s.Nodes().Accept(ctx, "hash", "a"); err != nil {
		t.Fatal(err)
	}
	if n := got(s.Nodes().Join(ctx, back, false, time.Hour))(t); n.Nonce != "3" || n.Epoch <= a.Epoch+1 {
		t.Errorf("Join after another invitation = %+v, want a lease with an epoch above %d", n, a.Epoch+1)
	}
	// A node without an address joined by the database alone, and can do so again.
	if err := s.Nodes().Remove(ctx, "b", false); err != nil {
		t.Fatal(err)
	}
	joined(t, s, "b", "host", "2")
}

func nodesInvite(t *testing.T, s *store.Store) {
	ctx := t.Context()
	for hash, valid := range map[string]time.Duration{"good": time.Minute, "late": -time.Second} {
		if err := s.Nodes().Invite(ctx, hash, valid); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { errs[i] = s.Nodes().Accept(ctx, "good", fmt.Sprint("node", i)) })
	}
	wg.Wait()
	accepted := 0
	for _, err := range errs {
		if err == nil {
			accepted++
		} else if !errors.Is(err, fault.Unauthenticated) {
			t.Errorf("Accept of a used token = %v, want unauthenticated", err)
		}
	}
	if accepted != 1 {
		t.Errorf("a token was accepted %d times, want once", accepted)
	}
	for _, hash := range []string{"late", "unknown"} {
		if err := s.Nodes().Accept(ctx, hash, "a"); !errors.Is(err, fault.Unauthenticated) || fault.RemedyOf(err) == "" {
			t.Errorf("Accept of the %s token = %v, want unauthenticated with a remedy", hash, err)
		}
	}
}

// pagesOfChangingIndex lists 3000 jails of three nodes several times while others are created and
// removed: each list has each of the 3000 once.
func pagesOfChangingIndex(t *testing.T, s *store.Store) {
	ctx := t.Context()
	jail := func(n int) fleet.Object {
		return fleet.Object{Kind: fleet.Jail, ID: fmt.Sprintf("j-%05d", n), Created: time.Unix(int64(n), 0).UTC(), Summary: "{}"}
	}
	node := func(n int) string { return string(rune('a' + n%3)) }
	publish := func(node string, put []fleet.Object, removed ...fleet.Key) {
		t.Helper()
		if err := s.Owners().Publish(ctx, node, put, removed); err != nil {
			t.Fatal(err)
		}
	}
	const jails = 6000 // those with odd numbers come and go
	for n := range 3 {
		var own []fleet.Object
		for j := n; j < jails; j += 3 {
			if j%2 == 0 {
				own = append(own, jail(j))
			}
		}
		publish(node(n), own)
	}
	stop := make(chan struct{})
	changes, there := 0, map[int]bool{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; ; changes++ {
			select {
			case <-stop:
				return
			default:
			}
			n := rand.N(jails/2)*2 + 1
			there[n] = !there[n]
			put, removed := []fleet.Object{jail(n)}, []fleet.Key(nil)
			if !there[n] {
				put, removed = nil, []fleet.Key{jail(n).Key()}
			}
			if err := s.Owners().Publish(ctx, node(n), put, removed); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 5 {
		seen := map[string]int{}
		for after := ""; ; {
			page := got(s.Owners().Objects(ctx, fleet.Jail, "", after, 100))(t)
			for _, o := range page {
				seen[o.ID]++
			}
			if len(page) < 100 {
				break
			}
			after = page[len(page)-1].Cursor()
		}
		for n := range jails {
			k := jail(n).ID
			if n%2 == 0 && seen[k] != 1 || seen[k] > 1 {
				t.Errorf("jail %s is listed %d times", k, seen[k])
			}
		}
	}
	close(stop)
	wg.Wait()
	t.Logf("%d changes", changes)
	if changes == 0 {
		t.Error("no change was made meanwhile")
	}
}

func ownersIndex(t *testing.T, s *store.Store) {
	ctx := t.Context()
	jail := func(n int, summary string) fleet.Object {
		return fleet.Object{Kind: fleet.Jail, ID: fmt.Sprintf("j-%d", n), Created: time.Unix(int64(n/2), 0).UTC(), Summary: summary}
	}
	var all []fleet.Object
	for n := range 10 {
		all = append(all, jail(n, fmt.Sprintf(`{"n":%d}`, n)))
	}
	snapshot := fleet.Object{Kind: fleet.Snapshot, ID: "s-1", Created: time.Unix(1, 0).UTC(), Summary: "{}"}
	publish := func(node string, put []fleet.Object, removed ...fleet.Key) {
		t.Helper()
		if err := s.Owners().Publish(ctx, node, put, removed); err != nil {
			t.Fatal(err)
		}
	}
	publish("a", all[:5])
	publish("b", append([]fleet.Object{snapshot}, all[5:]...))
	// Another node cannot change or remove them.
	publish("b", []fleet.Object{jail(0, `{"forged":true}`)}, all[1].Key())
	var listed []fleet.Object
	for after := ""; ; after = listed[len(listed)-1].Cursor() {
		page := got(s.Owners().Objects(ctx, fleet.Jail, "", after, 3))(t)
		if len(page) == 0 {
			break
		}
		listed = append(listed, page...)
	}
	for n, o := range listed {
		want := all[n]
		want.Node = "a"
		if n >= 5 {
			want.Node = "b"
		}
		if o != want {
			t.Errorf("object %d = %+v, want %+v", n, o, want)
		}
	}
	if len(listed) != len(all) {
		t.Errorf("the pages have %d objects, want %d", len(listed), len(all))
	}
	publish("a", []fleet.Object{jail(0, `{"new":1}`)}, all[1].Key(), all[2].Key())
	mine := got(s.Owners().Published(ctx, "a"))(t)
	if len(mine) != 3 || mine[0].Summary != `{"new":1}` {
		t.Errorf("objects of a = %+v, want 3, of which the first has a new summary", mine)
	}
	if node := got(s.Owners().Owner(ctx, snapshot.Key()))(t); node != "b" {
		t.Errorf("owner of the snapshot = %q, want b", node)
	}
	if node := got(s.Owners().Owner(ctx, fleet.Key{Kind: fleet.Jail, ID: "j-1\x00"}))(t); node != "" {
		t.Errorf("owner of an invalid ID = %q, want none", node)
	}
	of := func(team string, created int64) fleet.Object {
		return fleet.Object{Kind: fleet.Template, ID: fmt.Sprint("t-", team, created), Tenant: team, Created: time.Unix(created, 0).UTC(), Summary: "{}"}
	}
	publish("a", []fleet.Object{of("x", 1), of("y", 2)})
	publish("b", []fleet.Object{of("x", 3)})
	if list := got(s.Owners().Objects(ctx, fleet.Template, "x", "", 3))(t); len(list) != 2 || list[0].ID != "t-x1" || list[1].Node != "b" || list[1].Tenant != "x" {
		t.Errorf("objects of a tenant = %+v, want two", list)
	}
	if list := got(s.Owners().Objects(ctx, fleet.Template, "x", of("x", 1).Cursor(), 3))(t); len(list) != 1 {
		t.Errorf("objects of a tenant after the first = %+v, want one", list)
	}
	// The newest object has a name.
	name := fleet.Object{Kind: fleet.Alias, ID: "template/x/app", Created: time.Unix(5, 0), Summary: "{}"}
	for _, c := range []struct {
		node    string
		created int64
		want    string
	}{{"a", 5, "a"}, {"b", 4, "a"}, {"b", 6, "b"}, {"a", 6, "b"}} {
		name.Created = time.Unix(c.created, 0)
		publish(c.node, []fleet.Object{name})
		if node := got(s.Owners().Owner(ctx, name.Key()))(t); node != c.want {
			t.Errorf("after an object of second %d on node %s, %s has the name, want %s", c.created, c.node, node, c.want)
		}
	}
	for _, c := range []struct {
		node, instead string
		valid         time.Duration
		want          string
	}{{"a", "", time.Hour, "a"}, {"b", "", time.Hour, "a"}, {"b", "c", time.Hour, "a"}, {"b", "a", time.Hour, "b"}, {"c", "a", time.Hour, "b"}} {
		if node := got(s.Owners().Bind(ctx, "key", c.node, c.instead, c.valid))(t); node != c.want {
			t.Errorf("Bind to %s instead of %q = %s, want %s", c.node, c.instead, node, c.want)
		}
	}
	got(s.Owners().Bind(ctx, "old", "a", "", -time.Second))(t)
	if node := got(s.Owners().Bind(ctx, "old", "b", "", time.Hour))(t); node != "b" {
		t.Errorf("Bind after the expiry = %s, want b", node)
	}
	// A node takes an object only with the ticket of the last offer, and only once.
	publish("a", []fleet.Object{{Kind: fleet.Jail, ID: "j-moving", Summary: "{}"}})
	k := fleet.Key{Kind: fleet.Jail, ID: "j-moving"}
	for _, c := range []struct {
		what string
		err  error
		want fault.Kind
	}{
		{"take without an offer", s.Owners().Take(ctx, k, "a", "b", "1"), fault.Conflict},
		{"take without a ticket", s.Owners().Take(ctx, k, "a", "b", ""), fault.Conflict},
		{"offer of another node", s.Owners().Offer(ctx, k, "b", "1"), fault.Conflict},
		{"offer of an unknown object", s.Owners().Offer(ctx, fleet.Key{Kind: fleet.Jail, ID: "j-none"}, "a", "1"), fault.NotFound},
		{"offer", s.Owners().Offer(ctx, k, "a", "1"), ""},
		{"second offer", s.Owners().Offer(ctx, k, "a", "2"), ""},
		{"take with an old ticket", s.Owners().Take(ctx, k, "a", "b", "1"), fault.Conflict},
		{"withdrawal", s.Owners().Offer(ctx, k, "a", ""), ""},
		{"take after the withdrawal", s.Owners().Take(ctx, k, "a", "b", "2"), fault.Conflict},
		{"third offer", s.Owners().Offer(ctx, k, "a", "3"), ""},
		{"take", s.Owners().Take(ctx, k, "a", "b", "3"), ""},
		{"repeated take", s.Owners().Take(ctx, k, "a", "b", "3"), ""},
		{"take of a third node", s.Owners().Take(ctx, k, "a", "c", "3"), fault.Conflict},
		{"late withdrawal", s.Owners().Offer(ctx, k, "a", ""), fault.Conflict},
	} {
		if fault.KindOf(c.err) != c.want {
			t.Errorf("%s: %v, want %q", c.what, c.err, c.want)
		}
	}
	if node := got(s.Owners().Owner(ctx, k))(t); node != "b" {
		t.Errorf("owner after the move = %s, want b", node)
	}
	publish("a", nil)
	if node := got(s.Owners().Owner(ctx, k))(t); node != "b" {
		t.Errorf("owner after the first node has removed the jail = %s, want b", node)
	}
	if _, err := s.Owners().Objects(ctx, fleet.Jail, "", "j-1", 3); !errors.Is(err, fault.Invalid) {
		t.Errorf("Objects after an invalid place = %v, want invalid", err)
	}
}
