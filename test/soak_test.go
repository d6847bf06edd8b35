package test_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/agents/run"
	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/store"
	"glasshouse/store/postgrestest"
)

// modelOfASoak is a scripted model whose name selects its behaviour.
const modelOfASoak = `
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. do it"}]
  - when: {user: "carry out the plan", model: thinks}
    turns: [{text: "done"}]
  - when: {user: "carry out the plan", model: writes}
    turns:
      - calls: [{tool: bash, arguments: {command: "echo line >> /root/log"}}]
      - text: "done"
  - when: {user: "carry out the plan", model: counts}
    turns:
      - calls: [{tool: bash, arguments: {command: "echo one >> count"}}]
      - calls: [{tool: bash, arguments: {command: "echo two >> count; cat count"}}]
      - text: "done"
`

const allowAll = `{"permission": {"*": "allow"}}`

// allowed returns a policy that allows all actions.
func allowed() *wire.Policy {
	return &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: allowAll}}, Level: 3, Match: "last"}
}

// A group is several complete daemons with one PostgreSQL database.
type group struct {
	*testing.T
	daemons []*daemonHarness
	lines   []*line      // from each daemon to the database
	db      *store.Store // the shared database
	server  *postgrestest.Server

	unknown int // commands in flight when all processes of their jail were lost
}

// openGroup starts n daemons. more are further lines of the section gateway of their
// configuration.
func openGroup(t *testing.T, n int, script string, more ...string) *group {
	key := fmt.Sprintf("key_file: %q", filepath.Join(t.TempDir(), "shared.key"))
	return newGroup(t, n, script, append(more, key), func(int) string { return "" })
}

// openFleetGroup is like openGroup, but the daemons are nodes of a fleet.
func openFleetGroup(t *testing.T, n int, script string, more ...string) *group {
	keys := fleetKeys(t)
	return newGroup(t, n, script, more, func(i int) string {
		return fmt.Sprintf("fleet: {listen: %q, name: n%d, keys: %q}\n", unusedAddr(t), i, keys)
	})
}

// newGroup starts n daemons. The configuration of each has the lines of gateway in that section,
// and the sections that the function returns.
func newGroup(t *testing.T, n int, script string, gateway []string, sections func(n int) string) *group {
	t.Helper()
	server := postgrestest.Start(t)
	shared := server.URL(t)
	at, err := url.Parse(shared)
	if err != nil {
		t.Fatal(err)
	}
	config := models(t, script)
	for _, line := range gateway {
		config += "  " + line + "\n"
	}
	g := &group{T: t, server: server}
	for i := range n {
		l := newLine(t, filepath.Join(at.Query().Get("host"), ".s.PGSQL.5432"))
		db := url.URL{Scheme: "postgres", User: url.User(at.Query().Get("user")), Host: l.addr, Path: at.Path, RawQuery: "sslmode=disable"}
		g.lines = append(g.lines, l)
		g.daemons = append(g.daemons, open(t, config+fmt.Sprintf("  db: %q\npool: {size: 0}\n", db.String())+sections(i)))
	}
	g.db, err = store.Open(t.Context(), shared)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.db.Close() })
	return g
}

// A job is a schedule whose runs are counted.
type job struct {
	session, model, spawner string
	every                   time.Duration
	schedule                id.Schedule

	// The jail of its session, and the daemon that has it; "": each run has a jail of its own, or none.
	desk id.Jail
	at   *daemonHarness
}

// desk creates the session of a job, whose runs work in a jail of one daemon.
func (g *group) desk(h *daemonHarness, j *job) {
	g.Helper()
	j.desk, j.at = h.running(wire.CreateJail{Session: j.session, Policy: allowed()}).ID, h
	if _, err := h.OpenSession(h.Context(), wire.OpenSession{ID: j.session, Jail: j.desk}); err != nil {
		g.Fatal(err)
	}
}

