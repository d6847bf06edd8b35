package autonomy_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// siblingList lists the members of all groups.
type siblingList []autonomy.Member

func (f siblingList) Members(_ context.Context, group string) ([]autonomy.Member, error) {
	var list []autonomy.Member
	for _, m := range f {
		if m.Group == group {
			list = append(list, m)
		}
	}
	return list, nil
}

func member(name string) autonomy.Member {
	return autonomy.Member{Jail: id.Jail("j-" + name), Session: "sess-" + name, Name: name, Group: "team"}
}

func members(names ...string) (f siblingList) {
	for _, n := range names {
		f = append(f, member(n))
	}
	return f
}

func allowAll(context.Context, autonomy.Member, autonomy.Member, string, string) (bool, string, error) {
	return true, "", nil
}

func openStore(t testing.TB, where string) autonomy.RequestStore {
	t.Helper()
	return openAutonomyStore(t, where)
}

func openAutonomyStore(t testing.TB, where string) store.Autonomy {
	t.Helper()
	s, err := storetest.Open(t, where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.Autonomy()
}

// newBroker returns a broker whose policy allows all requests by default.
func newBroker(t testing.TB, s autonomy.RequestStore, cfg autonomy.BrokerConfig) *autonomy.Broker {
	t.Helper()
	if cfg.Siblings == nil {
		cfg.Siblings = members("worker", "reviewer", "tester")
	}
	if cfg.Policy == nil {
		cfg.Policy = allowAll
	}
	b, err := autonomy.NewBroker(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// scenario runs f with a fake clock.
func scenario(t *testing.T, f func(t *testing.T)) {
	synctest.Test(t, f)
}

func ask(t testing.TB, b *autonomy.Broker, from, to, action, about string) autonomy.Request {
	t.Helper()
	r, err := b.Ask(t.Context(), member(from), autonomy.Ask{To: to, Action: action, Context: about})
	if err != nil {
		t.Fatalf("request from %s to %s: %v", from, to, err)
	}
	return r
}

func wantRefusal(t testing.TB, r autonomy.Request, code string) {
	t.Helper()
	if r.State != autonomy.Refused || r.Refusal == nil || r.Refusal.Code != code || r.Refusal.Reason == "" {
		t.Errorf("request is %s, %+v; want it refused with code %s", r.State, r.Refusal, code)
	}
}

// The clock of the database may differ from that of the host.
func TestAskAndReply(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		scenario(t, func(t *testing.T) {
			clock := func() time.Time { return time.Now().Add(ahead) }
			b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Now: clock})
			worker, reviewer := member("worker"), member("reviewer")
			go func() {
				list, err := b.Poll(t.Context(), reviewer, time.Minute)
				if err != nil || len(list) != 1 {
					t.Errorf("clock ahead by %v: Waiting = %d requests, %v; want 1", ahead, len(list), err)
					return
				}
				if _, err := b.Reply(t.Context(), reviewer, list[0].ID, "looks good: "+list[0].Context); err != nil {
					t.Error(err)
				}
			}()
			r, err := b.Ask(t.Context(), worker, autonomy.Ask{To: "reviewer", Action: "review", Context: "auth/login.ts", ReplyWithin: time.Minute})
			if err != nil || r.State != autonomy.Answered || r.Answer != "looks good: auth/login.ts" || r.Deliveries != 1 {
				t.Errorf("clock ahead by %v: Ask = %+v, %v", ahead, r, err)
			}
			if took := clock().Sub(r.Created); took < 0 || took > time.Minute {
				t.Errorf("clock ahead by %v: the request was created %v ago by that clock", ahead, took)
			}
		})
	}
}

func TestSiblingByJailSessionOrName(t *testing.T) {
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
	for _, to := range []string{"j-reviewer", "sess-reviewer", "reviewer"} {
		if r := ask(t, b, "worker", to, "review", to); r.State != autonomy.Queued || r.To.Name != "reviewer" {
			t.Errorf("request to %s: state %s, receiver %+v", to, r.State, r.To)
		}
	}
}

