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

	"glasshouse/autonomy"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// family are the members of one group, and one who is in another.
type family []autonomy.Member

func (f family) Members(_ context.Context, group string) ([]autonomy.Member, error) {
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

func members(names ...string) (f family) {
	for _, n := range names {
		f = append(f, member(n))
	}
	return f
}

func everybodyMay(context.Context, autonomy.Member, autonomy.Member, string, string) (bool, string, error) {
	return true, "", nil
}

func openStore(t testing.TB, where string) autonomy.RequestStore {
	t.Helper()
	return openAll(t, where)
}

func openAll(t testing.TB, where string) store.Autonomy {
	t.Helper()
	s, err := storetest.Open(t, where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.Autonomy()
}

// newBroker returns a broker of a group in which everybody may ask everybody.
func newBroker(t testing.TB, s autonomy.RequestStore, cfg autonomy.BrokerConfig) *autonomy.Broker {
	t.Helper()
	if cfg.Siblings == nil {
		cfg.Siblings = members("worker", "reviewer", "tester")
	}
	if cfg.Policy == nil {
		cfg.Policy = everybodyMay
	}
	b, err := autonomy.NewBroker(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// scenario runs f where time passes only when all wait.
func scenario(t *testing.T, f func(t *testing.T)) {
	synctest.Test(t, f)
}

func ask(t testing.TB, b *autonomy.Broker, from, to, action, about string) autonomy.Request {
	t.Helper()
	r, err := b.Ask(t.Context(), member(from), autonomy.Ask{To: to, Action: action, Context: about})
	if err != nil {
		t.Fatalf("%s asks %s: %v", from, to, err)
	}
	return r
}

func refusedAs(t testing.TB, r autonomy.Request, code string) {
	t.Helper()
	if r.State != autonomy.Refused || r.Refusal == nil || r.Refusal.Code != code || r.Refusal.Reason == "" {
		t.Errorf("the request is %s, %+v; want it refused: %s", r.State, r.Refusal, code)
	}
}

func TestAWorkerAsksItsReviewerAndGetsAnAnswer(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
		worker, reviewer := member("worker"), member("reviewer")
		go func() {
			list, err := b.Waiting(t.Context(), reviewer, time.Minute)
			if err != nil || len(list) != 1 {
				t.Errorf("the reviewer has %d requests, %v", len(list), err)
				return
			}
			if _, err := b.Reply(t.Context(), reviewer, list[0].ID, "looks good: "+list[0].Context); err != nil {
				t.Error(err)
			}
		}()
		r, err := b.Ask(t.Context(), worker, autonomy.Ask{To: "reviewer", Action: "review", Context: "auth/login.ts", ReplyWithin: time.Minute})
		if err != nil || r.State != autonomy.Answered || r.Answer != "looks good: auth/login.ts" || r.Tries != 1 {
			t.Errorf("Ask = %+v, %v", r, err)
		}
	})
}

func TestASiblingIsNamedByJailSessionOrName(t *testing.T) {
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
	for _, to := range []string{"j-reviewer", "sess-reviewer", "reviewer"} {
		if r := ask(t, b, "worker", to, "review", to); r.State != autonomy.Queued || r.To.Name != "reviewer" {
			t.Errorf("to %s: %s %+v", to, r.State, r.To)
		}
	}
}

// TestASiblingThatMovesIntoAnotherJail is asked before its agent lives anywhere.
func TestASiblingThatMovesIntoAnotherJail(t *testing.T) {
	home := members("worker", "reviewer")
	home[1].Jail = ""
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Siblings: home})
	q := ask(t, b, "worker", "reviewer", "review", "x").ID
	list, err := b.Waiting(t.Context(), member("reviewer"), 0) // in j-reviewer by now
	if err != nil || len(list) != 1 || list[0].ID != q {
		t.Fatalf("it has %d requests, %v", len(list), err)
	}
	moved := member("reviewer")
	moved.Jail = "j-another"
	if _, err := b.Reply(t.Context(), moved, q, "yes"); err != nil {
		t.Error(err)
	}
	twin := autonomy.Member{Session: "j-reviewer", Group: "team"} // a session that is called like the jail
	if _, err := b.Get(t.Context(), twin, q); !errors.Is(err, fault.NotFound) {
		t.Errorf("another reads it: %v", err)
	}
}