func (g *group) begin(h *daemonHarness, j *job) {
	g.Helper()
	r, err := h.StartRun(h.Context(), wire.StartRun{
		Goal: "do it", Session: j.session, Schedule: "@every " + j.every.String(), Missed: "all", Overlap: "allow",
		Agent: &wire.RunAgent{Model: j.model, Spawner: j.spawner},
	})
	if err != nil {
		g.Fatal(err)
	}
	j.schedule = r.Schedule
}

// runs returns the runs that a schedule has started.
func (g *group) runs(j *job) []run.Run {
	g.Helper()
	var all []run.Run
	for f := (run.Filter{Session: j.session, Limit: 1000}); ; {
		list, err := g.db.Runs().Runs(g.Context(), f)
		if err != nil {
			g.Fatal(err)
		}
		for _, r := range list {
			f.After = r.ID
			if r.Schedule == string(j.schedule) && !strings.HasPrefix(r.Key, "schedule/") {
				all = append(all, r)
			}
		}
		if len(list) < f.Limit {
			return all
		}
	}
}

// fired checks that a schedule has started exactly one run for each due time, and returns the
// runs.
func (g *group) fired(j *job) []run.Run {
	g.Helper()
	runs := g.runs(j)
	var due []time.Time
	for _, r := range runs {
		at, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(r.Key, string(j.schedule)+"/"))
		if err != nil {
			g.Errorf("run %s has the key %s", r.ID, r.Key)
			continue
		}
		due = append(due, at)
	}
	slices.SortFunc(due, time.Time.Compare)
	s, err := g.db.Schedules().Get(g.Context(), j.schedule)
	if err != nil {
		g.Fatal(err)
	}
	times, err := s.Spec.Times(s.Since, len(due)+100)
	if err != nil {
		g.Fatal(err)
	}
	want := slices.IndexFunc(times, func(at time.Time) bool { return s.Last == nil || at.After(*s.Last) })
	for i := 1; i < len(due); i++ {
		if d := due[i].Sub(due[i-1]); d != j.every {
			g.Errorf("%s: interval of %v between the due times %s and %s", j.session, d, due[i-1], due[i])
		}
	}
	if c := s.Counts; len(due) != want || c.Fired != int64(want) || c.Missed+c.Skipped+c.Failed != 0 || s.Error != "" {
		g.Errorf("%s: %d due times, %d runs, counters %+v %s", j.session, want, len(due), c, s.Error)
	}
	return runs
}

// ends checks that each run ended once and as expected, and performed its actions once.
func (g *group) ends(j *job, runs []run.Run) {
	g.Helper()
	began, ended := map[id.Run]int{}, map[id.Run]int{}
	for after := int64(0); ; {
		list, err := g.db.Runs().Events(g.Context(), j.session, after, 1000)
		if err != nil {
			g.Fatal(err)
		}
		for _, e := range list {
			after++
			if e.Seq != after {
				g.Fatalf("%s: event %d follows event %d", j.session, e.Seq, after-1)
			}
			switch {
			case e.Kind == run.RunCreated:
				began[e.Run]++
			case e.Kind == run.RunMoved && strings.Contains(string(e.Body), `"to":"done"`):
				ended[e.Run]++
			}
		}
		if len(list) == 0 {
			break
		}
	}
	said := map[id.Run]int{}
	for after := int64(0); ; {
		list, err := g.db.Runs().Messages(g.Context(), j.session, run.Out, after, 1000)
		if err != nil {
			g.Fatal(err)
		}
		for _, m := range list {
			said[m.Run]++
			after = m.Seq
		}
		if len(list) == 0 {
			break
		}
	}
	for _, r := range runs {
		if r.State != run.Done || string(r.Result) != `"done"` || began[r.ID] != 1 || ended[r.ID] != 1 || said[r.ID] != 1 {
			g.Errorf("%s: run %s is %s %s (%s), began %d times and ended %d times, showed its plan %d times, restarts %d",
				j.session, r.ID, r.State, r.Result, r.Reason, began[r.ID], ended[r.ID], said[r.ID], r.Restarts)
		}
		g.journal(j, r)
	}
}

