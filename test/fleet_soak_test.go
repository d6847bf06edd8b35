package test_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/jail/backend/backendtest"
)

// A faultyGroup is a group whose daemons fail at random and recover later.
type faultyGroup struct {
	*group
	repairs []*repairAt // by daemon
	counts  map[string]int
}

// A repairAt ends a fault.
type repairAt struct {
	at     time.Time
	repair func()
}

// strike damages a daemon that works, or the database. A lease lasts 30 s: most faults are
// shorter, some longer.
func (g *faultyGroup) strike(jobs []*job) {
	g.Helper()
	kinds := []string{"killed", "killed", "lost", "hung", "separated", "stopped", "database"}
	kind := kinds[rand.N(len(kinds))]
	n := rand.N(len(g.daemons))
	if g.repairs[n] != nil {
		return
	}
	h := g.daemons[n]
	g.counts[kind]++
	var repair func()
	switch kind {
	case "killed":
		h.kill()
		repair = h.start
	case "lost":
		g.loseHost(h, jobs...)
		repair = h.start
	case "hung":
		h.signal(syscall.SIGSTOP)
		repair = func() { h.signal(syscall.SIGCONT) }
	case "separated":
		g.separate(n)
		repair = func() { g.join(n) }
	case "stopped":
		h.stop()
		repair = h.start
	case "database":
		g.server.Kill(g, rand.N(5*time.Second))
		return
	}
	length := rand.N(2 * time.Second)
	if rand.N(3) == 0 {
		length = rand.N(time.Minute)
	}
	g.repairs[n] = &repairAt{time.Now().Add(length), repair}
}

