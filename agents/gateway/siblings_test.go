package gateway

import (
	"errors"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
	"glasshouse/policy/chain"
)

const permissiveRules = `{"permission": {"edit": "allow", "bash": "allow", "coordinate_sibling": "allow", "create_task": "allow", "request_resources": "allow"}}`

// newGroup creates two sessions of one group, each with a jail without a run.
func (env *testEnv) newGroup() (worker, reviewer Caller) {
	env.Helper()
	env.session("sess-w", "worker", "crew")
	env.session("sess-r", "reviewer", "crew")
	rules := policyOf(env.T, permissiveRules, "", policy.Intelligent)
	var callers [2]Caller
	for i, sid := range []string{"sess-w", "sess-r"} {
		var err error
		callers[i], err = env.g.callerIn(env.Context(), env.jailIn(sid, rules).ID)
		if err != nil {
			env.Fatal(err)
		}
	}
	return callers[0], callers[1]
}

// A sibling is found by the id of a jail without a run, too.
func TestCoordinateByJailSessionOrName(t *testing.T) {
	env := newTestEnv(t).open()
	worker, reviewer := env.newGroup()
	for _, to := range []string{string(reviewer.Jail), "sess-r", "reviewer"} {
		a, err := env.g.Coordinate(t.Context(), worker, autonomy.Ask{To: to, Action: "review", Context: to})
		if err != nil || a.State == autonomy.Refused {
			t.Errorf("Coordinate(%s) = %+v, %v, want it queued", to, a, err)
		}
	}
	stranger := env.jailIn("sess-x", nil)
	env.session("sess-x", "stranger", "others")
	for _, to := range []string{string(stranger.ID), "sess-x", "stranger", "j-00000000000", ""} {
		a, err := env.g.Coordinate(t.Context(), worker, autonomy.Ask{To: to, Action: "review"})
		if err != nil || a.State != autonomy.Refused || a.Remedy == "" {
			t.Errorf("Coordinate(%q) = %+v, %v, want it refused with a remedy", to, a, err)
		}
	}
	a, err := env.g.Coordinate(t.Context(), worker, autonomy.Ask{To: string(worker.Jail), Action: "review"})
	if err != nil || a.State != autonomy.Refused || !strings.Contains(a.Reason, "you") {
		t.Errorf("Coordinate with the caller itself = %+v, %v, want it refused", a, err)
	}
}

func TestSiblingsListJails(t *testing.T) {
	env := newTestEnv(t).open()
	worker, reviewer := env.newGroup()
	all, err := env.g.Siblings(t.Context(), worker)
	if err != nil || len(all) != 1 || all[0].Jail != reviewer.Jail || all[0].Name != "reviewer" {
		t.Errorf("Siblings = %+v, %v, want the reviewer in jail %s", all, err, reviewer.Jail)
	}
	if _, err := env.runs.CloseSession(t.Context(), "sess-r", "ann", ""); err != nil {
		t.Fatal(err)
	}
	if all, err := env.g.Siblings(t.Context(), worker); err != nil || len(all) != 0 {
		t.Errorf("Siblings after the session was closed = %+v, %v, want none", all, err)
	}
}