// journal checks the step log of a run.
func (g *group) journal(j *job, r run.Run) {
	g.Helper()
	steps, err := g.db.Runs().Steps(g.Context(), run.StepFilter{Run: r.ID, Limit: 1000})
	if err != nil {
		g.Fatal(err)
	}
	tools, output, want := 0, json.RawMessage(nil), "one two"
	for _, s := range steps {
		if s.State == run.StepFailed && strings.Contains(string(s.Output), "whether the command had effects is unknown") {
			g.unknown++
			tools++
			want = "" // it is not repeated, and the next line follows
			continue
		}
		// A step in flight in a lost jail has no outcome.
		lost := s.State == run.Begun && s.Kind == run.Tool && len(r.Rewound) > 0
		if s.State != run.StepDone && !lost {
			g.Errorf("%s: step %s %s of run %s is %s: %s", j.session, s.Key, s.Name, r.ID, s.State, s.Output)
		}
		if s.Kind == run.Tool {
			tools, output = tools+1, s.Output
		}
	}
	if j.model == "counts" {
		var out struct{ Stdout string }
		err := json.Unmarshal(output, &out)
		got := strings.Join(strings.Fields(out.Stdout), " ")
		if want != "" && (err != nil || got != want) || strings.Count(got, "one") > 1 || strings.Count(got, "two") > 1 {
			g.Errorf("run %s: step output = %s, rewinds %+v, last checkpoint %s", r.ID, output, r.Rewound, r.Checkpoint)
			for _, s := range steps {
				g.Logf("step %d %s %s: %s, command %s, from %s to %s: %s", s.N, s.Key, s.Name, s.State, s.Ref, s.Began, s.Ended, s.Output)
			}
		}
	}
	// After the loss of a host, steps in its jail are repeated.
	if want := map[string]int{"thinks": 0, "writes": 1, "counts": 2}[j.model]; tools < want || tools > want && len(r.Rewound) == 0 {
		g.Errorf("%s: run %s used %d tools, want %d", j.session, r.ID, tools, want)
	}
}

// chains checks that the start and the end of each run are recorded once, in one of the two
// audit logs, and that both verify.
func (g *group) chains(runs []run.Run) {
	g.Helper()
	for _, kind := range []string{"run.started", "run.ended"} {
		said := map[string]int{}
		for _, h := range g.daemons {
			for e, err := range h.Chain(g.Context(), url.Values{"kind": {kind}}) {
				if err != nil {
					g.Fatal(err)
				}
				said[e.Run]++
			}
		}
		for _, r := range runs {
			if said[string(r.ID)] != 1 {
				g.Errorf("%s of run %s is recorded %d times, want once", kind, r.ID, said[string(r.ID)])
			}
		}
	}
	for _, h := range g.daemons {
		if rep, err := h.VerifyChain(g.Context(), true); err != nil || rep.Entries == 0 || rep.Bad != nil {
			g.Errorf("verifying the audit log: %+v, %v", rep, err)
		}
	}
}