// loseHost kills a daemon with its agents and all processes of its jails, except in those of jobs.
func (g *group) loseHost(h *daemonHarness, jobs ...*job) {
	g.Helper()
	desks := map[string]bool{}
	for _, j := range jobs {
		desks[string(j.desk)] = true
	}
	jails, err := client.Collect(h.Jails(context.Background(), client.JailFilter{Nodes: "self"}))
	if err != nil {
		g.Fatal(err)
	}
	h.kill()
	pids := h.agents()
	for _, j := range jails {
		if !desks[string(j.ID)] && j.State != "stopped" {
			pids = append(pids, h.initsOf(j.ID)...)
		}
	}
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

func (h *daemonHarness) signal(s syscall.Signal) {
	h.Helper()
	if err := h.cmd.Process.Signal(s); err != nil {
		h.Fatal(err)
	}
}

// repairDue ends the faults whose time is over, or all.
func (g *faultyGroup) repairDue(all bool) {
	for n, r := range g.repairs {
		if r != nil && (all || time.Now().After(r.at)) {
			r.repair()
			g.repairs[n] = nil
		}
	}
}

// In TestSoakOfFleet, five nodes of a fleet share schedules for half an hour. Daemons are killed,
// hang, lose the database, or lose all processes of their jails, several at once and some longer
// than their lease, and the database is killed. Each due time must start one run, and each run must end
// once and perform its actions once.
func TestSoakOfFleet(t *testing.T) {
	onlyThorough(t)
	const runs, length = 500, 30 * time.Minute
	objects := url.URL{Scheme: "file", Path: t.TempDir()}
	g := &faultyGroup{group: openFleetGroup(t, 5, modelOfASoak, "objects: "+objects.String(), "checkpoints: {steps: 1}"), counts: map[string]int{}}
	g.repairs = make([]*repairAt, len(g.daemons))
	jobs := []*job{
		{session: "sess-1", model: "thinks", spawner: "process", every: 10 * time.Second},
		{session: "sess-2", model: "thinks", spawner: "process", every: 20 * time.Second},
		{session: "sess-a", model: "writes", spawner: "process", every: 20 * time.Second},
		{session: "sess-b", model: "writes", spawner: "bwrap", every: 20 * time.Second},
		{session: "sess-j", model: "counts", spawner: "jail", every: 15 * time.Second},
	}
	g.desk(g.daemons[1], jobs[2])
	g.desk(g.daemons[2], jobs[3])
	for i, j := range jobs {
		g.begin(g.daemons[i], j)
	}
	began := time.Now()
	for time.Since(began) < length || g.count(jobs) < runs {
		if time.Since(began) > 3*length {
			var logs strings.Builder
			for _, h := range g.daemons {
				fmt.Fprintf(&logs, "%s\n", h.log)
			}
			g.Fatalf("%d runs in %s\n%s", g.count(jobs), time.Since(began), &logs)
		}
		time.Sleep(time.Second + rand.N(3*time.Second))
		g.repairDue(false)
		g.strike(jobs)
	}
	g.repairDue(true)
	g.Logf("faults: %v in %s", g.counts, time.Since(began).Round(time.Second))
	g.checkJobs(jobs)
	g.Logf("the outcome of %d commands is unknown", g.unknown)
	if g.unknown > g.counts["lost"] {
		g.Errorf("the outcome of %d commands is unknown, but only %d daemons lost their jails", g.unknown, g.counts["lost"])
	}
}

// TestThousandJails creates a hundred jails on each of ten daemons.
func TestThousandJails(t *testing.T) {
	onlyThorough(t)
	const each = 100
	g := openFleetGroup(t, 10, modelOfASoak)
	first := g.daemons[0]
	token, err := os.ReadFile(filepath.Join(first.data, "token"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := client.New(client.Options{Addr: "unix://" + filepath.Join(first.data, "glasshouse.sock"), Token: strings.TrimSpace(string(token))})
	if err != nil {
		t.Fatal(err)
	}
	median := func(h *daemonHarness, jails ...id.Jail) time.Duration {
		t.Helper()
		var took []time.Duration
		for n := range 200 {
			began := time.Now()
			h.sh(jails[n%len(jails)], "true")
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	alone := first.running(wire.CreateJail{})
	idle := median(first, alone.ID)

	began := time.Now()
	var wg sync.WaitGroup
	jails := make([][]id.Jail, len(g.daemons))
	for n := range g.daemons {
		wg.Go(func() {
			for len(jails[n]) < each {
				j, err := all.At(fmt.Sprintf("n%d", n)).CreateJail(t.Context(), wire.CreateJail{Start: true})
				if err != nil {
					t.Errorf("jail %d of node %d: %v", len(jails[n]), n, err)
					return
				}
				jails[n] = append(jails[n], j.ID)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	created := time.Since(began)
	busy := median(first, jails[0]...)
	t.Logf("%d jails created in %s; exec %s alone, %s with all", len(g.daemons)*each, created.Round(time.Second), idle.Round(10*time.Microsecond), busy.Round(10*time.Microsecond))

	var want []id.Jail
	for n, at := range jails {
		want = append(want, at...)
		for _, j := range at {
			if got := g.daemons[n].sh(j, "echo here"); got != "here" {
				t.Errorf("jail %s of node %d prints %q", j, n, got)
			}
		}
	}
	want = append(want, alone.ID)
	var got []id.Jail
	if !within(time.Minute, func() bool { // the index is behind the nodes
		listed, err := client.Collect(all.Jails(t.Context(), client.JailFilter{Nodes: "all"}))
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, j := range listed {
			if j.State == "running" {
				got = append(got, j.ID)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		return slices.Equal(got, want)
	}) {
		t.Errorf("%d running jails are listed, want %d", len(got), len(want))
	}
}

// TestFrontKilledDuringCreates kills a front end while it creates a jail on a node, and the node
// while it does, at different moments. A repeated request returns the jail that the first one created,
// and the index has the same jails as the nodes.
func TestFrontKilledDuringCreates(t *testing.T) {
	onlyThorough(t)
	f, one, two, front := openFleet(t, fmt.Sprintf("rootfs: {default: {dir: %q}}\n", backendtest.Rootfs(t)))
	const kills = 30
	var want []id.Jail
	for n := range kills {
		victim := front
		if n%3 == 2 {
			victim = []*fleetNode{one, two}[n/3%2]
		}
		key := fmt.Sprint("create-", n)
		var first id.Jail
		var wg sync.WaitGroup
		wg.Go(func() { first, _ = front.createWithKey(f.token, key) })
		time.Sleep(time.Duration(n*5) * time.Millisecond)
		victim.kill()
		wg.Wait()
		victim.start()
		var again id.Jail
		var err error
		if !within(30*time.Second, func() bool { // the first request may still be executed
			again, err = front.createWithKey(f.token, key)
			return err == nil
		}) {
			t.Fatalf("kill %d: repeated request: %v", n, err)
		}
		if first != "" && first != again {
			t.Errorf("kill %d: the repeated request has created jail %s beside %s", n, again, first)
		}
		want = append(want, again)
	}
	slices.Sort(want)
	list := func(n *fleetNode, nodes string) (ids []id.Jail) {
		t.Helper()
		all, err := client.Collect(n.as(f.token, "").Jails(t.Context(), client.JailFilter{Nodes: nodes}))
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range all {
			ids = append(ids, j.ID)
		}
		return ids
	}
	have := slices.Sorted(slices.Values(append(list(one, "self"), list(two, "self")...)))
	if !slices.Equal(have, want) {
		t.Errorf("the nodes have %d jails, want one of each of %d requests", len(have), len(want))
	}
	var indexed []id.Jail
	if !within(2*time.Minute, func() bool {
		indexed = slices.Sorted(slices.Values(list(front, "all")))
		return slices.Equal(indexed, want)
	}) {
		t.Errorf("the index has %d jails, want %d", len(indexed), len(want))
	}
}