// A client in a jail without a run does not read the inbox of its session, into which the
// request is put immediately.
func TestSiblingRequestsOfJailWithoutRun(t *testing.T) {
	env := newTestEnv(t).open()
	worker, reviewer := env.newGroup()
	a, err := env.g.Coordinate(t.Context(), worker, autonomy.Ask{To: "reviewer", Action: "review", Context: "auth/login.ts"})
	if err != nil {
		t.Fatal(err)
	}
	env.await("the request is in the inbox", func() bool {
		list, err := env.runs.Messages(t.Context(), "sess-r", run.In, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 1
	})
	list, err := env.g.PendingRequests(t.Context(), reviewer, 20*time.Second)
	if err != nil || len(list) != 1 || list[0].Request != a.Request || list[0].From != "worker" || list[0].Context != "auth/login.ts" {
		t.Fatalf("PendingRequests = %+v, %v, want request %s", list, err, a.Request)
	}
	if _, err := env.g.Reply(t.Context(), reviewer, a.Request, "looks good"); err != nil {
		t.Fatal(err)
	}
	again, err := env.g.Coordinate(t.Context(), worker, autonomy.Ask{To: "reviewer", Action: "review", Context: "b", ReplyWithin: time.Millisecond})
	if err != nil || again.State == autonomy.Refused {
		t.Errorf("second request = %+v, %v, want it sent", again, err)
	}
}

func TestReplyReachesRequester(t *testing.T) {
	env := newTestEnv(t).open()
	worker, reviewer := env.newGroup()
	got := make(chan RequestOutcome, 1)
	go func() {
		a, err := env.g.Coordinate(t.Context(), worker, autonomy.Ask{To: string(reviewer.Jail), Action: "review", ReplyWithin: time.Minute})
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	var list []SiblingRequest
	env.await("the request is listed", func() bool {
		var err error
		list, err = env.g.PendingRequests(t.Context(), reviewer, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 1
	})
	if _, err := env.g.Reply(t.Context(), worker, list[0].Request, "mine"); err == nil {
		t.Error("Reply by a sibling other than the receiver = nil, want an error")
	}
	if _, err := env.g.Reply(t.Context(), reviewer, list[0].Request, "looks good"); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.State != autonomy.Answered || a.Answer != "looks good" {
		t.Errorf("Coordinate = %+v, want the reply looks good", a)
	}
	if got, want := env.decisions(), "coordinate_sibling: reviewer [AUTONOMOUS]"; !equal(got, []string{want}) {
		t.Errorf("decisions = %q, want %q", got, want)
	}
}

// Requests fail before they are sent, and while their senders wait.
func TestRequestToEndedRunFails(t *testing.T) {
	env := newTestEnv(t)
	leave := make(chan struct{})
	env.jails.script("review", func(p *process) int {
		select {
		case <-leave:
		case <-p.ctx.Done():
		}
		return 0
	})
	env.open()
	env.session("sess-w", "worker", "crew")
	env.session("sess-r", "reviewer", "crew")
	worker, err := env.g.callerIn(t.Context(), env.jailIn("sess-w", policyOf(t, permissiveRules, "", policy.Intelligent)).ID)
	if err != nil {
		t.Fatal(err)
	}
	r := env.order("sess-r", "review", Agent{Preset: "shell"})
	env.await("the reviewer runs", func() bool { return len(env.jails.processes()) == 1 })

	began := time.Now()
	got := make(chan RequestOutcome, 1)
	go func() {
		a, err := env.g.Coordinate(t.Context(), worker, autonomy.Ask{To: "reviewer", Action: "review", ReplyWithin: 5 * time.Minute})
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	env.await("the request is sent", func() bool {
		list, err := env.store.Autonomy().OpenRequests(t.Context(), "crew")
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 1
	})
	close(leave)
	env.awaitState(r.ID, run.Done)
	var a RequestOutcome
	select {
	case a = <-got:
	case <-time.After(time.Minute):
		t.Fatal("the request still waits a minute after the run has ended, want it to fail")
	}
	if took := time.Since(began); a.State != autonomy.Failed || !strings.Contains(a.Reason, "the run of reviewer has ended") || took > time.Minute {
		t.Errorf("request to a run that ends = %+v after %s, want failed because the run has ended", a, took)
	}
	a, err = env.g.Coordinate(t.Context(), worker, autonomy.Ask{To: "reviewer", Action: "review again", ReplyWithin: 5 * time.Minute})
	if err != nil || a.State != autonomy.Refused || !strings.Contains(a.Reason, "has ended: it is done") || a.Remedy == "" {
		t.Errorf("request to an ended run = %+v, %v, want it refused because the run has ended", a, err)
	}
	a, err = env.g.Coordinate(t.Context(), worker, autonomy.Ask{To: "reviewer", Action: "look later"})
	if err != nil || a.State == autonomy.Refused {
		t.Errorf("request without waiting = %+v, %v, want it sent: a later run may reply", a, err)
	}
}

// A request to a session without a run waits, since the session may get one.
func TestReadyOfSessionWithoutRun(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	env.session("sess-r", "reviewer", "crew")
	m := autonomy.Member{Session: "sess-r", Name: "reviewer", Group: "crew"}
	if no, err := env.g.Ready(t.Context(), m); no != nil || err != nil {
		t.Errorf("Ready of a session without a run = %+v, %v, want nil", no, err)
	}
	r := env.order("sess-r", "review", Agent{Preset: "shell"})
	if no, err := env.g.Ready(t.Context(), m); no != nil || err != nil {
		t.Errorf("Ready of an active run = %+v, %v, want nil", no, err)
	}
	if _, err := env.g.Cancel(t.Context(), r.ID, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if no, err := env.g.Ready(t.Context(), m); no == nil || err != nil {
		t.Errorf("Ready of a cancelled run = %+v, %v, want a refusal", no, err)
	}
	env.jailIn("sess-r", nil)
	if no, err := env.g.Ready(t.Context(), m); no != nil || err != nil {
		t.Errorf("Ready of a session with a running jail = %+v, %v, want nil", no, err)
	}
}

// The rules of the requesting run's policy agent apply.
func TestSiblingRequestsUsePolicyAgent(t *testing.T) {
	const rules = `{"permission": {"coordinate_sibling": "allow", "request_resources": "allow"},
	  "agent": {"reviewer": {"permission": {"coordinate_sibling": "deny", "request_resources": "deny"}}}}`
	env := newTestEnv(t).withoutLoop()
	env.session("sess-w", "worker", "crew")
	j := env.jailIn("sess-w", policyOf(t, rules, "", policy.Intelligent))
	r := env.order("sess-w", "x", Agent{Preset: "shell", PolicyAgent: ""})
	from := autonomy.Member{Jail: j.ID, Session: "sess-w", Agent: "shell", Group: "crew"}
	to := autonomy.Member{Session: "sess-r", Name: "reviewer", Group: "crew"}
	if allow, why, err := env.g.EvaluateRequest(t.Context(), from, to, "review", ""); !allow || err != nil {
		t.Errorf("MayAsk without a run = %v, %s, %v, want true", allow, why, err)
	}
	from.Run = r.ID
	if allow, why, err := env.g.EvaluateRequest(t.Context(), from, to, "review", ""); !allow || err != nil {
		t.Errorf("MayAsk of a run = %v, %s, %v, want true", allow, why, err)
	}
	if _, err := env.runs.Update(t.Context(), r.ID, func(d *run.Details) { d.Agent = mustJSON(t, Agent{Preset: "shell", PolicyAgent: "reviewer"}) }); err != nil {
		t.Fatal(err)
	}
	if allow, _, err := env.g.EvaluateRequest(t.Context(), from, to, "review", ""); allow || err != nil {
		t.Errorf("MayAsk as the agent reviewer = %v, %v, want false", allow, err)
	}
	allow, _, _, err := env.g.ApproveResources(t.Context(), from, autonomy.Limits{Memory: 512}, autonomy.Limits{Memory: 9000}, "much")
	if allow || err != nil {
		t.Errorf("ApproveResources as the agent reviewer = %v, %v, want false", allow, err)
	}
}

func TestCreateTaskDecidesRecordsAndWrites(t *testing.T) {
	env := newTestEnv(t).open()
	worker, _ := env.newGroup()
	b, err := env.g.CreateTask(t.Context(), worker, autonomy.NewTask{Title: "Add tests", At: time.Now()})
	if err != nil || !b.Created {
		t.Fatalf("CreateTask = %+v, %v, want it created", b, err)
	}
	if text, ok := env.jails.file(worker.Jail, "/work/"+b.Path); !ok || !strings.Contains(text, "Add tests") {
		t.Errorf("file %s = %q, %v, want the task", b.Path, text, ok)
	}
	if got := env.entries(chain.Decided); len(got) != 1 || got[0].Jail != worker.Jail {
		t.Errorf("entries = %+v, want one entry of jail %s", got, worker.Jail)
	}
	deny := env.jailIn("sess-w", policyOf(t, `{"permission": {"create_task": "deny"}}`, "", policy.Intelligent))
	if _, err := env.g.CreateTask(t.Context(), Caller{Jail: deny.ID, Session: "sess-w"}, autonomy.NewTask{Title: "x"}); !errors.Is(err, fault.Denied) {
		t.Errorf("CreateTask denied by a rule = %v, want denied", err)
	}
	if _, err := env.g.CreateTask(t.Context(), Caller{Session: "s"}, autonomy.NewTask{Title: "x"}); err == nil {
		t.Error("CreateTask without a jail = nil, want an error")
	}
}

// A request below the jail's own limits leaves those in force.
func TestAskResourcesKeepsOwnLimits(t *testing.T) {
	env := newTestEnv(t).open()
	env.session("s", "worker", "")
	j, err := env.jails.Create(t.Context(), jail.Spec{Start: true, Labels: map[string]string{LabelSession: "s"}, Policy: policyOf(t, permissiveRules, "", policy.Full),
		Limits: jail.Limits{CPUShares: 1024, MemoryMB: 2048, DiskMB: 1024, MaxPIDs: 128}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := env.g.callerIn(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	memory := func() int64 {
		t.Helper()
		now, err := env.jails.Get(t.Context(), j.ID)
		if err != nil {
			t.Fatal(err)
		}
		return now.Spec.Limits.MemoryMB
	}
	for _, tt := range []struct {
		ask  string
		want int64
	}{
		{`{"memory": "600Mi"}`, 2048}, {`{"memory": "4Gi"}`, 4096}, {`{"memory": "3Gi"}`, 3072}, {`{"memory": "1Gi"}`, 2048}, {`{"cpu": "2", "memory": "600Mi"}`, 2048},
	} {
		ch, err := env.g.AskResources(t.Context(), c, []byte(tt.ask))
		if err != nil || ch.Verdict != autonomy.Applied {
			t.Errorf("AskResources(%s) = %+v, %v, want applied", tt.ask, ch, err)
		}
		if got := memory(); got != tt.want || ch.To.Memory != tt.want {
			t.Errorf("memory after %s = %d MB, reported as %d MB, want %d MB", tt.ask, got, ch.To.Memory, tt.want)
		}
	}
	if now, err := env.jails.Get(t.Context(), j.ID); err != nil || milliCPU(now.Spec.Limits.CPUShares) != 2000 {
		t.Errorf("CPU shares = %d, %v, want the shares of 2 processors", now.Spec.Limits.CPUShares, err)
	}
}

func TestLimitJailReplacesTemporaryLimits(t *testing.T) {
	env := newTestEnv(t).open()
	worker, _ := env.newGroup()
	if _, err := env.resources.Ask(t.Context(), autonomy.Member{Jail: worker.Jail, Level: policy.Full}, autonomy.Limits{Memory: 1024}); err != nil {
		t.Fatal(err)
	}
	l, err := env.g.JailLimits(t.Context(), worker.Jail, 0)
	if err != nil || l.Now.MemoryMB != 1024 || l.Own.MemoryMB != 512 || l.Until.IsZero() || len(l.History) != 1 {
		t.Errorf("JailLimits = %+v, %v, want 1024 MB lent over 512 MB", l, err)
	}
	if _, err := env.g.LimitJail(t.Context(), worker.Jail, jail.Limits{MemoryMB: 768}, "ann"); err != nil {
		t.Fatal(err)
	}
	l, err = env.g.JailLimits(t.Context(), worker.Jail, 0)
	if err != nil || l.Now.MemoryMB != 768 || l.Own.MemoryMB != 768 || !l.Until.IsZero() {
		t.Errorf("JailLimits = %+v, %v, want 768 MB of its own and none lent", l, err)
	}
	if got := l.History[len(l.History)-1]; got.By != "ann" {
		t.Errorf("last change = %+v, want a change by ann", got)
	}
	if _, err := env.g.AskResources(t.Context(), Caller{Session: "s"}, []byte(`{"cpu": "1"}`)); err == nil {
		t.Error("AskResources without a jail = nil, want an error")
	}
	if _, err := env.g.AskResources(t.Context(), worker, []byte(`{"ram": "1"}`)); fault.KindOf(err) != fault.Invalid {
		t.Errorf("AskResources with an unknown resource = %v, want invalid", err)
	}
}

func TestBoundsUsageComparesSamples(t *testing.T) {
	env := newTestEnv(t).withoutLoop()
	j := env.jailIn("s", nil)
	b := &ResourceLimiter{Jails: env.jails}
	env.jails.mu.Lock()
	env.jails.stats[j.ID] = jail.Stats{CPU: time.Second, MemoryBytes: 100 << 20, CacheBytes: 40<<20 - 1, DiskBytes: 3 << 20, PIDs: 7}
	env.jails.mu.Unlock()
	u, err := b.Usage(t.Context(), j.ID)
	if want := (autonomy.Limits{Memory: 61, Disk: 3, PIDs: 7}); err != nil || u != want {
		t.Errorf("Usage = %+v, %v, want %+v", u, err, want)
	}
	b.mu.Lock()
	s := b.last[j.ID]
	s.at = s.at.Add(-100 * time.Second)
	b.last[j.ID] = s
	b.mu.Unlock()
	env.jails.mu.Lock()
	env.jails.stats[j.ID] = jail.Stats{CPU: 201 * time.Second}
	env.jails.mu.Unlock()
	u, err = b.Usage(t.Context(), j.ID)
	if err != nil || u.CPU < 1500 || u.CPU > 2000 {
		t.Errorf("Usage = %+v, %v, want nearly 2000 thousandths of a processor", u, err)
	}
	if err := env.jails.Delete(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Usage(t.Context(), j.ID); !errors.Is(err, fault.NotFound) || len(b.last) != 0 {
		t.Errorf("Usage of a deleted jail = %v with %d samples, want not found and 0 samples", err, len(b.last))
	}
}

var _ = id.Jail("")
