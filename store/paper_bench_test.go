//go:build bench

package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"glasshouse/agents/run"
	"glasshouse/fleet"
	"glasshouse/store"
	"glasshouse/store/postgrestest"
)

// TestBenchPaperNodes executes the statements of the daemons of a large fleet, without daemons: first
// without runs, then with 20 active runs of each node. Then a tenth of the nodes is lost.
func TestBenchPaperNodes(t *testing.T) {
	const nodes, perNode, duration = 1000, 20, 30 * time.Second
	server := postgrestest.Start(t)
	where := server.URL(t)
	s := open(t, where)
	p := &paperNodes{T: t, store: s}
	for n := range nodes {
		p.ids = append(p.ids, fmt.Sprintf("n%04d", n))
		got(s.Nodes().Join(t.Context(), fleet.Node{ID: p.ids[n], Name: p.ids[n], Addr: "host:8443", Host: "host", Nonce: "1"}, false, time.Hour))(t)
	}
	p.run("without runs", duration)
	for n := range nodes * perNode {
		session := aSession(fmt.Sprint("s", n))
		session.Recorder = p.ids[n%nodes]
		write(t, s.Runs(), run.Change{ID: session.ID, Session: session, Runs: []run.Run{aRun(session.ID, n)}})
	}
	analyze(t, where)
	p.run(fmt.Sprintf("with %d runs", nodes*perNode), duration)

	for _, id := range p.ids[:nodes/10] {
		expire(t, s, fleet.Node{ID: id, Epoch: 1, Nonce: "1"})
	}
	began := time.Now()
	lost := got(s.Nodes().DeclareLost(t.Context()))(t)
	fmt.Printf("paper nodes: the runs of %d lost nodes were assigned to others in %v\n", len(lost), time.Since(began).Round(time.Millisecond))

	const jails = 100
	for _, id := range p.ids {
		var own []fleet.Object
		for n := range jails {
			own = append(own, fleet.Object{Kind: fleet.Jail, ID: fmt.Sprint("j-", id, "-", n), Created: time.Unix(int64(n), 0), Summary: "{}"})
		}
		if err := s.Owners().Publish(t.Context(), id, own, nil); err != nil {
			t.Fatal(err)
		}
	}
	analyze(t, where)
	read := func(what string, f func(context.Context) ([]fleet.Node, error)) (list []fleet.Node) {
		const reads = 20
		began := time.Now()
		for range reads {
			list = got(f(t.Context()))(t)
		}
		fmt.Printf("paper nodes: the list of %d nodes %s is read in %v\n", len(list), what, (time.Since(began) / reads).Round(100*time.Microsecond))
		return list
	}
	read("without counts", s.Nodes().Peers)
	list := read(fmt.Sprintf("with the counts of %d jails", nodes*jails), s.Nodes().Nodes)
	began = time.Now()
	const places = 10_000
	for range places {
		if _, err := fleet.Best(list, func(n *fleet.Node) int { return n.Jails }); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Printf("paper nodes: a placement takes %v\n", (time.Since(began) / places).Round(100*time.Nanosecond))
}

// analyze updates the statistics of the tables, as the server does by itself within a minute.
func analyze(t *testing.T, where string) {
	t.Helper()
	db, err := sql.Open("pgx", where)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "ANALYZE"); err != nil {
		t.Fatal(err)
	}
}

// paperNodes are nodes without daemons.
type paperNodes struct {
	*testing.T
	store *store.Store
	ids   []string
}

func (p *paperNodes) run(what string, duration time.Duration) {
	ctx, cancel := context.WithTimeout(p.Context(), duration)
	defer cancel()
	var all sync.WaitGroup
	times := make([][]time.Duration, len(p.ids))
	for n, id := range p.ids {
		all.Go(func() { times[n] = p.live(ctx, id) })
	}
	all.Wait()
	took := slices.Concat(times...)
	slices.Sort(took)
	at := func(part float64) time.Duration {
		return took[int(part*float64(len(took)-1))].Round(100 * time.Microsecond)
	}
	fmt.Printf("paper nodes: %d nodes %s: %.0f statements per second, %.2f per node; p50 %v, p99 %v, longest %v\n", len(p.ids), what,
		float64(len(took))/duration.Seconds(), float64(len(took))/duration.Seconds()/float64(len(p.ids)), at(0.5), at(0.99), at(1))
}

// live executes the statements of a node, and returns their durations: it looks for work each second, and
// renews its lease each five seconds.
func (p *paperNodes) live(ctx context.Context, id string) (took []time.Duration) {
	measure := func(f func() error) {
		began := time.Now()
		if err := f(); err != nil && ctx.Err() == nil {
			p.Error(err)
		}
		took = append(took, time.Since(began))
	}
	select {
	case <-time.After(rand.N(time.Second)):
	case <-ctx.Done():
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := rand.N(5); ; n++ {
		var signals store.Signals
		measure(func() (err error) { signals, err = p.store.Signals(ctx, id, epoch); return err })
		if signals.Runs {
			measure(func() error { _, err := p.store.Runs().Due(ctx, epoch, 100); return err })
			measure(func() error { _, err := p.store.Runs().Unclaimed(ctx, id, "", 100); return err })
		}
		if n%5 == 0 {
			measure(func() error {
				r, err := p.store.Nodes().Renew(ctx, id, 1, "1", "1", time.Hour, fleet.Facts{})
				if err == nil && r.Now.IsZero() {
					err = fmt.Errorf("node %s has lost its lease", id)
				}
				return err
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return took
		}
	}
}
