package govern

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
	"glasshouse/store/storetest"
)

const askPermissions = `{"bash": {"ls *": "allow", "rm *": "deny", "*": "ask"}}`

func execAsk(jid id.Jail, line string) Ask {
	return Ask{Question: policy.Question{Subject: policy.Subject{Jail: jid}, Action: policy.ActionRun, Resource: line}}
}

// judgeAsync judges a question in the background.
func (h *harness) judgeAsync(a Ask) <-chan Verdict {
	out := make(chan Verdict, 1)
	go func() {
		v, err := h.Evaluate(context.Background(), a)
		if err != nil {
			h.t.Error(err)
		}
		out <- v
	}()
	return out
}

func TestJudgeRecordsDecisions(t *testing.T) {
	h := newHarness(t)
	j := h.jail(askPermissions)
	for _, tt := range []struct {
		line   string
		answer approval.Answer // the approver's answer, if approval is required
		allow  bool
		tag    Tag
		by     string
	}{
		{"ls -l", approval.Answer{}, true, Autonomous, ""},
		{"rm x", approval.Answer{}, false, Denied, ""},
		{"make", approval.Answer{Verdict: approval.Allow}, true, Approved, "anna"},
		{"make all", approval.Answer{Verdict: approval.Deny, Reason: "not today"}, false, Denied, "anna"},
		{"make install", approval.Answer{Verdict: approval.Modify, Resource: "make check"}, true, Approved, "anna"},
		{"make distclean", approval.Answer{Verdict: approval.Modify, Resource: "rm -r ."}, false, Denied, "anna"}, // a denied resource stays denied
	} {
		verdict := h.judgeAsync(execAsk(j, tt.line))
		if tt.answer.Verdict != "" {
			h.answer(h.waitPending(), tt.answer)
		}
		v := <-verdict
		if v.Allow != tt.allow || v.Tag != tt.tag || v.By != tt.by {
			t.Errorf("Judge(%s) = %+v, want allow %v, tag %s, by %q", tt.line, v, tt.allow, tt.tag, tt.by)
		}
		e, err := h.chain.Entry(t.Context(), v.Entry)
		must(t, err)
		var d DecisionRecord
		must(t, json.Unmarshal(e.Body, &d))
		if d.Resource != tt.line || d.Allowed != tt.allow || d.Tag != tt.tag || d.By != tt.by || e.Jail != j {
			t.Errorf("%s: audit log entry = %+v", tt.line, d)
		}
		if tt.answer.Verdict == "" {
			continue
		}
		cause, err := h.chain.Entry(t.Context(), e.Parent)
		if err != nil || cause.Kind != chain.ApprovalAnswered {
			t.Errorf("%s: parent entry has kind %v (%v), want %v", tt.line, cause.Kind, err, chain.ApprovalAnswered)
		}
	}
}

func TestJudgeTimeoutKeepsTheRequestOpen(t *testing.T) {
	h := newHarness(t)
	j := h.jail(askPermissions)
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := h.Evaluate(ctx, execAsk(j, "make"))
		gaveUp <- err
	}()
	first := h.waitPending()
	cancel(context.DeadlineExceeded) // the caller times out after the request is open
	if err := <-gaveUp; !errors.Is(err, fault.Timeout) {
		t.Errorf("Judge after the timeout = %v, want %v", err, fault.Timeout)
	}
	verdict := h.judgeAsync(execAsk(j, "make"))
	h.answer(h.waitPending(), approval.Answer{Verdict: approval.Allow})
	if v := <-verdict; !v.Allow {
		t.Errorf("repeated question: got %+v, want it allowed", v)
	}
	if r, err := h.queue.Get(t.Context(), first.ID); err != nil || r.State != approval.Answered {
		t.Errorf("state of the first request = %v (%v), want %v", r.State, err, approval.Answered)
	}
	if n := len(h.decisions(j)); n != 1 {
		t.Errorf("got %d recorded decisions, want 1", n)
	}
}

func TestJudgeWithoutQueueDenies(t *testing.T) {
	h := newHarness(t)
	h.Approvals(nil)
	j := h.jail(askPermissions)
	if v, err := h.Evaluate(t.Context(), execAsk(j, "make")); err != nil || v.Allow || v.Tag != Denied {
		t.Errorf("Judge without a queue = %+v, %v; want it denied", v, err)
	}
	if v, err := h.Evaluate(t.Context(), execAsk(id.NewJail(), "ls")); err != nil || v.Allow {
		t.Errorf("Judge of an unknown jail = %+v, %v; want it denied", v, err)
	}
}