// TestSiblingMovesToAnotherJail sends a request to a sibling that has no jail yet.
func TestSiblingMovesToAnotherJail(t *testing.T) {
	home := members("worker", "reviewer")
	home[1].Jail = ""
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Siblings: home})
	q := ask(t, b, "worker", "reviewer", "review", "x").ID
	list, err := b.Poll(t.Context(), member("reviewer"), 0) // now in j-reviewer
	if err != nil || len(list) != 1 || list[0].ID != q {
		t.Fatalf("Waiting = %d requests, %v; want %s", len(list), err, q)
	}
	moved := member("reviewer")
	moved.Jail = "j-another"
	if _, err := b.Reply(t.Context(), moved, q, "yes"); err != nil {
		t.Error(err)
	}
	twin := autonomy.Member{Session: "j-reviewer", Group: "team"} // a session with the name of the jail
	if _, err := b.Get(t.Context(), twin, q); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get by a session with the name of the jail = %v, want %v", err, fault.NotFound)
	}
}

func TestNonSiblingsAreNotRevealed(t *testing.T) {
	strangers := append(members("worker", "twin", "gone"), autonomy.Member{Jail: "j-other", Name: "other", Group: "others"}, autonomy.Member{Jail: "j-twin2", Name: "twin", Group: "team"})
	strangers[2].Closed = true
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Siblings: strangers})
	existing, missing := ask(t, b, "worker", "other", "x", ""), ask(t, b, "worker", "j-nowhere", "x", "")
	wantRefusal(t, existing, "no-sibling")
	wantRefusal(t, missing, "no-sibling")
	if *existing.Refusal != *missing.Refusal || existing.To != missing.To {
		t.Errorf("refusals of an existing and a missing member differ: %+v, %+v", existing, missing)
	}
	wantRefusal(t, ask(t, b, "worker", "worker", "x", ""), "self")
	wantRefusal(t, ask(t, b, "worker", "j-worker", "x", ""), "self")
	wantRefusal(t, ask(t, b, "worker", "gone", "x", ""), "closed")
	wantRefusal(t, ask(t, b, "worker", "twin", "x", ""), "ambiguous")
	alone := autonomy.Member{Jail: "j-alone", Name: "alone"}
	r, err := b.Ask(t.Context(), alone, autonomy.Ask{To: "worker", Action: "x"})
	if err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, r, "no-sibling")
}

func TestPolicyIsEvaluatedBeforeStoring(t *testing.T) {
	s := openStore(t, "")
	var stored []autonomy.Request
	deny := newBroker(t, s, autonomy.BrokerConfig{
		Policy: func(_ context.Context, from, to autonomy.Member, action, about string) (bool, string, error) {
			if from.Name != "worker" || to.Name != "reviewer" || action != "review" || about != "x" {
				t.Errorf("Policy(%s, %s, %s, %s), want worker, reviewer, review, x", from.Name, to.Name, action, about)
			}
			stored, _ = s.OpenRequests(t.Context(), "team")
			return false, "opencode.json:12 denies it", nil
		},
	})
	r := ask(t, deny, "worker", "reviewer", "review", "x")
	wantRefusal(t, r, "policy")
	if len(stored) != 0 || r.Refusal.Reason != "opencode.json:12 denies it" {
		t.Errorf("%d requests stored, refusal %+v; want none and the reason of the policy", len(stored), r.Refusal)
	}
	broken := newBroker(t, s, autonomy.BrokerConfig{Policy: func(context.Context, autonomy.Member, autonomy.Member, string, string) (bool, string, error) {
		return true, "", errors.New("no answer")
	}})
	if _, err := broken.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review"}); err == nil {
		t.Error("Ask with a failing policy: got no error")
	}
	unrecorded := newBroker(t, s, autonomy.BrokerConfig{Record: func(context.Context, autonomy.Request) error { return errors.New("disk full") }})
	if _, err := unrecorded.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review"}); err == nil {
		t.Error("Ask with a failing recorder: got no error")
	}
	if open, err := s.OpenRequests(t.Context(), ""); err != nil || len(open) != 0 {
		t.Errorf("%d open requests, %v; want none", len(open), err)
	}
}

func TestWaitForCycleIsRefused(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
		var wg sync.WaitGroup
		defer wg.Wait()
		askAndWait := func(from, to string) {
			wg.Go(func() {
				r, err := b.Ask(t.Context(), member(from), autonomy.Ask{To: to, Action: "help", Context: from, ReplyWithin: time.Minute})
				if err != nil || r.State != autonomy.Expired {
					t.Errorf("request from %s to %s: %s, %v; want it expired", from, to, r.State, err)
				}
			})
			synctest.Wait()
		}
		askAndWait("worker", "reviewer")
		askAndWait("reviewer", "tester")
		r, err := b.Ask(t.Context(), member("tester"), autonomy.Ask{To: "worker", Action: "help", ReplyWithin: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, r, "cycle")
		if want := "worker waits for reviewer, reviewer waits for tester"; !strings.Contains(r.Refusal.Reason, want) || r.Refusal.RetryAfter <= 0 || r.Refusal.RetryAfter > time.Minute {
			t.Errorf("refusal = %+v, want %q in it", r.Refusal, want)
		}
		if r := ask(t, b, "tester", "worker", "notify", ""); r.State != autonomy.Queued {
			t.Errorf("request without waiting = %s, %+v; want it queued", r.State, r.Refusal)
		}
	})
}