func TestOthersThanSiblingsAreNotEvenThere(t *testing.T) {
	strangers := append(members("worker", "twin", "gone"), autonomy.Member{Jail: "j-other", Name: "other", Group: "others"}, autonomy.Member{Jail: "j-twin2", Name: "twin", Group: "team"})
	strangers[2].Closed = true
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Siblings: strangers})
	there, nowhere := ask(t, b, "worker", "other", "x", ""), ask(t, b, "worker", "j-nowhere", "x", "")
	refusedAs(t, there, "no-sibling")
	refusedAs(t, nowhere, "no-sibling")
	if *there.Refusal != *nowhere.Refusal || there.To != nowhere.To {
		t.Errorf("one that is there is refused otherwise: %+v, %+v", there, nowhere)
	}
	refusedAs(t, ask(t, b, "worker", "worker", "x", ""), "self")
	refusedAs(t, ask(t, b, "worker", "j-worker", "x", ""), "self")
	refusedAs(t, ask(t, b, "worker", "gone", "x", ""), "closed")
	refusedAs(t, ask(t, b, "worker", "twin", "x", ""), "ambiguous")
	alone := autonomy.Member{Jail: "j-alone", Name: "alone"}
	r, err := b.Ask(t.Context(), alone, autonomy.Ask{To: "worker", Action: "x"})
	if err != nil {
		t.Fatal(err)
	}
	refusedAs(t, r, "no-sibling")
}

func TestThePolicyIsAskedBeforeAnythingIsKept(t *testing.T) {
	s := openStore(t, "")
	var kept []autonomy.Request
	deny := newBroker(t, s, autonomy.BrokerConfig{
		Policy: func(_ context.Context, from, to autonomy.Member, action, about string) (bool, string, error) {
			if from.Name != "worker" || to.Name != "reviewer" || action != "review" || about != "x" {
				t.Errorf("asked about %s, %s, %s, %s", from.Name, to.Name, action, about)
			}
			kept, _ = s.OpenRequests(t.Context(), "team")
			return false, "opencode.json:12 denies it", nil
		},
	})
	r := ask(t, deny, "worker", "reviewer", "review", "x")
	refusedAs(t, r, "policy")
	if len(kept) != 0 || r.Refusal.Reason != "opencode.json:12 denies it" {
		t.Errorf("%d were kept; %+v", len(kept), r.Refusal)
	}
	broken := newBroker(t, s, autonomy.BrokerConfig{Policy: func(context.Context, autonomy.Member, autonomy.Member, string, string) (bool, string, error) {
		return true, "", errors.New("no answer")
	}})
	if _, err := broken.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review"}); err == nil {
		t.Error("a policy that fails allows")
	}
	unrecorded := newBroker(t, s, autonomy.BrokerConfig{Record: func(context.Context, autonomy.Request) error { return errors.New("disk full") }})
	if _, err := unrecorded.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review"}); err == nil {
		t.Error("what cannot be recorded is sent")
	}
	if open, err := s.OpenRequests(t.Context(), ""); err != nil || len(open) != 0 {
		t.Errorf("%d are kept, %v", len(open), err)
	}
}

func TestTwoWhoWouldWaitForEachOther(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
		var wg sync.WaitGroup
		defer wg.Wait()
		waits := func(from, to string) {
			wg.Go(func() {
				r, err := b.Ask(t.Context(), member(from), autonomy.Ask{To: to, Action: "help", Context: from, ReplyWithin: time.Minute})
				if err != nil || r.State != autonomy.Expired {
					t.Errorf("%s asks %s: %s, %v", from, to, r.State, err)
				}
			})
			synctest.Wait()
		}
		waits("worker", "reviewer")
		waits("reviewer", "tester")
		r, err := b.Ask(t.Context(), member("tester"), autonomy.Ask{To: "worker", Action: "help", ReplyWithin: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		refusedAs(t, r, "cycle")
		if want := "worker waits for reviewer, reviewer waits for tester"; !strings.Contains(r.Refusal.Reason, want) || r.Refusal.RetryAfter <= 0 || r.Refusal.RetryAfter > time.Minute {
			t.Errorf("the refusal is %+v; want it to say %q", r.Refusal, want)
		}
		if r := ask(t, b, "tester", "worker", "by the way", ""); r.State != autonomy.Queued {
			t.Errorf("who does not wait closes no cycle, and is %s: %+v", r.State, r.Refusal)
		}
	})
}

