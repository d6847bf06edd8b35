package govern

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/approval"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/store/storetest"
)

const someAsked = `{"bash": {"ls *": "allow", "rm *": "deny", "*": "ask"}}`

func run(jid id.Jail, line string) Ask {
	return Ask{Question: policy.Question{Subject: policy.Subject{Jail: jid}, Action: policy.ActionRun, Resource: line}}
}

// judged is what becomes of a question that somebody answers meanwhile.
func (h *house) judged(a Ask) <-chan Verdict {
	out := make(chan Verdict, 1)
	go func() {
		v, err := h.Judge(context.Background(), a)
		if err != nil {
			h.t.Error(err)
		}
		out <- v
	}()
	return out
}

func TestEveryDecisionIsInTheChainWithHowItCameAbout(t *testing.T) {
	h := newHouse(t)
	j := h.jail(someAsked)
	for _, tt := range []struct {
		line   string
		answer approval.Answer // of a person, if one is asked
		allow  bool
		tag    Tag
		by     string
	}{
		{"ls -l", approval.Answer{}, true, Autonomous, ""},
		{"rm x", approval.Answer{}, false, Denied, ""},
		{"make", approval.Answer{Verdict: approval.Allow}, true, Approved, "anna"},
		{"make all", approval.Answer{Verdict: approval.Deny, Reason: "not today"}, false, Denied, "anna"},
		{"make install", approval.Answer{Verdict: approval.Modify, Resource: "make check"}, true, Approved, "anna"},
		{"make distclean", approval.Answer{Verdict: approval.Modify, Resource: "rm -r ."}, false, Denied, "anna"}, // denied stays denied
	} {
		verdict := h.judged(run(j, tt.line))
		if tt.answer.Verdict != "" {
			h.answers(h.pending(), tt.answer)
		}
		v := <-verdict
		if v.Allow != tt.allow || v.Tag != tt.tag || v.By != tt.by {
			t.Errorf("%s: %+v", tt.line, v)
		}
		e, err := h.chain.Entry(t.Context(), v.Entry)
		must(t, err)
		var d Decided
		must(t, json.Unmarshal(e.Body, &d))
		if d.Resource != tt.line || d.Allowed != tt.allow || d.Tag != tt.tag || d.By != tt.by || e.Jail != j {
			t.Errorf("%s: the chain says %+v", tt.line, d)
		}
		if tt.answer.Verdict == "" {
			continue
		}
		cause, err := h.chain.Entry(t.Context(), e.Parent)
		if err != nil || cause.Kind != chain.ApprovalAnswered {
			t.Errorf("%s: it comes from %v: %v", tt.line, cause.Kind, err)
		}
	}
}

func TestWhoGivesUpWaitingCanGoOn(t *testing.T) {
	h := newHouse(t)
	j := h.jail(someAsked)
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := h.Judge(ctx, run(j, "make"))
		gaveUp <- err
	}()
	first := h.pending()
	cancel(context.DeadlineExceeded) // the caller's time is over once the request is open
	if err := <-gaveUp; !errors.Is(err, fault.Timeout) {
		t.Errorf("who gave up is told %v", err)
	}
	verdict := h.judged(run(j, "make"))
	h.answers(h.pending(), approval.Answer{Verdict: approval.Allow})
	if v := <-verdict; !v.Allow {
		t.Errorf("asked again: %+v", v)
	}
	if r, err := h.queue.Get(t.Context(), first.ID); err != nil || r.State != approval.Answered {
		t.Errorf("the request that was opened is %v: %v", r.State, err)
	}
	if n := len(h.recorded(j)); n != 1 {
		t.Errorf("%d decisions are recorded", n)
	}
}