func TestCancelledAskerDoesNotWait(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		asked := autonomy.Ask{To: "reviewer", Action: "help", ReplyWithin: time.Minute, Key: "k"}
		go func() {
			_, err := b.Ask(ctx, member("worker"), asked)
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Ask = %v", err)
		}
		go b.Ask(t.Context(), member("reviewer"), autonomy.Ask{To: "worker", Action: "what?", ReplyWithin: time.Minute})
		synctest.Wait()
		open, err := b.List(t.Context(), autonomy.RequestFilter{State: autonomy.Queued})
		if err != nil || len(open) != 2 {
			t.Fatalf("%d open requests, %v; want 2", len(open), err)
		}
		// Waiting for the same request again would close a cycle now.
		r, err := b.Ask(t.Context(), member("worker"), asked)
		if err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, r, "cycle")
		if got, err := b.Get(t.Context(), member("worker"), r.ID); err != nil || got.State != autonomy.Queued {
			t.Errorf("state of the first request = %s, %v; want queued", got.State, err)
		}
		synctest.Wait()
	})
}

func TestShortWaitForAnEarlierRequest(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
		a := autonomy.Ask{To: "reviewer", Action: "help", Key: "k"}
		sent, err := b.Ask(t.Context(), member("worker"), a)
		if err != nil {
			t.Fatal(err)
		}
		a.ReplyWithin = 10 * time.Second
		began := time.Now()
		r, err := b.Ask(t.Context(), member("worker"), a)
		if took := time.Since(began); err != nil || r.ID != sent.ID || r.State != autonomy.Queued || took != 10*time.Second {
			t.Errorf("Ask returned %s, %v after %s; want queued after 10 s", r.State, err, took)
		}
		r, err = b.Get(t.Context(), member("worker"), r.ID)
		if err != nil || r.Wait {
			t.Errorf("request is marked as awaited (%v)", err)
		}
	})
}

func TestRequestWaitsWhileOneCallerWaits(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
		a := autonomy.Ask{To: "reviewer", Action: "help", Key: "k", ReplyWithin: time.Minute}
		ctx, cancel := context.WithCancel(t.Context())
		go b.Ask(ctx, member("worker"), a)
		go b.Ask(t.Context(), member("worker"), a)
		synctest.Wait()
		cancel()
		synctest.Wait()
		r, err := b.Ask(t.Context(), member("reviewer"), autonomy.Ask{To: "worker", Action: "what?", ReplyWithin: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, r, "cycle")
		time.Sleep(2 * time.Minute)
	})
}

func TestPolicyConflictIsNotRetried(t *testing.T) {
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Policy: func(context.Context, autonomy.Member, autonomy.Member, string, string) (bool, string, error) {
		return false, "", fault.Newf(fault.Conflict, "approval", "", "withdrawn")
	}})
	if _, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "x", Key: "k"}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Ask = %v", err)
	}
}