func TestRequestsAreWithdrawnWithTheirJail(t *testing.T) {
	for name, ends := range map[string]func(h *harness, j id.Jail){
		"released": func(h *harness, j id.Jail) { h.Release(j) },
		"rewound": func(h *harness, j id.Jail) {
			must(h.t, h.Guard(h.t.Context(), j, Guard{Spec: spec(h.t, askPermissions), Workspace: "/work", Rewound: true}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			j, other := h.jail(askPermissions), h.jail(askPermissions)
			verdict, otherVerdict := h.judgeAsync(execAsk(j, "make")), h.judgeAsync(execAsk(other, "make"))
			for len(h.queue.Pending()) < 2 {
				time.Sleep(time.Millisecond)
			}
			ends(h, j)
			if v := <-verdict; v.Allow {
				t.Errorf("verdict = %+v, want it denied", v)
			}
			pending := h.queue.Pending()
			if len(pending) != 1 || pending[0].Question.Subject.Jail != other {
				t.Fatalf("pending requests = %+v, want only that of the other jail", pending)
			}
			h.answer(pending[0], approval.Answer{Verdict: approval.Allow})
			if v := <-otherVerdict; !v.Allow {
				t.Errorf("verdict of the other jail = %+v, want it allowed", v)
			}
		})
	}
}

func TestRecallLastsUntilTheJailIsReleased(t *testing.T) {
	h := newHarness(t)
	j := h.jail(askPermissions)
	rule := policy.Rule{Action: policy.ActionRun, Pattern: "make", Effect: policy.Allow}
	h.RememberApproval(approval.Request{Question: execAsk(j, "make").Question}, rule)
	if d := h.Decide(execAsk(j, "make").Question); d.Effect != policy.Allow {
		t.Errorf("decision after Recall = %+v, want %v", d, policy.Allow)
	}
	must(t, h.SetSpec(t.Context(), j, spec(t, askPermissions), "/work")) // the recalled rule stays
	if d := h.Decide(execAsk(j, "make").Question); d.Effect != policy.Allow {
		t.Errorf("decision after a change of the rules = %+v, want %v", d, policy.Allow)
	}
	must(t, h.SetSpec(t.Context(), j, spec(t, `{"bash": {"make": "deny"}}`), "/work"))
	if d := h.Decide(execAsk(j, "make").Question); d.Effect != policy.Deny {
		t.Errorf("decision with a deny rule = %+v, want %v", d, policy.Deny)
	}
	h.Release(j)
	must(t, h.Guard(t.Context(), j, Guard{Spec: spec(t, askPermissions)}))
	if d := h.Decide(execAsk(j, "make").Question); d.Effect != policy.Ask {
		t.Errorf("decision after Release and Guard = %+v, want %v", d, policy.Ask)
	}
}

// A killedStore fails to save answers, as if the process was killed after recording them.
type killedStore struct {
	approval.Store
	killed bool
}

func (s *killedStore) Save(ctx context.Context, r approval.Request, n []approval.Notice) error {
	if s.killed {
		return errors.New("killed")
	}
	return s.Store.Save(ctx, r, n)
}

func TestRecordedAnswersSurviveACrash(t *testing.T) {
	h := newHarness(t)
	db, err := storetest.Open(t, filepath.Join(t.TempDir(), "g.db"))
	must(t, err)
	s := &killedStore{Store: db.Approvals()}
	open := func() *approval.Queue {
		q, err := approval.New(t.Context(), s, approval.Config{Record: h.RecordApproval, Recorded: h.RecoverApproval})
		must(t, err)
		return q
	}
	q := open()
	t.Cleanup(func() {
		if err := errors.Join(q.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	anna := approval.Person{ID: "uid 0", Name: "anna", Role: "admin"}
	j := h.jail(askPermissions)
	for name, c := range map[string]struct {
		tier   approval.Tier
		answer approval.Answer // no verdict: withdraw the request
		state  approval.State
	}{
		"allowed":                {approval.Standard, approval.Answer{Verdict: approval.Allow}, approval.Answered},
		"allowed always":         {approval.Standard, approval.Answer{Verdict: approval.Allow, Scope: approval.Always}, approval.Answered},
		"denied":                 {approval.Standard, approval.Answer{Verdict: approval.Deny, Reason: "not today"}, approval.Answered},
		"changed":                {approval.Standard, approval.Answer{Verdict: approval.Modify, Resource: "make check"}, approval.Answered},
		"first of two approvals": {approval.Elevated, approval.Answer{Verdict: approval.Allow}, approval.Pending},
		"withdrawn":              {approval.Standard, approval.Answer{}, approval.Withdrawn},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := q.Open(t.Context(), approval.Request{Question: execAsk(j, "make "+name).Question, Tier: c.tier, Reason: "the rules say so"})
			must(t, err)
			s.killed = true
			want := c.answer
			want.By, want.Channel = anna, "api"
			if want.Verdict != "" {
				_, err = q.Answer(t.Context(), r.ID, want)
			} else {
				_, err = q.Withdraw(t.Context(), r.ID, "the jail was rewound")
			}
			if err == nil {
				t.Fatal("got no error, want one from the killed store")
			}
			must(t, q.Close())
			s.killed = false
			for range 2 { // the second time changes nothing
				q = open()
				must(t, q.Close())
			}
			q = open()

			got, err := q.Get(t.Context(), r.ID)
			must(t, err)
			given := got.Answer
			if c.state == approval.Pending {
				given = got.First
			}
			if got.State != c.state {
				t.Errorf("state = %q, want %q", got.State, c.state)
			}
			if want.Verdict == "" {
				return
			}
			if given == nil || given.Verdict != want.Verdict || given.Resource != want.Resource || given.By.ID != anna.ID || given.At.IsZero() {
				t.Fatalf("answer = %+v, want %+v", given, want)
			}
			if owed := want.Scope == approval.Always; got.RulePending != owed || owed != (given.Rule != nil) {
				t.Errorf("owed = %v with the rule %v, want %v", got.RulePending, given.Rule, owed)
			}
			granted, ok := got.Granted()
			if change := want.Verdict == approval.Modify; change && (!ok || granted.Resource != want.Resource || given.Hash != approval.HashOf(granted)) {
				t.Errorf("granted = %+v with the hash %s", granted, given.Hash)
			}
			if c.state == approval.Answered { // the same question returns this request
				again, err := q.Open(t.Context(), approval.Request{Question: r.Question, Tier: c.tier, Reason: "the rules say so"})
				if err != nil || again.ID != r.ID {
					t.Errorf("repeated question: got request %s, %v; want %s", again.ID, err, r.ID)
				}
			}
			entries, err := h.chain.Entries(t.Context(), chain.Query{Parent: r.ChainEntry})
			if err != nil || len(entries) != 1 {
				t.Errorf("got %d audit log entries of the request, %v; want 1", len(entries), err)
			}
		})
	}
}