func TestWhoHasGoneOnIsNotWaitedFor(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
		gone, leave := context.WithCancel(t.Context())
		done := make(chan error)
		asked := autonomy.Ask{To: "reviewer", Action: "help", ReplyWithin: time.Minute, Key: "k"}
		go func() {
			_, err := b.Ask(gone, member("worker"), asked)
			done <- err
		}()
		synctest.Wait()
		leave()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Ask = %v", err)
		}
		go b.Ask(t.Context(), member("reviewer"), autonomy.Ask{To: "worker", Action: "what?", ReplyWithin: time.Minute})
		synctest.Wait()
		open, err := b.List(t.Context(), autonomy.RequestFilter{State: autonomy.Queued})
		if err != nil || len(open) != 2 {
			t.Fatalf("%d are open, %v; want both", len(open), err)
		}
		// To wait for the same again would now close a cycle.
		r, err := b.Ask(t.Context(), member("worker"), asked)
		if err != nil {
			t.Fatal(err)
		}
		refusedAs(t, r, "cycle")
		if still, err := b.Get(t.Context(), member("worker"), r.ID); err != nil || still.State != autonomy.Queued {
			t.Errorf("what was sent is %s, %v", still.State, err)
		}
		synctest.Wait()
	})
}

func TestToWaitALittleForWhatWasSentBefore(t *testing.T) {
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
			t.Errorf("after %s it is %s, %v", took, r.State, err)
		}
		r, err = b.Get(t.Context(), member("worker"), r.ID)
		if err != nil || r.Wait {
			t.Errorf("it is said that somebody waits: %v", err)
		}
	})
}

func TestAsLongAsOneOfItsCallersWaitsItWaits(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
		a := autonomy.Ask{To: "reviewer", Action: "help", Key: "k", ReplyWithin: time.Minute}
		gone, leave := context.WithCancel(t.Context())
		go b.Ask(gone, member("worker"), a)
		go b.Ask(t.Context(), member("worker"), a)
		synctest.Wait()
		leave()
		synctest.Wait()
		r, err := b.Ask(t.Context(), member("reviewer"), autonomy.Ask{To: "worker", Action: "what?", ReplyWithin: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		refusedAs(t, r, "cycle")
		time.Sleep(2 * time.Minute)
	})
}

func TestAPolicyThatConflictsIsNotAskedForEver(t *testing.T) {
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Policy: func(context.Context, autonomy.Member, autonomy.Member, string, string) (bool, string, error) {
		return false, "", fault.Newf(fault.Conflict, "approval", "", "withdrawn")
	}})
	if _, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "x", Key: "k"}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Ask = %v", err)
	}
}

func TestTheSameKeyIsTheSameRequest(t *testing.T) {
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
			t.Fatalf("asked twice: %s and %s", r.ID, got[0].ID)
		}
	}
	if _, err := b.Reply(t.Context(), member("reviewer"), got[0].ID, "yes"); err != nil {
		t.Fatal(err)
	}
	a.ReplyWithin = time.Minute
	if r, err := b.Ask(t.Context(), member("worker"), a); err != nil || r.Answer != "yes" {
		t.Errorf("asked again it is %+v, %v", r, err)
	}
	a.Context = "y"
	if _, err := b.Ask(t.Context(), member("worker"), a); !errors.Is(err, fault.Mismatch) {
		t.Errorf("another request with the key: %v", err)
	}
	if r, err := b.Ask(t.Context(), member("tester"), autonomy.Ask{To: "reviewer", Action: "review", Key: "call-7"}); err != nil || r.ID == got[0].ID {
		t.Errorf("another asker's key is the same: %v", err)
	}
}

func TestOnlyTheReceiverAnswersAndOnce(t *testing.T) {
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{})
	q := ask(t, b, "worker", "reviewer", "review", "x").ID
	for _, by := range []string{"worker", "tester"} {
		if _, err := b.Reply(t.Context(), member(by), q, "yes"); !errors.Is(err, fault.NotFound) {
			t.Errorf("%s answers: %v", by, err)
		}
	}
	if _, err := b.Get(t.Context(), member("tester"), q); !errors.Is(err, fault.NotFound) {
		t.Errorf("another reads it: %v", err)
	}
	for range 2 {
		if r, err := b.Reply(t.Context(), member("reviewer"), q, "yes"); err != nil || r.State != autonomy.Answered {
			t.Errorf("Reply = %s, %v", r.State, err)
		}
	}
	if _, err := b.Reply(t.Context(), member("reviewer"), q, "no"); !errors.Is(err, fault.Conflict) {
		t.Errorf("another answer: %v", err)
	}
}