func TestKeyIsIdempotent(t *testing.T) {
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
	a := autonomy.Ask{To: "reviewer", Action: "review", Context: "x", Key: "call-7"}
	var wg sync.WaitGroup
	got := make([]autonomy.Request, 20)
	for i := range got {
		wg.Go(func() {
			var err error
			got[i], err = b.Ask(t.Context(), member("worker"), a)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, r := range got {
		if r.ID != got[0].ID {
			t.Fatalf("two requests for one key: %s and %s", r.ID, got[0].ID)
		}
	}
	if _, err := b.Reply(t.Context(), member("reviewer"), got[0].ID, "yes"); err != nil {
		t.Fatal(err)
	}
	a.ReplyWithin = time.Minute
	if r, err := b.Ask(t.Context(), member("worker"), a); err != nil || r.Answer != "yes" {
		t.Errorf("repeated Ask = %+v, %v; want the answer", r, err)
	}
	a.Context = "y"
	if _, err := b.Ask(t.Context(), member("worker"), a); !errors.Is(err, fault.Mismatch) {
		t.Errorf("different request with the key = %v, want %v", err, fault.Mismatch)
	}
	if r, err := b.Ask(t.Context(), member("tester"), autonomy.Ask{To: "reviewer", Action: "review", Key: "call-7"}); err != nil || r.ID == got[0].ID {
		t.Errorf("equal key of another asker returned the same request (%v)", err)
	}
}

func TestOnlyTheReceiverRepliesOnce(t *testing.T) {
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
	q := ask(t, b, "worker", "reviewer", "review", "x").ID
	for _, by := range []string{"worker", "tester"} {
		if _, err := b.Reply(t.Context(), member(by), q, "yes"); !errors.Is(err, fault.NotFound) {
			t.Errorf("Reply by %s = %v, want %v", by, err, fault.NotFound)
		}
	}
	if _, err := b.Get(t.Context(), member("tester"), q); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get by another member = %v, want %v", err, fault.NotFound)
	}
	for range 2 {
		if r, err := b.Reply(t.Context(), member("reviewer"), q, "yes"); err != nil || r.State != autonomy.Answered {
			t.Errorf("Reply = %s, %v", r.State, err)
		}
	}
	if _, err := b.Reply(t.Context(), member("reviewer"), q, "no"); !errors.Is(err, fault.Conflict) {
		t.Errorf("different second Reply = %v, want %v", err, fault.Conflict)
	}
}

func TestUnacknowledgedRequestIsDeliveredAgain(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Lease: time.Minute})
		reviewer := member("reviewer")
		q := ask(t, b, "worker", "reviewer", "review", "x").ID
		take := func(wait time.Duration, want int) {
			t.Helper()
			list, err := b.Poll(t.Context(), reviewer, wait)
			if err != nil || len(list) != want || want == 1 && list[0].ID != q {
				t.Errorf("Waiting = %d requests, %v; want %d", len(list), err, want)
			}
		}
		take(0, 1)
		take(50*time.Second, 0) // leased
		take(20*time.Second, 1) // the lease has expired
		if err := b.Acknowledge(t.Context(), reviewer, q); err != nil {
			t.Fatal(err)
		}
		take(3*time.Minute, 0)
		r, err := b.Get(t.Context(), reviewer, q)
		if err != nil || r.State != autonomy.Delivered || r.Deliveries != 2 {
			t.Errorf("request is %s after %d deliveries, %v; want delivered after 2", r.State, r.Deliveries, err)
		}
	})
}

// fakeDeliverer records deliveries. result returns the result of the nth delivery.
type fakeDeliverer struct {
	mu     sync.Mutex
	got    []id.Request
	result func(n int) error
}

func (p *fakeDeliverer) Deliver(_ context.Context, r autonomy.Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got = append(p.got, r.ID)
	if p.result == nil {
		return nil
	}
	return p.result(len(p.got))
}

func (p *fakeDeliverer) delivered() []id.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

func TestDeliveryIsRetried(t *testing.T) {
	scenario(t, func(t *testing.T) {
		p := &fakeDeliverer{result: func(n int) error {
			if n < 4 {
				return fault.Newf(fault.Unavailable, "", "", "the agent is starting")
			}
			return nil
		}}
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Deliverer: p})
		q := ask(t, b, "worker", "reviewer", "review", "x").ID
		time.Sleep(5 * time.Minute)
		r, err := b.Get(t.Context(), member("worker"), q)
		if err != nil || r.State != autonomy.Delivered || !r.Acked || len(p.delivered()) != 4 {
			t.Errorf("request is %s after %d deliveries, %v; want delivered after 4", r.State, len(p.delivered()), err)
		}
		// The receiver may not read its inbox, so the request is listed until it is answered.
		if list, err := b.Poll(t.Context(), member("reviewer"), 0); err != nil || len(list) != 1 || list[0].ID != q {
			t.Errorf("Waiting = %+v, %v, want the request", list, err)
		}
		if list, err := b.Poll(t.Context(), member("reviewer"), 0); err != nil || len(list) != 0 {
			t.Errorf("Waiting within the lease = %+v, %v, want none", list, err)
		}
		time.Sleep(5 * time.Minute)
		if got := len(p.delivered()); got != 4 {
			t.Errorf("%d deliveries, want 4", got)
		}
		if err := b.Acknowledge(t.Context(), member("reviewer"), q); err != nil {
			t.Fatal(err)
		}
		if list, err := b.Poll(t.Context(), member("reviewer"), 0); err != nil || len(list) != 0 {
			t.Errorf("Waiting after Acknowledge = %+v, %v, want none", list, err)
		}
	})
}

