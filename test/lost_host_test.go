package test_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/object/objecttest"
)

// modelOfLines is a scripted model whose agent appends a line in each step, and once creates a
// task outside of its jail.
func modelOfLines(lines int) string {
	var b strings.Builder
	b.WriteString(`
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. do it"}]
  - when: {user: "carry out the plan"}
    turns:
`)
	for n := range lines {
		fmt.Fprintf(&b, "      - {delay: 700ms, calls: [{tool: bash, arguments: {command: \"echo %d >> lines\"}}]}\n", n)
		if n == 5 {
			b.WriteString("      - {calls: [{tool: create_task, arguments: {title: \"Look again\"}}]}\n")
		}
	}
	b.WriteString("      - {text: \"done\", delay: 1s}\n")
	return b.String()
}

// startLines starts runs of modelOfLines.
func (h *daemonHarness) startLines(n int) (runs []id.Run) {
	h.Helper()
	for n := range n {
		r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "do it", Session: fmt.Sprintf("sess-%d", n), Agent: &wire.RunAgent{Spawner: "jail", Keep: true, Jail: &wire.CreateJail{
			Policy: allowed(),
		}}})
		if err != nil {
			h.Fatal(err)
		}
		runs = append(runs, r.ID)
	}
	return runs
}

// checkLines waits until the runs are done, and checks that each line was written once and in order,
// and each task created once.
func (g *group) checkLines(h *daemonHarness, runs []id.Run, lines int) (done []wire.Run) {
	g.Helper()
	var want []string
	for n := range lines {
		want = append(want, fmt.Sprint(n))
	}
	for _, r := range runs {
		got := h.settled(r, "done", "failed")
		if got.State != "done" {
			g.Errorf("run = %+v, want it done\n%s", got, h.log)
		}
		if text := h.sh(got.Jail, "cat /workspace/lines"); !slices.Equal(strings.Fields(text), want) {
			g.Errorf("lines of run %s = %q, want each once and in order\n%s", r, text, h.log)
		}
		done = append(done, got)
	}
	tasks, err := g.db.Autonomy().Tasks(g.Context(), autonomy.TaskFilter{Limit: 100})
	if err != nil || len(tasks) != len(runs) {
		g.Errorf("%d tasks, %v, want one of each run", len(tasks), err)
	}
	return done
}

// TestLostHost kills a daemon and everything in its jails, and removes its programs and memory
// images. Another daemon continues the runs from the snapshots in the object store, although the
// steps after the snapshot are repeated.
func TestLostHost(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a lease to expire: runs without -short")
	}
	objects := url.URL{Scheme: "file", Path: t.TempDir()}
	if thorough {
		continueElsewhere(t, objects.String(), 20, 40)
	} else {
		continueElsewhere(t, objects.String(), 3, 10)
	}
}

// TestLostHostWithUnreliableObjectStore repeats TestLostHost with a service that fails half of all
// requests.
func TestLostHostWithUnreliableObjectStore(t *testing.T) {
	onlyThorough(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "me")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	var faults []func(http.Handler) http.Handler
	for _, fail := range objecttest.Faults {
		faults = append(faults, fail)
	}
	var failed atomic.Int64
	continueElsewhere(t, objecttest.Service(t, objecttest.FailHalf(&failed, faults...)), 5, 40)
	t.Logf("%d requests failed", failed.Load())
}