// agents returns the process IDs of a daemon's agents outside of jails.
func (h *daemonHarness) agents() (pids []int) {
	h.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, at := range all {
		if text, _ := os.ReadFile(at); strings.Contains(string(text), h.data+"/run/agents/") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(at)))
			if err != nil {
				h.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// strike kills one of the two daemons; occasionally a fault affects both.
func (g *group) strike(nth int) {
	g.Helper()
	switch nth % 8 {
	case 1: // the database restarts
		g.server.Restart(g, rand.N(3*time.Second))
	case 3: // both stop in an orderly way
		for _, h := range g.daemons {
			h.cmd.Process.Signal(syscall.SIGTERM)
		}
		for _, h := range g.daemons {
			if err := h.cmd.Wait(); err != nil {
				g.Errorf("a daemon exited with %v\n%s", err, h.log)
			}
		}
		for _, h := range g.daemons {
			h.start()
		}
	default:
		h := g.daemons[rand.N(2)]
		h.kill()
		time.Sleep(rand.N(time.Second))
		h.start()
	}
}

// In TestSoakOfScheduledRunsOnTwoDaemons, two daemons share schedules in one PostgreSQL database,
// and the test kills one of them every few seconds. Each due time must start one run, and each run
// must end once and perform its actions once. The database restarts, and both daemons sometimes
// stop simultaneously.
func TestSoakOfScheduledRunsOnTwoDaemons(t *testing.T) {
	onlyThorough(t)
	const want, kills = 500, 1000
	g := openGroup(t, 2, modelOfASoak)
	a, b := g.daemons[0], g.daemons[1]
	jobs := []*job{
		{session: "sess-1", model: "thinks", spawner: "process", every: time.Second},
		{session: "sess-2", model: "thinks", spawner: "process", every: 2 * time.Second},
		{session: "sess-a", model: "writes", spawner: "process", every: 2 * time.Second},
		{session: "sess-b", model: "writes", spawner: "bwrap", every: 3 * time.Second},
		{session: "sess-j", model: "counts", spawner: "jail", every: 8 * time.Second},
	}
	g.desk(a, jobs[2])
	g.desk(b, jobs[3])
	for i, j := range jobs {
		g.begin(g.daemons[i%2], j)
	}
	killed := 0
	began := time.Now()
	for g.count(jobs) < want {
		if time.Since(began) > time.Duration(want)*3*time.Second {
			t.Fatalf("%d runs in %s\n%s\n%s", g.count(jobs), time.Since(began), a.log, b.log)
		}
		time.Sleep(time.Second + rand.N(3*time.Second))
		if killed < kills {
			g.strike(killed)
			killed++
		}
	}
	t.Logf("%d kills in %s", killed, time.Since(began).Round(time.Second))
	g.checkJobs(jobs)
	if g.unknown > 0 {
		g.Errorf("the outcome of %d commands is unknown, although no jail was lost", g.unknown)
	}
}

// count returns the number of runs of all jobs, or 0 if one has none.
func (g *group) count(jobs []*job) (n int) {
	g.Helper()
	for _, j := range jobs {
		runs := len(g.runs(j))
		if runs == 0 { // a killed daemon's lease expires after 30 s
			return 0
		}
		n += runs
	}
	return n
}

// checkJobs stops the schedules, waits until all runs have ended, and checks them.
func (g *group) checkJobs(jobs []*job) {
	g.Helper()
	began := time.Now()
	for _, j := range jobs {
		if _, err := g.daemons[0].PauseSchedule(g.Context(), j.schedule, true); err != nil {
			g.Fatal(err)
		}
	}
	var all []run.Run
	unsettled := func() (left []string) {
		all = nil
		for _, j := range jobs {
			s, err := g.db.Schedules().Get(g.Context(), j.schedule)
			if err != nil {
				g.Fatal(err)
			}
			if s.Firing != nil || s.Claim != "" {
				left = append(left, fmt.Sprintf("%s fires", j.session))
			}
			for _, r := range g.runs(j) {
				all = append(all, r)
				if !r.State.Ended() {
					left = append(left, fmt.Sprintf("%s %s is %s %s %s", j.session, r.ID, r.State, r.Why, r.Reason))
				}
			}
		}
		return left
	}
	for last, since := unsettled(), time.Now(); len(last) > 0; time.Sleep(time.Second) {
		left := unsettled()
		if len(left) < len(last) { // the duration depends on the machine
			since = time.Now()
		}
		last = left
		if time.Since(since) > 2*time.Minute {
			g.Errorf("no progress for two minutes: %q", left)
			break
		}
	}
	g.Logf("%d runs, settled after %s", len(all), time.Since(began).Round(time.Second))
	for _, j := range jobs {
		g.ends(j, g.fired(j))
		if j.at != nil {
			if n := j.at.sh(j.desk, "grep -c line /root/log || true"); n != strconv.Itoa(len(g.runs(j))) {
				g.Errorf("%s: %s lines written by %d runs, want one each", j.session, n, len(g.runs(j)))
			}
		}
	}
	g.chains(all)
	g.checkNothingLeft(jobs...)
}

// checkNothingLeft checks that no agent and no jail of a run outlives its run. The jails of jobs may.
func (g *group) checkNothingLeft(jobs ...*job) {
	g.Helper()
	going := func() (left []string) {
		for _, h := range g.daemons {
			for _, pid := range h.agents() {
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				left = append(left, fmt.Sprintf("%d %.80q", pid, line))
			}
			all, err := client.Collect(h.Jails(context.Background(), client.JailFilter{Nodes: "self"}))
			if err != nil {
				g.Fatal(err)
			}
			for _, j := range all {
				isDesk := slices.ContainsFunc(jobs, func(at *job) bool { return at.desk == j.ID })
				if !isDesk && j.State != "stopped" {
					left = append(left, fmt.Sprintf("jail %s is %s: %v", j.ID, j.State, j.Labels))
				}
			}
		}
		return left
	}
	if !within(time.Minute, func() bool { return len(going()) == 0 }) {
		g.Errorf("still running: %q", going())
	}
}

// TestRunTakeoverFromDeadDaemon kills one daemon while its runs are active: the other
// daemon finishes them. After a restart, the first daemon does not continue runs that it no
// longer owns.
func TestRunTakeoverFromDeadDaemon(t *testing.T) {
	onlyThorough(t) // waits for a lease to expire
	g := openGroup(t, 2, strings.ReplaceAll(modelOfASoak, `- text: "done"`, `- {text: "done", delay: 3s}`))
	a, b := g.daemons[0], g.daemons[1]
	desk := &job{session: "sess-desk"}
	g.desk(a, desk)
	var free, bound []id.Run
	b.kill() // now daemon a owns all runs
	for _, o := range []struct{ session, model, spawner string }{{"sess-1", "counts", "jail"}, {"sess-2", "counts", "jail"}, {"sess-desk", "writes", "process"}} {
		r, err := a.StartRun(t.Context(), wire.StartRun{Goal: "do it", Session: o.session, Agent: &wire.RunAgent{Model: o.model, Spawner: o.spawner}})
		if err != nil {
			t.Fatal(err)
		}
		if o.session == "sess-desk" {
			bound = append(bound, r.ID)
		} else {
			free = append(free, r.ID)
		}
	}
	for _, r := range free {
		if !within(time.Minute, func() bool {
			now, err := a.Client.Run(t.Context(), r)
			return err == nil && now.Steps >= 4
		}) {
			t.Fatalf("the run made no step\n%s", a.log)
		}
	}
	old := map[id.Run]id.Jail{}
	for _, r := range free {
		now, err := a.Client.Run(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		old[r] = now.Jail
	}
	a.kill()
	b.start()
	for _, r := range free {
		if got := b.settled(r, "done", "failed"); got.Result != "done" || got.Jail == old[r] {
			t.Errorf("%+v\n%s", got, b.log)
		}
		now, err := g.db.Runs().Run(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		g.journal(&job{session: now.Session, model: "counts"}, now)
	}
	for _, r := range bound { // their jail exists only on that host
		if got, err := b.Client.Run(t.Context(), r); err != nil || got.State != "active" {
			t.Errorf("%+v, %v\n%s", got, err, b.log)
		}
	}
	a.start()
	for _, r := range bound {
		if got := a.settled(r, "done", "failed"); got.Result != "done" {
			t.Errorf("%+v\n%s", got, a.log)
		}
	}
	if n := a.sh(desk.desk, "grep -c line /root/log || true"); n != "1" {
		t.Errorf("%s lines were written, want 1", n)
	}
	g.checkNothingLeft(desk)
}

// separate interrupts a daemon's connections to the database, and join restores them.
func (g *group) separate(daemon int) {
	g.lines[daemon].down.Store(true)
	g.lines[daemon].cut()
}

func (g *group) join(daemon int) { g.lines[daemon].down.Store(false) }

// A daemon without its database freezes the jails of its runs. After a short interruption it
// continues them; after a long one another daemon has taken over.
func TestDaemonWithoutDatabaseFreezesItsRuns(t *testing.T) {
	onlyThorough(t) // waits for leases to expire
	g := openGroup(t, 2, `
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. do it"}]
  - when: {user: "carry out the plan"}
    turns:
      - calls: [{tool: bash, arguments: {command: "for i in $(seq 400); do echo $i >> /root/lines; sleep 0.1; done; sort -u /root/lines | wc -l"}}]
      - text: "done"
`)
	a, b := g.daemons[0], g.daemons[1]
	begin := func(session string) wire.Run {
		t.Helper()
		r, err := a.StartRun(t.Context(), wire.StartRun{Goal: "do it", Session: session, Agent: &wire.RunAgent{Spawner: "jail"}})
		if err != nil {
			t.Fatal(err)
		}
		if !within(time.Minute, func() bool {
			now, err := a.Client.Run(t.Context(), r.ID)
			if err != nil || now.Steps == 0 { // the agent has not started
				return false
			}
			r = now
			j, err := a.Client.Jail(t.Context(), now.Jail)
			return err == nil && j.State == "running" && a.sh(now.Jail, "[ ! -s /root/lines ] || echo begun") == "begun"
		}) {
			t.Fatalf("the agent does not write\n%s", a.log)
		}
		return r
	}
	state := func(j id.Jail) string {
		got, err := a.Client.Jail(context.Background(), j)
		if err != nil {
			return err.Error()
		}
		return got.State
	}
	freezes := func(r wire.Run) {
		t.Helper()
		began := time.Now()
		g.separate(0)
		if !within(time.Minute, func() bool { return state(r.Jail) == "paused" }) {
			t.Fatalf("the jail is %s, want paused\n%s", state(r.Jail), a.log)
		}
		if took := time.Since(began); took > 22*time.Second {
			t.Errorf("the jail was frozen after %v, want at most 20 s after the last renewal", took)
		}
		if now, err := b.Client.Run(t.Context(), r.ID); err != nil || now.Jail != r.Jail {
			t.Errorf("run = %+v, %v, want that it is still in jail %s", now, err, r.Jail)
		}
	}

	short := begin("short")
	freezes(short)
	g.join(0)
	if !within(20*time.Second, func() bool { return state(short.Jail) == "running" }) {
		t.Errorf("the jail is %s, want running\n%s", state(short.Jail), a.log)
	}
	if got := a.settled(short.ID, "done", "failed"); got.Result != "done" || got.Jail != short.Jail {
		t.Errorf("run = %+v, want done in jail %s\n%s", got, short.Jail, a.log)
	}
	if now, err := g.db.Runs().Steps(t.Context(), run.StepFilter{Run: short.ID, Limit: 100}); err != nil || len(now) == 0 {
		t.Errorf("steps = %v, %v", now, err)
	}

	long := begin("long")
	freezes(long)
	got := b.settled(long.ID, "done", "failed")
	if got.Result != "done" || got.Jail == long.Jail {
		t.Errorf("run = %+v, want done in another jail than %s\n%s", got, long.Jail, b.log)
	}
	if s := state(long.Jail); s != "paused" {
		t.Errorf("the jail of the separated daemon is %s, want paused", s)
	}
	g.join(0)
	if !within(2*time.Minute, func() bool { return state(long.Jail) == "stopped" }) {
		t.Errorf("the jail is %s, want stopped, because its run has ended elsewhere\n%s", state(long.Jail), a.log)
	}
	g.checkNothingLeft()
}