// ReceiverGone fails a request whose requester waits. A request without waiting stays open.
func TestReceiverGoneFailsAwaitedRequests(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
		later := ask(t, b, "worker", "reviewer", "review", "later").ID
		got := make(chan autonomy.Request, 1)
		go func() {
			r, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review", Context: "now", ReplyWithin: time.Hour})
			if err != nil {
				t.Error(err)
			}
			got <- r
		}()
		time.Sleep(time.Second)
		if err := b.ReceiverGone(t.Context(), member("reviewer"), "its run has ended"); err != nil {
			t.Fatal(err)
		}
		if r := <-got; r.State != autonomy.Failed || r.Why != "its run has ended" {
			t.Errorf("awaited request = %s %q, want failed", r.State, r.Why)
		}
		if r, err := b.Get(t.Context(), member("worker"), later); err != nil || !r.Open() {
			t.Errorf("request without waiting = %s, %v, want it open", r.State, err)
		}
	})
}

// Only a request whose requester waits is refused if the receiver is not ready.
func TestAwaitedRequestToUnreadyReceiverIsRefused(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Ready: func(context.Context, autonomy.Member) (*autonomy.Refusal, error) {
			return &autonomy.Refusal{Code: "ended", Reason: "its run has ended"}, nil
		}})
		r, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review", ReplyWithin: time.Hour})
		if err != nil || r.State != autonomy.Refused || r.Refusal.Code != "ended" {
			t.Errorf("Ask with waiting = %+v, %v, want it refused", r, err)
		}
		r, err = b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review"})
		if err != nil || r.State == autonomy.Refused {
			t.Errorf("Ask without waiting = %+v, %v, want it sent", r, err)
		}
	})
}

// TestPollingReceiverGetsNoDelivery simulates an agent that polls and does not read its inbox.
func TestPollingReceiverGetsNoDelivery(t *testing.T) {
	scenario(t, func(t *testing.T) {
		p := &fakeDeliverer{}
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Deliverer: p})
		poll := func(wait time.Duration) []autonomy.Request {
			t.Helper()
			list, err := b.Poll(t.Context(), member("reviewer"), wait)
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		poll(0)
		time.Sleep(10 * time.Second)
		first := ask(t, b, "worker", "reviewer", "review", "x").ID
		time.Sleep(20 * time.Second) // between two polls
		if list := poll(0); len(list) != 1 || list[0].ID != first || len(p.delivered()) != 0 {
			t.Errorf("poll = %d requests, deliveries %q; want %s and none", len(list), p.delivered(), first)
		}
		if _, err := b.Reply(t.Context(), member("reviewer"), first, "fine"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute) // the agent no longer polls
		second := ask(t, b, "worker", "reviewer", "review", "y").ID
		time.Sleep(5 * time.Second)
		if !slices.Equal(p.delivered(), []id.Request{second}) {
			t.Errorf("deliveries after polling ended = %q, want %q", p.delivered(), second)
		}
	})
}

// TestShutdownBetweenDeliveryAndRecord expects a second delivery with the same id, which the
// receiver can recognize.
func TestShutdownBetweenDeliveryAndRecord(t *testing.T) {
	scenario(t, func(t *testing.T) {
		s := openStore(t, "")
		p := &fakeDeliverer{}
		ended := make(chan struct{})
		var first *autonomy.Broker
		ready := make(chan struct{})
		p.result = func(n int) error {
			if n > 1 {
				return nil
			}
			<-ready
			go func() {
				first.Close()
				close(ended)
			}()
			synctest.Wait() // delivered, and the daemon shuts down before it is recorded
			return nil
		}
		first = newBroker(t, s, autonomy.BrokerConfig{Deliverer: p})
		close(ready)
		q := ask(t, first, "worker", "reviewer", "review", "x").ID
		<-ended
		if open, err := s.OpenRequests(t.Context(), ""); err != nil || len(open) != 1 || open[0].Acked {
			t.Fatalf("open requests after the shutdown = %+v, %v; want one without acknowledgement", open, err)
		}
		second := newBroker(t, s, autonomy.BrokerConfig{Deliverer: p})
		time.Sleep(59 * time.Second)
		if len(p.delivered()) != 1 {
			t.Errorf("%d deliveries within the lease, want 1", len(p.delivered()))
		}
		time.Sleep(5 * time.Minute)
		r, err := second.Get(t.Context(), member("worker"), q)
		if err != nil || !r.Acked || !slices.Equal(p.delivered(), []id.Request{q, q}) {
			t.Errorf("request = %+v after deliveries %q, %v", r, p.delivered(), err)
		}
	})
}

