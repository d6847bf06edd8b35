package govern

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"glasshouse/approval"
	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
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