func TestWhatIsNotAcknowledgedIsHandedOverAgain(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Lease: time.Minute})
		reviewer := member("reviewer")
		q := ask(t, b, "worker", "reviewer", "review", "x").ID
		take := func(wait time.Duration, want int) {
			t.Helper()
			list, err := b.Waiting(t.Context(), reviewer, wait)
			if err != nil || len(list) != want || want == 1 && list[0].ID != q {
				t.Errorf("Waiting = %d requests, %v; want %d", len(list), err, want)
			}
		}
		take(0, 1)
		take(50*time.Second, 0) // another has it
		take(20*time.Second, 1) // and has said nothing
		if err := b.Acknowledge(t.Context(), reviewer, q); err != nil {
			t.Fatal(err)
		}
		take(3*time.Minute, 0)
		r, err := b.Get(t.Context(), reviewer, q)
		if err != nil || r.State != autonomy.Delivered || r.Tries != 2 {
			t.Errorf("it is %s after %d, %v", r.State, r.Tries, err)
		}
	})
}

// postman delivers as it is told.
type postman struct {
	mu   sync.Mutex
	got  []id.Request
	says func(n int) error
}

func (p *postman) Deliver(_ context.Context, r autonomy.Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got = append(p.got, r.ID)
	if p.says == nil {
		return nil
	}
	return p.says(len(p.got))
}

func (p *postman) brought() []id.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

func TestARequestIsBroughtUntilItIsThere(t *testing.T) {
	scenario(t, func(t *testing.T) {
		p := &postman{says: func(n int) error {
			if n < 4 {
				return fault.Newf(fault.Unavailable, "", "", "the agent is starting")
			}
			return nil
		}}
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Deliverer: p})
		q := ask(t, b, "worker", "reviewer", "review", "x").ID
		time.Sleep(5 * time.Minute)
		r, err := b.Get(t.Context(), member("worker"), q)
		if err != nil || r.State != autonomy.Delivered || !r.Acked || len(p.brought()) != 4 {
			t.Errorf("it is %s after %d, %v", r.State, len(p.brought()), err)
		}
		// The receiver may not read its inbox, so the request is listed until it is answered.
		if list, err := b.Waiting(t.Context(), member("reviewer"), 0); err != nil || len(list) != 1 || list[0].ID != q {
			t.Errorf("Waiting = %+v, %v, want the request", list, err)
		}
		if list, err := b.Waiting(t.Context(), member("reviewer"), 0); err != nil || len(list) != 0 {
			t.Errorf("Waiting within the lease = %+v, %v, want none", list, err)
		}
		time.Sleep(5 * time.Minute)
		if got := len(p.brought()); got != 4 {
			t.Errorf("it is brought %d times, want 4", got)
		}
		if err := b.Acknowledge(t.Context(), member("reviewer"), q); err != nil {
			t.Fatal(err)
		}
		if list, err := b.Waiting(t.Context(), member("reviewer"), 0); err != nil || len(list) != 0 {
			t.Errorf("Waiting after it was acknowledged = %+v, %v, want none", list, err)
		}
	})
}

// TestWhoseReceiverIsGoneFails, if its asker waits; one who looks for the answer later may
// still get one.
func TestWhoseReceiverIsGoneFails(t *testing.T) {
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
		if err := b.Gone(t.Context(), member("reviewer"), "its run has ended"); err != nil {
			t.Fatal(err)
		}
		if r := <-got; r.State != autonomy.Failed || r.Why != "its run has ended" {
			t.Errorf("the request of who waits = %s %q, want failed", r.State, r.Why)
		}
		if r, err := b.Get(t.Context(), member("worker"), later); err != nil || !r.Open() {
			t.Errorf("the request of who does not wait = %s, %v, want it open", r.State, err)
		}
	})
}