func TestNextDaemonDeliversStoredRequests(t *testing.T) {
	scenario(t, func(t *testing.T) {
		s := openStore(t, "")
		p := &fakeDeliverer{}
		first := newBroker(t, s, autonomy.BrokerConfig{})
		q := ask(t, first, "worker", "reviewer", "review", "x").ID
		time.Sleep(time.Minute)
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		newBroker(t, s, autonomy.BrokerConfig{Deliverer: p})
		time.Sleep(time.Minute)
		if !slices.Equal(p.delivered(), []id.Request{q}) {
			t.Errorf("deliveries = %q, want %q", p.delivered(), q)
		}
	})
}

func TestUndeliverableRequestFails(t *testing.T) {
	scenario(t, func(t *testing.T) {
		p := &fakeDeliverer{result: func(int) error { return fault.Newf(fault.NotFound, "", "", "jail deleted") }}
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Deliverer: p})
		r, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review", ReplyWithin: time.Minute})
		if err != nil || r.State != autonomy.Failed || !strings.Contains(r.Why, "jail deleted") || len(p.delivered()) != 1 {
			t.Errorf("Ask = %s, %q, %v after %d deliveries", r.State, r.Why, err, len(p.delivered()))
		}
	})
}

func TestRequestExpires(t *testing.T) {
	scenario(t, func(t *testing.T) {
		var recorded []string
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Record: func(_ context.Context, r autonomy.Request) error {
			recorded = append(recorded, string(r.State))
			return nil
		}})
		began := time.Now()
		r, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review", ReplyWithin: time.Minute})
		if err != nil || r.State != autonomy.Expired || time.Since(began) < time.Minute || time.Since(began) > 62*time.Second {
			t.Errorf("Ask = %s, %v after %s", r.State, err, time.Since(began))
		}
		if _, err := b.Reply(t.Context(), member("reviewer"), r.ID, "late"); !errors.Is(err, fault.Conflict) {
			t.Errorf("late Reply = %v, want %v", err, fault.Conflict)
		}
		synctest.Wait() // the request is recorded after its end is stored
		if !slices.Equal(recorded, []string{"", "expired"}) {
			t.Errorf("recorded: %q, want the request and that it expired", recorded)
		}
	})
}

func TestLeaveFailsRequests(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
		other := ask(t, b, "reviewer", "tester", "test", "x")
		left := make(chan error, 1)
		go func() {
			time.Sleep(time.Second)
			left <- b.Leave(t.Context(), member("reviewer"), "its run was cancelled")
		}()
		r, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review", ReplyWithin: time.Hour})
		if err != nil || r.State != autonomy.Failed || !strings.Contains(r.Why, "cancelled") {
			t.Errorf("Ask = %s, %q, %v", r.State, r.Why, err)
		}
		if err := <-left; err != nil { // both requests have ended when Leave returns
			t.Errorf("Leave: %v", err)
		}
		if r, err := b.Get(t.Context(), member("tester"), other.ID); err != nil || r.State != autonomy.Failed {
			t.Errorf("request by the leaving member = %s, %v; want failed", r.State, err)
		}
	})
}

