package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
)

func TestSendOpensSessionAndIsIdempotent(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	first := must(h.Send(ctx, run.Message{Session: "sess-autonomy-demo", From: "web", Text: "hello", Key: "w-1"}))(t)
	again := must(h.Send(ctx, run.Message{Session: "sess-autonomy-demo", From: "web", Text: "hello", Key: "w-1"}))(t)
	if again.ID != first.ID || again.Seq != 1 {
		t.Errorf("second Send = %+v, want the first message", again)
	}
	// The key of an outgoing message is independent of those of incoming ones.
	if out := must(h.Post(ctx, run.Message{Session: "sess-autonomy-demo", Text: "hi", Key: "w-1"}))(t); out.ID == first.ID || out.Seq != 1 {
		t.Errorf("Post = %+v", out)
	}
	must(h.Send(ctx, run.Message{Session: "sess-autonomy-demo", Text: strings.Repeat("x", 100<<10)}))(t)
	var stream []string
	for _, e := range events(t, h.Manager, "sess-autonomy-demo") {
		var body struct{ Text string }
		if err := json.Unmarshal(e.Body, &body); err != nil {
			t.Fatal(err)
		}
		stream = append(stream, strings.TrimSpace(string(e.Kind)+" "+body.Text))
	}
	if want := []string{"session.opened", "message.in hello", "message.out hi", "message.in"}; !slices.Equal(stream, want) {
		t.Errorf("events = %q, want %q", stream, want)
	}
	for _, m := range []run.Message{
		{Session: "s"}, {Text: "t"}, {Session: "s s", Text: "t"}, {Session: "s", Text: "\xff"}, {Session: "s", Text: "t", Key: "\n"},
		{Session: "s", Text: "t", Labels: []manifest.Label{"gossip"}},
	} {
		_, err := h.Send(ctx, m)
		wantKind(t, fmt.Sprintf("Send(%+v)", m), err, fault.Invalid)
	}
	_, err := h.Send(ctx, run.Message{Session: "s", Text: strings.Repeat("x", 300<<10)})
	wantKind(t, "a text of 300 KiB", err, fault.TooLarge)
}

func TestInboxWaitsForMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		began := time.Now()
		if list, err := h.Inbox(ctx, "s", 0, 0); err != nil || len(list) != 0 || time.Since(began) != 20*time.Second {
			t.Errorf("Inbox without messages = %v, %v after %s", list, err, time.Since(began))
		}
		got := make(chan []run.Message, 1)
		go func() {
			list, err := h.Inbox(t.Context(), "s", 0, 0)
			if err != nil {
				t.Error(err)
			}
			got <- list
		}()
		synctest.Wait()
		began = time.Now()
		must(h.Send(t.Context(), run.Message{Session: "s", Text: "hello"}))(t)
		if list := <-got; len(list) != 1 || list[0].Text != "hello" || time.Since(began) != 0 {
			t.Errorf("Inbox = %v after %s", list, time.Since(began))
		}
		// With a cancelled context, Inbox returns existing messages.
		over, cancel2 := context.WithCancel(t.Context())
		cancel2()
		if list := must(h.Inbox(over, "s", 0, 0))(t); len(list) != 1 {
			t.Errorf("Inbox with a cancelled context = %v", list)
		}
		if list := must(h.Inbox(over, "s", 1, 0))(t); len(list) != 0 {
			t.Errorf("Inbox after the last message = %v", list)
		}
	})
}