// TestWhoWouldWaitForNobodyIsRefused, and who does not wait is not.
func TestWhoWouldWaitForNobodyIsRefused(t *testing.T) {
	scenario(t, func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Ready: func(context.Context, autonomy.Member) (*autonomy.Refusal, error) {
			return &autonomy.Refusal{Code: "ended", Reason: "its run has ended"}, nil
		}})
		r, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review", ReplyWithin: time.Hour})
		if err != nil || r.State != autonomy.Refused || r.Refusal.Code != "ended" {
			t.Errorf("Ask and wait = %+v, %v, want it refused", r, err)
		}
		r, err = b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review"})
		if err != nil || r.State == autonomy.Refused {
			t.Errorf("Ask without waiting = %+v, %v, want it sent", r, err)
		}
	})
}

// TestWhoLooksForRequestsIsNotBroughtThem has an agent that asks again and again what is
// wanted of it, and does not read what comes to its inbox.
func TestWhoLooksForRequestsIsNotBroughtThem(t *testing.T) {
	scenario(t, func(t *testing.T) {
		p := &postman{}
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Deliverer: p})
		look := func(wait time.Duration) []autonomy.Request {
			t.Helper()
			list, err := b.Waiting(t.Context(), member("reviewer"), wait)
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		look(0)
		time.Sleep(10 * time.Second)
		first := ask(t, b, "worker", "reviewer", "review", "x").ID
		time.Sleep(20 * time.Second) // it is at something else
		if list := look(0); len(list) != 1 || list[0].ID != first || len(p.brought()) != 0 {
			t.Errorf("it finds %d requests, and is brought %q", len(list), p.brought())
		}
		if _, err := b.Reply(t.Context(), member("reviewer"), first, "fine"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute) // it does not look any more
		second := ask(t, b, "worker", "reviewer", "review", "y").ID
		time.Sleep(5 * time.Second)
		if !slices.Equal(p.brought(), []id.Request{second}) {
			t.Errorf("who does not look is brought %q", p.brought())
		}
	})
}

// TestADaemonThatEndsBetweenDeliveryAndItsRecord delivers again, and once: a
// receiver that knows the id has it once.
func TestADaemonThatEndsBetweenDeliveryAndItsRecord(t *testing.T) {
	scenario(t, func(t *testing.T) {
		s := openStore(t, "")
		p := &postman{}
		ended := make(chan struct{})
		var first *autonomy.Broker
		ready := make(chan struct{})
		p.says = func(n int) error {
			if n > 1 {
				return nil
			}
			<-ready
			go func() {
				first.Close()
				close(ended)
			}()
			synctest.Wait() // it is there, and the daemon is ending before it could be kept
			return nil
		}
		first = newBroker(t, s, autonomy.BrokerConfig{Deliverer: p})
		close(ready)
		q := ask(t, first, "worker", "reviewer", "review", "x").ID
		<-ended
		if open, err := s.OpenRequests(t.Context(), ""); err != nil || len(open) != 1 || open[0].Acked {
			t.Fatalf("after the end it is %+v, %v", open, err)
		}
		second := newBroker(t, s, autonomy.BrokerConfig{Deliverer: p})
		time.Sleep(59 * time.Second)
		if len(p.brought()) != 1 {
			t.Errorf("it is delivered again within the lease")
		}
		time.Sleep(5 * time.Minute)
		r, err := second.Get(t.Context(), member("worker"), q)
		if err != nil || !r.Acked || !slices.Equal(p.brought(), []id.Request{q, q}) {
			t.Errorf("it is %+v after %q, %v", r, p.brought(), err)
		}
	})
}

func TestARequestThatIsKeptAndNotSentIsSentByTheNextDaemon(t *testing.T) {
	scenario(t, func(t *testing.T) {
		s := openStore(t, "")
		nobody := func(autonomy.Member) bool { return false }
		p := &postman{}
		first := newBroker(t, s, autonomy.BrokerConfig{Deliverer: p, Serves: nobody})
		q := ask(t, first, "worker", "reviewer", "review", "x").ID
		time.Sleep(time.Minute)
		if err := first.Close(); err != nil || len(p.brought()) != 0 {
			t.Fatal(err, p.brought())
		}
		newBroker(t, s, autonomy.BrokerConfig{Deliverer: p})
		time.Sleep(time.Minute)
		if !slices.Equal(p.brought(), []id.Request{q}) {
			t.Errorf("delivered: %q", p.brought())
		}
	})
}