func TestQuotas(t *testing.T) {
	many := members("worker", "a", "b", "c", "d", "e", "f")
	loose := autonomy.Rate{Burst: 1000, Every: time.Millisecond}
	quotas := func(q autonomy.Quotas) autonomy.BrokerConfig {
		if q.GroupRate == (autonomy.Rate{}) {
			q.GroupRate, q.EdgeRate = loose, loose
		}
		return autonomy.BrokerConfig{Siblings: many, Quotas: q}
	}
	t.Run("FanOut", func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), quotas(autonomy.Quotas{FanOut: 2}))
		ask(t, b, "worker", "a", "x", "1")
		q := ask(t, b, "worker", "b", "x", "2").ID
		wantRefusal(t, ask(t, b, "worker", "c", "x", "3"), "fan-out")
		if r := ask(t, b, "a", "c", "x", "3"); r.State != autonomy.Queued {
			t.Errorf("request of another asker: %+v", r.Refusal)
		}
		if _, err := b.Decline(t.Context(), member("b"), q, "busy"); err != nil {
			t.Fatal(err)
		}
		if r := ask(t, b, "worker", "c", "x", "3"); r.State != autonomy.Queued {
			t.Errorf("request after one has ended: %+v", r.Refusal)
		}
	})
	t.Run("Open", func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), quotas(autonomy.Quotas{Open: 2}))
		ask(t, b, "worker", "a", "x", "1")
		ask(t, b, "a", "b", "x", "2")
		wantRefusal(t, ask(t, b, "b", "c", "x", "3"), "open")
	})
	t.Run("Depth", func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), quotas(autonomy.Quotas{Depth: 2}))
		line := []string{"worker", "a", "b", "c", "d"}
		var root id.Request
		for i := range 3 {
			r := ask(t, b, line[i], line[i+1], "x", "")
			if i == 0 {
				root = r.ID
			}
			if r.State != autonomy.Queued || r.Depth != i || r.Root != root || r.Hops != i+1 {
				t.Fatalf("request %d: %s, depth %d, root %s, hops %d", i, r.State, r.Depth, r.Root, r.Hops)
			}
			if list, err := b.Poll(t.Context(), member(line[i+1]), 0); err != nil || len(list) != 1 {
				t.Fatal(len(list), err)
			}
		}
		wantRefusal(t, ask(t, b, "c", "d", "x", ""), "depth")
	})
	t.Run("Hops", func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), quotas(autonomy.Quotas{Hops: 3}))
		ask(t, b, "worker", "a", "x", "1")
		if _, err := b.Poll(t.Context(), member("a"), 0); err != nil {
			t.Fatal(err)
		}
		ask(t, b, "a", "b", "x", "2")
		ask(t, b, "a", "c", "x", "3")
		wantRefusal(t, ask(t, b, "a", "d", "x", "4"), "hops")
	})
	t.Run("Rates", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			b := newBroker(t, openStore(t, ""), quotas(autonomy.Quotas{EdgeRate: autonomy.Rate{Burst: 2, Every: time.Minute}, GroupRate: autonomy.Rate{Burst: 3, Every: time.Minute}}))
			ask(t, b, "worker", "a", "x", "1")
			ask(t, b, "worker", "a", "x", "2")
			no := ask(t, b, "worker", "a", "x", "3")
			wantRefusal(t, no, "rate")
			if no.Refusal == nil || no.Refusal.RetryAfter != time.Minute {
				t.Errorf("refusal = %v, want RetryAfter of one minute", no.Refusal)
			}
			ask(t, b, "worker", "b", "x", "4")
			wantRefusal(t, ask(t, b, "a", "b", "x", "5"), "rate")
			time.Sleep(time.Minute)
			if r := ask(t, b, "worker", "a", "x", "6"); r.State != autonomy.Queued {
				t.Errorf("after a minute: %+v", r.Refusal)
			}
		})
	})
	t.Run("PingPong", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			b := newBroker(t, openStore(t, ""), quotas(autonomy.Quotas{Repeats: 3}))
			same := []string{"Please fix  the build", "please fix the build", "please FIX the build\n"}
			ask(t, b, "worker", "a", "fix", same[0])
			ask(t, b, "a", "worker", "you fix", same[1])
			ask(t, b, "worker", "a", "no you", same[2])
			wantRefusal(t, ask(t, b, "a", "worker", "fix", same[0]), "ping-pong")
			if r := ask(t, b, "a", "b", "fix", same[0]); r.State != autonomy.Queued {
				t.Errorf("equal request to another member: %+v", r.Refusal)
			}
			if r := ask(t, b, "a", "worker", "fix", "something else"); r.State != autonomy.Queued {
				t.Errorf("different request: %+v", r.Refusal)
			}
			time.Sleep(10 * time.Minute)
			if r := ask(t, b, "a", "worker", "fix", same[0]); r.State != autonomy.Queued {
				t.Errorf("after ten minutes: %+v", r.Refusal)
			}
		})
	})
}