// continueElsewhere loses a host with runs, and checks how the other continues them.
func continueElsewhere(t *testing.T, objects string, n, lines int) {
	g := openGroup(t, 2, modelOfLines(lines), fmt.Sprintf("objects: %q", objects), "checkpoints: {steps: 4}")
	a, b := g.daemons[0], g.daemons[1]
	b.kill() // now daemon a owns all runs
	runs := a.startLines(n)
	// The run has steps after its newest copy, among them the task.
	late := func(r id.Run) bool {
		now, err := a.Client.Run(t.Context(), r)
		return err == nil && now.RemoteCheckpoint != "" && now.Steps >= 12
	}
	for _, r := range runs {
		if !within(2*time.Minute, func() bool { return late(r) }) {
			now, err := a.Client.Run(t.Context(), r)
			t.Fatalf("no copy of a snapshot after two minutes: %+v, %v\n%s", now, err, a.log)
		}
	}
	old := map[id.Run]id.Jail{}
	for _, r := range runs {
		now, err := a.Client.Run(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if now.State != "active" {
			t.Fatalf("run %s is %s before the host is lost", r, now.State)
		}
		old[r] = now.Jail
	}
	g.loseHost(a)
	lost := time.Now()
	for _, name := range []string{"agent", "pages", "run/hot"} {
		os.RemoveAll(filepath.Join(a.data, name))
	}
	b.start()
	for _, r := range runs {
		if !within(2*time.Minute, func() bool {
			now, err := b.Client.Run(t.Context(), r)
			return err == nil && now.Jail != "" && now.Jail != old[r]
		}) {
			now, err := b.Client.Run(t.Context(), r)
			t.Fatalf("run = %+v, %v, want it in another jail\n%s", now, err, b.log)
		}
	}
	t.Logf("%d runs continued within %s; the lease lasts 30 s", n, time.Since(lost).Round(100*time.Millisecond))
	for _, r := range g.checkLines(b, runs, lines) {
		if r.Jail == old[r.ID] || r.Restarts != 0 {
			t.Errorf("run = %+v, want it done in another jail, with the same process\n%s", r, b.log)
		}
	}
}

// TestRunsMove moves the jails of running agents to another node, and back. Nothing is repeated.
func TestRunsMove(t *testing.T) {
	const lines = 20
	objects := url.URL{Scheme: "file", Path: t.TempDir()}
	g := openFleetGroup(t, 2, modelOfLines(lines), fmt.Sprintf("objects: %q", objects.String()))
	a, b := g.daemons[0], g.daemons[1]
	b.kill() // now daemon a owns all runs
	runs := a.startLines(2)
	get := func(r id.Run) wire.Run {
		t.Helper()
		now, err := a.Client.Run(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	for _, r := range runs {
		if !within(time.Minute, func() bool { return get(r).Steps >= 6 }) {
			t.Fatalf("run = %+v, want it to work\n%s", get(r), a.log)
		}
	}
	b.start()
	for n, to := range []string{"n1", "n0"} {
		from := g.daemons[n]
		for _, r := range runs {
			was := get(r)
			if moved, err := from.MoveJail(t.Context(), was.Jail, to); err != nil || moved.Name != to {
				t.Fatalf("move %d of the jail of %+v = %+v, %v\n%s\n%s", n, was, moved, err, a.log, b.log)
			}
			now := get(r)
			if now.State != "active" || now.Jail == was.Jail {
				t.Errorf("after a move the run is %+v, want it in another jail", now)
			}
			if j, err := from.Jail(t.Context(), was.Jail); err != nil || j.State != "stopped" {
				t.Errorf("the jail of before is %+v, %v; want it stopped", j, err)
			}
		}
	}
	for _, r := range g.checkLines(a, runs, lines) {
		if r.Restarts != 0 {
			t.Errorf("run = %+v, want it done with the same process", r)
		}
		all, err := g.db.Runs().Steps(t.Context(), run.StepFilter{Run: r.ID, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		tools := 0
		for _, s := range all {
			if s.Kind == run.Tool {
				tools++
			}
		}
		if tools != lines+1 {
			t.Errorf("run %s has %d steps with tools, want %d: none is repeated", r.ID, tools, lines+1)
		}
	}
}

// TestKillsOfDatabase kills the database every ten seconds for five minutes.
func TestKillsOfDatabase(t *testing.T) {
	onlyThorough(t)
	const lines = 60
	g := openGroup(t, 2, modelOfLines(lines))
	a := g.daemons[0]
	runs := a.startLines(50)
	kills, hits := 0, 0
	for began := time.Now(); time.Since(began) < 5*time.Minute; kills++ {
		time.Sleep(10 * time.Second)
		if now, err := a.Client.Run(t.Context(), runs[len(runs)-1]); err == nil && now.State == "active" {
			hits++
		}
		g.server.Kill(t, 0)
	}
	t.Logf("%d kills, %d of them while the last run was active", kills, hits)
	if hits == 0 {
		t.Error("the runs ended before the first kill")
	}
	g.checkLines(a, runs, lines)
}