func TestARequestThatCannotEverArriveFails(t *testing.T) {
	scenario(t, func(t *testing.T) {
		p := &postman{says: func(int) error { return fault.Newf(fault.NotFound, "", "", "its jail is gone") }}
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Deliverer: p})
		r, err := b.Ask(t.Context(), member("worker"), autonomy.Ask{To: "reviewer", Action: "review", ReplyWithin: time.Minute})
		if err != nil || r.State != autonomy.Failed || !strings.Contains(r.Why, "its jail is gone") || len(p.brought()) != 1 {
			t.Errorf("Ask = %s, %q, %v after %d", r.State, r.Why, err, len(p.brought()))
		}
	})
}

func TestWithoutAnAnswerARequestExpires(t *testing.T) {
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
			t.Errorf("an answer that comes late: %v", err)
		}
		if !slices.Equal(recorded, []string{"", "expired"}) {
			t.Errorf("recorded: %q", recorded)
		}
	})
}

func TestNobodyWaitsForOneThatIsGone(t *testing.T) {
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
		if err := <-left; err != nil { // only now both requests have ended
			t.Errorf("Leave: %v", err)
		}
		if r, err := b.Get(t.Context(), member("tester"), other.ID); err != nil || r.State != autonomy.Failed {
			t.Errorf("what it had asked is %s, %v", r.State, err)
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
		refusedAs(t, ask(t, b, "worker", "c", "x", "3"), "fan-out")
		if r := ask(t, b, "a", "c", "x", "3"); r.State != autonomy.Queued {
			t.Errorf("another asker: %+v", r.Refusal)
		}
		if _, err := b.Decline(t.Context(), member("b"), q, "no time"); err != nil {
			t.Fatal(err)
		}
		if r := ask(t, b, "worker", "c", "x", "3"); r.State != autonomy.Queued {
			t.Errorf("after one has ended: %+v", r.Refusal)
		}
	})
	t.Run("Open", func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), quotas(autonomy.Quotas{Open: 2}))
		ask(t, b, "worker", "a", "x", "1")
		ask(t, b, "a", "b", "x", "2")
		refusedAs(t, ask(t, b, "b", "c", "x", "3"), "open")
	})
	t.Run("DepthIsNotWhatTheAgentSays", func(t *testing.T) {
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
			if list, err := b.Waiting(t.Context(), member(line[i+1]), 0); err != nil || len(list) != 1 {
				t.Fatal(len(list), err)
			}
		}
		refusedAs(t, ask(t, b, "c", "d", "x", ""), "depth")
	})
	t.Run("Hops", func(t *testing.T) {
		b := newBroker(t, openStore(t, ""), quotas(autonomy.Quotas{Hops: 3}))
		ask(t, b, "worker", "a", "x", "1")
		if _, err := b.Waiting(t.Context(), member("a"), 0); err != nil {
			t.Fatal(err)
		}
		ask(t, b, "a", "b", "x", "2")
		ask(t, b, "a", "c", "x", "3")
		refusedAs(t, ask(t, b, "a", "d", "x", "4"), "hops")
	})
	t.Run("RateOfAnEdgeAndOfTheGroup", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			b := newBroker(t, openStore(t, ""), quotas(autonomy.Quotas{EdgeRate: autonomy.Rate{Burst: 2, Every: time.Minute}, GroupRate: autonomy.Rate{Burst: 3, Every: time.Minute}}))
			ask(t, b, "worker", "a", "x", "1")
			ask(t, b, "worker", "a", "x", "2")
			no := ask(t, b, "worker", "a", "x", "3")
			refusedAs(t, no, "rate")
			if no.Refusal == nil || no.Refusal.RetryAfter != time.Minute {
				t.Errorf("retry after %v, want a minute", no.Refusal)
			}
			ask(t, b, "worker", "b", "x", "4")
			refusedAs(t, ask(t, b, "a", "b", "x", "5"), "rate")
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
			refusedAs(t, ask(t, b, "a", "worker", "fix", same[0]), "ping-pong")
			if r := ask(t, b, "a", "b", "fix", same[0]); r.State != autonomy.Queued {
				t.Errorf("of another: %+v", r.Refusal)
			}
			if r := ask(t, b, "a", "worker", "fix", "something else"); r.State != autonomy.Queued {
				t.Errorf("something else: %+v", r.Refusal)
			}
			time.Sleep(10 * time.Minute)
			if r := ask(t, b, "a", "worker", "fix", same[0]); r.State != autonomy.Queued {
				t.Errorf("after ten minutes: %+v", r.Refusal)
			}
		})
	})
}