func TestFollowYieldsAllEventsInOrder(t *testing.T) {
	h := newHarness(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const sent = 300
	var wg sync.WaitGroup
	var followers [3][]int64
	for i := range followers {
		wg.Go(func() {
			for e, err := range h.Follow(ctx, "s", 0) {
				if err != nil {
					t.Error(err)
					return
				}
				followers[i] = append(followers[i], e.Seq)
				if len(followers[i]) == sent+1 {
					return
				}
			}
		})
	}
	for n := range sent {
		must(h.Send(ctx, run.Message{Session: "s", Text: fmt.Sprint(n)}))(t)
	}
	wg.Wait()
	for i, seqs := range followers {
		for n, seq := range seqs {
			if seq != int64(n+1) {
				t.Fatalf("follower %d got event %d at position %d", i, seq, n+1)
			}
		}
	}
	// Follow can continue at any event.
	for e, err := range h.Follow(ctx, "s", sent) {
		if err != nil || e.Seq != sent+1 {
			t.Errorf("Follow after event %d = %d, %v", sent, e.Seq, err)
		}
		break
	}
	cancel()
	for e, err := range h.Follow(ctx, "s", sent+1) {
		t.Errorf("Follow with a cancelled context = %+v, %v", e, err)
	}
}

func TestFollowYieldsEventsOfOtherManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		other := h.manager(t)
		seen := make(chan run.Event)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(seen)
			for e := range h.Follow(ctx, "s", 0) {
				seen <- e
			}
		}()
		synctest.Wait()
		must(other.Open(ctx, run.Session{ID: "s"}))(t)
		if e := <-seen; e.Kind != run.SessionOpened {
			t.Errorf("event = %+v", e)
		}
		must(other.AddEvent(ctx, run.Event{Session: "s", Kind: "watchdog.warned"}))(t)
		if e := <-seen; e.Kind != "watchdog.warned" || e.Seq != 2 || string(e.Body) != "{}" {
			t.Errorf("event = %+v", e)
		}
		cancel()
		if e, more := <-seen; more {
			t.Errorf("event after cancel = %+v", e)
		}
	})
}

func TestSubscriberReceivesWrittenEvents(t *testing.T) {
	h := newHarness(t)
	var kinds, other []run.EventKind
	defer h.Subscribe(func(e run.Event) { kinds = append(kinds, e.Kind) })()
	cancel := h.Subscribe(func(e run.Event) { other = append(other, e.Kind) })
	start(t, h.Manager, run.Request{Session: "s"})
	want := []run.EventKind{run.SessionOpened, run.RunCreated}
	if !slices.Equal(kinds, want) || !slices.Equal(other, want) {
		t.Errorf("the subscribers received %v and %v, want %v", kinds, other, want)
	}
	cancel()
	start(t, h.Manager, run.Request{Session: "s"})
	if len(kinds) != 3 || len(other) != 2 {
		t.Errorf("after a cancel the subscribers have received %v and %v, want one event more and none", kinds, other)
	}
	_, err := h.AddEvent(t.Context(), run.Event{Session: "none", Kind: "k"})
	wantKind(t, "Note in an unknown session", err, fault.NotFound)
	for _, e := range []run.Event{{Session: "s"}, {Session: "s", Kind: "k", Body: json.RawMessage(`{`)}} {
		_, err := h.AddEvent(t.Context(), e)
		wantKind(t, fmt.Sprintf("Note(%+v)", e), err, fault.Invalid)
	}
}

func TestFailedDeliveryIsRetriedUntilDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(c *run.Config) { c.Retry = run.Retry{First: time.Second, Longest: 4 * time.Second, Attempts: 4} })
		ctx := t.Context()
		m := must(h.Post(ctx, run.Message{Session: "s", Text: "out"}, "web", "mail"))(t)
		due := must(h.TakeDeliveries(ctx, "mail", 10))(t)
		if len(due) != 1 || due[0].Message != m.ID || due[0].To != "mail" {
			t.Fatalf("Take = %+v", due)
		}
		if again := must(h.TakeDeliveries(ctx, "mail", 10))(t); len(again) != 0 {
			t.Errorf("second Take = %+v, want none", again)
		}
		mail, web := due[0], must(h.TakeDeliveries(ctx, "web", 10))(t)[0]
		if err := h.Delivered(ctx, web); err != nil {
			t.Fatal(err)
		}
		attempts := 0
		for d := mail; d.State == run.Pending; attempts++ {
			var err error
			d, err = h.NotDelivered(ctx, d, errors.New("no answer"))
			if err != nil {
				t.Fatal(err)
			}
			if pause := time.Until(d.Next); d.State == run.Pending && (pause < 500*time.Millisecond || pause > 4*time.Second) {
				t.Errorf("pause after %d attempts = %s", d.Attempts, pause)
			}
			time.Sleep(time.Until(d.Next))
			if due := must(h.TakeDeliveries(ctx, "mail", 10))(t); d.State == run.Pending && (len(due) != 1 || due[0].ID != mail.ID || due[0].Attempts != d.Attempts) {
				t.Fatalf("Take = %+v", due)
			}
		}
		if attempts != 4 {
			t.Errorf("%d attempts, want 4", attempts)
		}
		list := must(h.Deliveries(ctx, m.ID))(t)
		if list[0].State != run.Dead || list[0].Error != "no answer" || list[1].State != run.Delivered {
			t.Errorf("Deliveries = %+v", list)
		}
		// A late failure does not change a successful delivery.
		if d := must(h.NotDelivered(ctx, web, errors.New("late")))(t); d.State != run.Delivered {
			t.Errorf("delivery is %s, want delivered", d.State)
		}
		if d := must(h.Redeliver(ctx, list[0]))(t); d.State != run.Pending || d.Attempts != 0 {
			t.Errorf("Redeliver = %+v", d)
		}
		if due := must(h.TakeDeliveries(ctx, "mail", 10))(t); len(due) != 1 {
			t.Errorf("Take after Redeliver = %+v", due)
		}
		_, err := h.Redeliver(ctx, list[1])
		wantKind(t, "Redeliver of a successful delivery", err, fault.Conflict)
		// A delivery that was taken without a result is due again after Patience.
		time.Sleep(time.Minute)
		if due := must(h.TakeDeliveries(ctx, "mail", 10))(t); len(due) != 1 {
			t.Errorf("Take after a minute = %+v", due)
		}
	})
}

func TestRestartedHolderTakesItsDeliveriesImmediately(t *testing.T) {
	holder := func(c *run.Config) { c.Holder = "me" }
	h := newHarness(t, holder)
	ctx := t.Context()
	must(h.Post(ctx, run.Message{Session: "s", Text: "out"}, "web"))(t)
	failed := must(h.Post(ctx, run.Message{Session: "s", Text: "out again"}, "web"))(t)
	first := must(h.TakeDeliveries(ctx, "web", 10))(t)
	if len(first) != 2 {
		t.Fatalf("Take = %+v", first)
	}
	for _, d := range first {
		if d.Message == failed.ID {
			must(h.NotDelivered(ctx, d, errors.New("no answer")))(t)
		}
	}
	other := h.manager(t, func(c *run.Config) { c.Holder = "other" })
	if got := must(other.TakeDeliveries(ctx, "web", 10))(t); len(got) != 0 {
		t.Errorf("Take of another holder = %+v, want none", got)
	}
	again := must(h.manager(t, holder).TakeDeliveries(ctx, "web", 10))(t)
	if len(again) != 1 || again[0].ID != first[0].ID && again[0].ID != first[1].ID || again[0].Message == failed.ID {
		t.Errorf("Take after a restart = %+v, want the delivery without a result", again)
	}
}

func TestDeadDeliveriesAreListed(t *testing.T) {
	h := newHarness(t, func(c *run.Config) { c.Retry = run.Retry{Attempts: 1} })
	ctx := t.Context()
	for range 3 {
		must(h.Post(ctx, run.Message{Session: "s", Text: "out"}, "web", "mail"))(t)
	}
	for _, d := range must(h.TakeDeliveries(ctx, "web", 2))(t) {
		must(h.NotDelivered(ctx, d, errors.New("no answer")))(t)
	}
	if n := must(h.Undelivered(ctx, "web", run.Dead))(t); n != 2 {
		t.Errorf("%d dead deliveries, want 2", n)
	}
	if n := must(h.Undelivered(ctx, "mail", run.Pending))(t); n != 3 {
		t.Errorf("%d pending deliveries, want 3", n)
	}
	one := must(h.DeliveriesTo(ctx, run.DeliveryFilter{To: "web", State: run.Dead, Limit: 1}))(t)
	two := must(h.DeliveriesTo(ctx, run.DeliveryFilter{To: "web", State: run.Dead, Limit: 1, After: one[0].ID}))(t)
	if len(one) != 1 || len(two) != 1 || one[0].ID == two[0].ID {
		t.Errorf("pages = %+v and %+v", one, two)
	}
	if d := must(h.Delivery(ctx, one[0].ID))(t); d.State != run.Dead || d.Error != "no answer" {
		t.Errorf("Delivery = %+v", d)
	}
	for _, did := range []string{"", "m-aaaaaaaaaaaa.web", one[0].ID + "x", "."} {
		_, err := h.Delivery(ctx, did)
		wantKind(t, did, err, fault.NotFound)
	}
}