func TestWithoutAnybodyToAskNothingIsAllowed(t *testing.T) {
	h := newHouse(t)
	h.Approvals(nil)
	j := h.jail(someAsked)
	if v, err := h.Judge(t.Context(), run(j, "make")); err != nil || v.Allow || v.Tag != Denied {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := h.Judge(t.Context(), run(id.NewJail(), "ls")); err != nil || v.Allow {
		t.Errorf("of a jail that nobody governs: %+v, %v", v, err)
	}
}

func TestWhatAJailAskedEndsWithIt(t *testing.T) {
	for name, ends := range map[string]func(h *house, j id.Jail){
		"released": func(h *house, j id.Jail) { h.Release(j) },
		"rewound": func(h *house, j id.Jail) {
			must(h.t, h.Guard(h.t.Context(), j, Guard{Spec: spec(h.t, someAsked), Workspace: "/work", Rewound: true}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			j, other := h.jail(someAsked), h.jail(someAsked)
			verdict, still := h.judged(run(j, "make")), h.judged(run(other, "make"))
			for len(h.queue.Pending()) < 2 {
				time.Sleep(time.Millisecond)
			}
			ends(h, j)
			if v := <-verdict; v.Allow {
				t.Errorf("it is allowed: %+v", v)
			}
			left := h.queue.Pending()
			if len(left) != 1 || left[0].Question.Subject.Jail != other {
				t.Fatalf("there wait %+v", left)
			}
			h.answers(left[0], approval.Answer{Verdict: approval.Allow})
			if v := <-still; !v.Allow {
				t.Errorf("the other one: %+v", v)
			}
		})
	}
}

func TestAnAnswerThatCountsAsLongAsTheJailLives(t *testing.T) {
	h := newHouse(t)
	j := h.jail(someAsked)
	rule := policy.Rule{Action: policy.ActionRun, Pattern: "make", Effect: policy.Allow}
	h.Recall(approval.Request{Question: run(j, "make").Question}, rule)
	if d := h.Decide(run(j, "make").Question); d.Effect != policy.Allow {
		t.Errorf("it is %+v", d)
	}
	must(t, h.Adapt(t.Context(), j, spec(t, someAsked), "/work")) // a change of its rules keeps it
	if d := h.Decide(run(j, "make").Question); d.Effect != policy.Allow {
		t.Errorf("after a change of the rules it is %+v", d)
	}
	must(t, h.Adapt(t.Context(), j, spec(t, `{"bash": {"make": "deny"}}`), "/work"))
	if d := h.Decide(run(j, "make").Question); d.Effect != policy.Deny {
		t.Errorf("denied, and yet %+v", d)
	}
	h.Release(j)
	must(t, h.Guard(t.Context(), j, Guard{Spec: spec(t, someAsked)}))
	if d := h.Decide(run(j, "make").Question); d.Effect != policy.Ask {
		t.Errorf("in another life it is %+v", d)
	}
}

// A killedStore keeps questions, but not their answers, as if its process had been
// killed when that was recorded.
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

func TestWhatWasRecordedOfARequestHoldsAfterAKill(t *testing.T) {
	h := newHouse(t)
	db, err := storetest.Open(t, filepath.Join(t.TempDir(), "g.db"))
	must(t, err)
	s := &killedStore{Store: db.Approvals()}
	open := func() *approval.Queue {
		q, err := approval.New(t.Context(), s, approval.Config{Record: h.RecordApproval, Recorded: h.Recorded})
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
	j := h.jail(someAsked)
	for name, c := range map[string]struct {
		tier   approval.Tier
		answer approval.Answer // of verdict "": it is withdrawn
		state  approval.State
	}{
		"allowed":          {approval.Standard, approval.Answer{Verdict: approval.Allow}, approval.Answered},
		"allowed for good": {approval.Standard, approval.Answer{Verdict: approval.Allow, Scope: approval.Always}, approval.Answered},
		"denied":           {approval.Standard, approval.Answer{Verdict: approval.Deny, Reason: "not today"}, approval.Answered},
		"changed":          {approval.Standard, approval.Answer{Verdict: approval.Modify, Resource: "make check"}, approval.Answered},
		"the first of two": {approval.Elevated, approval.Answer{Verdict: approval.Allow}, approval.Pending},
		"withdrawn":        {approval.Standard, approval.Answer{}, approval.Withdrawn},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := q.Open(t.Context(), approval.Request{Question: run(j, "make "+name).Question, Tier: c.tier, Reason: "the rules say so"})
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
				t.Fatal("it is saved")
			}
			must(t, q.Close())
			s.killed = false
			for range 2 { // the second time nothing is left to do
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
			if owed := want.Scope == approval.Always; got.Owed != owed || owed != (given.Rule != nil) {
				t.Errorf("owed = %v with the rule %v, want %v", got.Owed, given.Rule, owed)
			}
			granted, ok := got.Granted()
			if change := want.Verdict == approval.Modify; change && (!ok || granted.Resource != want.Resource || given.Hash != approval.HashOf(granted)) {
				t.Errorf("granted = %+v of the hash %s", granted, given.Hash)
			}
			if c.state == approval.Answered { // the same question gets this answer
				again, err := q.Open(t.Context(), approval.Request{Question: r.Question, Tier: c.tier, Reason: "the rules say so"})
				if err != nil || again.ID != r.ID {
					t.Errorf("asked again it is %s, %v; want %s", again.ID, err, r.ID)
				}
			}
			entries, err := h.chain.Entries(t.Context(), chain.Query{Parent: r.Entry})
			if err != nil || len(entries) != 1 {
				t.Errorf("the audit log has %d entries about it, %v; want 1", len(entries), err)
			}
		})
	}
}