func TestAtWorkQuota(t *testing.T) {
	scenario(t, func(t *testing.T) {
		p := &fakeDeliverer{}
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{
			Siblings: members("worker", "a", "b", "c"), Deliverer: p, Quotas: autonomy.Quotas{Working: 1, Queue: 3},
		})
		first := ask(t, b, "worker", "a", "x", "1")
		synctest.Wait()
		second := ask(t, b, "worker", "b", "x", "2")
		time.Sleep(time.Second)
		third := ask(t, b, "worker", "c", "x", "3")
		time.Sleep(time.Minute)
		if second.QueuePosition != 1 || third.QueuePosition != 2 || len(p.delivered()) != 1 {
			t.Fatalf("queue positions %d and %d, %d delivered; want 1, 2 and 1", second.QueuePosition, third.QueuePosition, len(p.delivered()))
		}
		if r := ask(t, b, "b", "a", "x", "5"); r.QueuePosition != 0 {
			t.Errorf("queue position of a request to a working member = %d, want 0", r.QueuePosition)
		}
		// The working member sends a request itself. While it waits it does not count as
		// working; otherwise both would be blocked.
		done := make(chan autonomy.Request)
		go func() {
			r, err := b.Ask(t.Context(), member("a"), autonomy.Ask{To: "c", Action: "x", Context: "6", ReplyWithin: time.Hour})
			if err != nil {
				t.Error(err)
			}
			done <- r
		}()
		time.Sleep(10 * time.Second)
		if got, err := b.Get(t.Context(), member("b"), second.ID); err != nil || got.State != autonomy.Delivered {
			t.Errorf("first queued request = %s, %v; want delivered", got.State, err)
		}
		if _, err := b.Reply(t.Context(), member("b"), second.ID, "ok"); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		list, err := b.List(t.Context(), autonomy.RequestFilter{Member: member("c").Key(), State: autonomy.Delivered})
		if err != nil || len(list) != 2 {
			t.Fatalf("c has %d delivered requests, %v; want 2", len(list), err)
		}
		for _, r := range list {
			if _, err := b.Reply(t.Context(), member("c"), r.ID, "ok"); err != nil {
				t.Error(err)
			}
		}
		if r := <-done; r.Answer != "ok" {
			t.Errorf("state of the nested request = %s, want answered", r.State)
		}
		if got, err := b.Get(t.Context(), member("a"), first.ID); err != nil || got.State != autonomy.Delivered {
			t.Errorf("first request = %s, %v; want delivered", got.State, err)
		}
	})
}

func TestQueueQuota(t *testing.T) {
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Siblings: members("worker", "a", "b", "c"), Quotas: autonomy.Quotas{Working: 1, Queue: 1}})
	ask(t, b, "worker", "a", "x", "1")
	if _, err := b.Poll(t.Context(), member("a"), 0); err != nil {
		t.Fatal(err)
	}
	ask(t, b, "worker", "b", "x", "2")
	wantRefusal(t, ask(t, b, "worker", "c", "x", "3"), "busy")
	if list, err := b.Poll(t.Context(), member("b"), 0); err != nil || len(list) != 0 {
		t.Errorf("Waiting for b = %d requests, %v; want none", len(list), err)
	}
}

func TestHundredConcurrentRequests(t *testing.T) {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("m", i))
	}
	loose := autonomy.Rate{Burst: 1 << 20, Every: time.Nanosecond}
	arrived := make(chan autonomy.Request, 1000)
	b := newBroker(t, openStore(t, filepath.Join(t.TempDir(), "g.db")), autonomy.BrokerConfig{
		Siblings: members(append(names, "hub")...), Deliverer: channelDeliverer(arrived), Lease: time.Hour,
		Quotas: autonomy.Quotas{Open: 200, Queue: 200, GroupRate: loose, EdgeRate: loose},
	})
	var wg sync.WaitGroup
	for _, n := range names {
		wg.Go(func() {
			r, err := b.Ask(t.Context(), member(n), autonomy.Ask{To: "hub", Action: "help", Context: n, ReplyWithin: time.Hour})
			if err != nil || r.Answer != "for "+n {
				t.Errorf("answer to %s = %q, %s, %v", n, r.Answer, r.State, err)
			}
		})
	}
	for range names {
		r := <-arrived
		if _, err := b.Reply(t.Context(), member("hub"), r.ID, "for "+r.From.Name); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if n := len(arrived); n != 0 {
		t.Errorf("%d requests were delivered twice", n)
	}
}

// channelDeliverer sends delivered requests to a channel.
type channelDeliverer chan<- autonomy.Request

func (h channelDeliverer) Deliver(_ context.Context, r autonomy.Request) error {
	h <- r
	return nil
}