func TestMessageResumesRunWaitingForEvent(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s"})
	other := start(t, h.Manager, run.Request{Session: "s"})
	for _, rid := range []id.Run{r.ID, other.ID} {
		if got := must(h.WaitForEvent(ctx, rid, 0, "for the build"))(t); got.State != run.Paused || got.Why != run.ForEvent {
			t.Fatalf("run is %s (%s), want paused for an event", got.State, got.Why)
		}
	}
	must(h.Post(ctx, run.Message{Session: "s", Text: "an outgoing message is no event"}))(t)
	must(h.Send(ctx, run.Message{Session: "elsewhere", Text: "built"}))(t)
	must(h.Send(ctx, run.Message{Session: "s", Run: r.ID, Text: "built", Key: "k"}))(t)
	if got := must(h.Get(ctx, r.ID))(t); got.State != run.Active {
		t.Errorf("recipient is %s (%s), want active", got.State, got.Why)
	}
	if got := must(h.Get(ctx, other.ID))(t); got.State != run.Paused {
		t.Errorf("other run is %s, want paused", got.State)
	}
	// An existing message satisfies WaitForEvent.
	if got := must(h.WaitForEvent(ctx, r.ID, 0, ""))(t); got.State != run.Active {
		t.Errorf("run with an unread message is %s, want active", got.State)
	}
	if got := must(h.WaitForEvent(ctx, r.ID, 1, ""))(t); got.State != run.Paused {
		t.Errorf("run without unread messages is %s, want paused", got.State)
	}
	must(h.Send(ctx, run.Message{Session: "s", Text: "built", Key: "k"}))(t) // again
	if got := must(h.Get(ctx, r.ID))(t); got.State != run.Paused {
		t.Errorf("run after a duplicate message is %s, want paused", got.State)
	}
	must(h.Send(ctx, run.Message{Session: "s", Text: "all of you"}))(t)
	for _, rid := range []id.Run{r.ID, other.ID} {
		if got := must(h.Get(ctx, rid))(t); got.State != run.Active {
			t.Errorf("run after a message to all is %s, want active", got.State)
		}
	}
	must(h.Move(ctx, r.ID, run.Move{To: run.Paused, Why: run.ByOperator}))(t)
	must(h.Send(ctx, run.Message{Session: "s", Text: "hello"}))(t)
	if got := must(h.Get(ctx, r.ID))(t); got.State != run.Paused {
		t.Errorf("run paused by an operator is %s, want paused", got.State)
	}
	_, err := h.WaitForEvent(ctx, r.ID, -1, "")
	wantKind(t, "after -1", err, fault.Invalid)
}

// WaitForEvent and Send of another Manager run concurrently. The run must not stay paused.
func TestWaitForEventDoesNotMissConcurrentMessage(t *testing.T) {
	h := newDiskHarness(t)
	other := h.manager(t)
	ctx := t.Context()
	r := start(t, h.Manager, run.Request{Session: "s"})
	for n := range int64(20) {
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := h.WaitForEvent(ctx, r.ID, n, ""); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := other.Send(ctx, run.Message{Session: "s", Text: "event"}); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		if got := must(h.Get(ctx, r.ID))(t); got.State != run.Active {
			t.Fatalf("round %d: run is %s (%s), want active", n, got.State, got.Why)
		}
	}
}