func TestNoMoreSiblingsWorkAtOnceThanMay(t *testing.T) {
	scenario(t, func(t *testing.T) {
		p := &postman{}
		b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{
			Siblings: members("worker", "a", "b", "c"), Deliverer: p, Quotas: autonomy.Quotas{AtWork: 1, Queue: 3},
		})
		first := ask(t, b, "worker", "a", "x", "1")
		synctest.Wait()
		second := ask(t, b, "worker", "b", "x", "2")
		time.Sleep(time.Second)
		third := ask(t, b, "worker", "c", "x", "3")
		time.Sleep(time.Minute)
		if second.Place != 1 || third.Place != 2 || len(p.brought()) != 1 {
			t.Fatalf("places %d and %d, %d delivered", second.Place, third.Place, len(p.brought()))
		}
		if r := ask(t, b, "b", "a", "x", "5"); r.Place != 0 {
			t.Errorf("who is at work takes no other place, and has %d", r.Place)
		}
		// It asks another itself: who waits is not at work, or none of the two would go on.
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
			t.Errorf("the next in the queue is %s, %v", got.State, err)
		}
		if _, err := b.Reply(t.Context(), member("b"), second.ID, "ok"); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		list, err := b.List(t.Context(), autonomy.RequestFilter{Member: member("c").Key(), State: autonomy.Delivered})
		if err != nil || len(list) != 2 {
			t.Fatalf("c has %d, %v", len(list), err)
		}
		for _, r := range list {
			if _, err := b.Reply(t.Context(), member("c"), r.ID, "ok"); err != nil {
				t.Error(err)
			}
		}
		if r := <-done; r.Answer != "ok" {
			t.Errorf("it is %s", r.State)
		}
		if got, err := b.Get(t.Context(), member("a"), first.ID); err != nil || got.State != autonomy.Delivered {
			t.Errorf("the first is %s, %v", got.State, err)
		}
	})
}

func TestWhoWouldWaitBehindTooManyIsToldSo(t *testing.T) {
	b := newBroker(t, openStore(t, ""), autonomy.BrokerConfig{Siblings: members("worker", "a", "b", "c"), Quotas: autonomy.Quotas{AtWork: 1, Queue: 1}})
	ask(t, b, "worker", "a", "x", "1")
	if _, err := b.Waiting(t.Context(), member("a"), 0); err != nil {
		t.Fatal(err)
	}
	ask(t, b, "worker", "b", "x", "2")
	refusedAs(t, ask(t, b, "worker", "c", "x", "3"), "busy")
	if list, err := b.Waiting(t.Context(), member("b"), 0); err != nil || len(list) != 0 {
		t.Errorf("b is at work too: %d, %v", len(list), err)
	}
}

func TestAHundredAskAtOnce(t *testing.T) {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("m", i))
	}
	loose := autonomy.Rate{Burst: 1 << 20, Every: time.Nanosecond}
	arrived := make(chan autonomy.Request, 1000)
	b := newBroker(t, openStore(t, filepath.Join(t.TempDir(), "g.db")), autonomy.BrokerConfig{
		Siblings: members(append(names, "hub")...), Deliverer: hand(arrived), Lease: time.Hour,
		Quotas: autonomy.Quotas{Open: 200, Queue: 200, GroupRate: loose, EdgeRate: loose},
	})
	var wg sync.WaitGroup
	for _, n := range names {
		wg.Go(func() {
			r, err := b.Ask(t.Context(), member(n), autonomy.Ask{To: "hub", Action: "help", Context: n, ReplyWithin: time.Hour})
			if err != nil || r.Answer != "for "+n {
				t.Errorf("%s got %q, %s, %v", n, r.Answer, r.State, err)
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
		t.Errorf("%d were delivered twice", n)
	}
}

// hand puts what arrives into a channel.
type hand chan<- autonomy.Request

func (h hand) Deliver(_ context.Context, r autonomy.Request) error {
	h <- r
	return nil
}
