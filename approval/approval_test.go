package approval_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/approval"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/store/storetest"
)

// A desk is a queue on a real database, and what it was seen to do.
type desk struct {
	*approval.Queue
	t     *testing.T
	where string
	cfg   approval.Config

	mu         sync.Mutex
	events     []approval.Event
	remembered []policy.Rule
	unwilling  error  // of recording
	forgetful  error  // of remembering
	slow       func() // before something is remembered
}

func newDesk(t *testing.T, cfg approval.Config) *desk {
	t.Helper()
	d := &desk{t: t, where: filepath.Join(t.TempDir(), "g.db"), cfg: cfg}
	d.open()
	return d
}

// open opens the queue, for a restart anew.
func (d *desk) open() {
	d.t.Helper()
	cfg := d.cfg
	cfg.Record = func(_ context.Context, e approval.Event) (int64, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.unwilling != nil {
			return 0, d.unwilling
		}
		d.events = append(d.events, e)
		return int64(len(d.events)), nil
	}
	cfg.Remember = func(_ context.Context, r approval.Request, rule policy.Rule) error {
		if d.slow != nil {
			d.slow()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.forgetful == nil {
			d.remembered = append(d.remembered, rule)
		}
		return d.forgetful
	}
	s, err := storetest.Open(d.t, d.where)
	if err != nil {
		d.t.Fatal(err)
	}
	q, err := approval.New(d.t.Context(), s.Approvals(), cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	d.Queue = q
	d.t.Cleanup(func() {
		if err := errors.Join(q.Close(), q.Close(), s.Close()); err != nil {
			d.t.Error(err)
		}
	})
}

func (d *desk) restart() {
	d.t.Helper()
	d.Close()
	d.open()
	if err := d.RememberOwed(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) kinds() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, e := range d.events {
		all = append(all, string(e.Kind))
	}
	return strings.Join(all, " ")
}

func (d *desk) mustOpen(r approval.Request) approval.Request {
	d.t.Helper()
	got, err := d.Open(d.t.Context(), r)
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

func (d *desk) mustAnswer(r approval.Request, a approval.Answer) approval.Request {
	d.t.Helper()
	got, err := d.Answer(d.t.Context(), r.ID, a)
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

type asked struct {
	approval.Request
	err error
}

func TestARequestThatIsWithdrawnBeforeAskWaitsIsNotPutAgain(t *testing.T) {
	d := newDesk(t, approval.Config{})
	puts := 0
	got, err := d.Queue.Ask(t.Context(), run("rm x"), func(r approval.Request) {
		puts++
		if _, err := d.Withdraw(t.Context(), r.ID, "the jail was rewound"); err != nil {
			t.Error(err)
		}
	})
	if err != nil || got.State != approval.Withdrawn || puts != 1 {
		t.Errorf("Ask = %q, %v after %d requests, want withdrawn after 1", got.State, err, puts)
	}
	if left := d.Pending(); len(left) != 0 {
		t.Errorf("Pending = %+v, want nothing", left)
	}
}

// ask asks in the background; once it returns the question is pending.
func (d *desk) ask(ctx context.Context, r approval.Request) <-chan asked {
	d.t.Helper()
	done := make(chan asked, 1)
	go func() {
		got, err := d.Queue.Ask(ctx, r, nil)
		done <- asked{got, err}
	}()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		for _, p := range d.Pending() {
			if p.Question.Resource == r.Question.Resource {
				return done
			}
		}
		if len(done) > 0 {
			return done
		}
		if time.Now().After(end) {
			d.t.Fatal("the question does not become pending")
		}
	}
}

var (
	anna = approval.Person{ID: "t-anna", Name: "anna", Role: "operator"}
	ben  = approval.Person{ID: "t-ben", Name: "ben", Role: "admin"}
)

func run(line string) approval.Request {
	return approval.Request{
		Question: policy.Question{
			Subject: policy.Subject{Jail: "j-aaaaaaaaaaaa", Session: "s1", Agent: "worker"}, Action: policy.ActionRun, Resource: line,
			Attributes: map[string]string{"cwd": "/srv"},
		},
		Rule:   policy.Rule{Action: "bash", Pattern: "*", Effect: policy.Ask, File: "opencode.json", Line: 7},
		Reason: "everything else is asked",
	}
}

func elevated(line string) approval.Request {
	r := run(line)
	r.Tier = approval.Elevated
	return r
}

func allow(by approval.Person) approval.Answer {
	return approval.Answer{Verdict: approval.Allow, By: by, Channel: "api"}
}

func deny(by approval.Person, reason string) approval.Answer {
	return approval.Answer{Verdict: approval.Deny, Reason: reason, By: by, Channel: "api"}
}

func wantKind(t *testing.T, err error, kind fault.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error is %v, want %s", err, kind)
	}
}

func TestAnAgentWaitsUntilSomebodyAllows(t *testing.T) {
	d := newDesk(t, approval.Config{})
	done := d.ask(t.Context(), run("rm -rf build"))
	r := d.Pending()[0]
	if r.State != approval.Pending || !strings.HasPrefix(string(r.ID), "a-") || r.Hash != approval.HashOf(r.Question) || r.Tier != approval.Standard {
		t.Errorf("the request is %+v", r)
	}
	if left := time.Until(r.Expires); left < 14*time.Minute || left > 15*time.Minute {
		t.Errorf("it expires in %s, want the default of 15 min", left)
	}
	d.mustAnswer(r, allow(anna))
	got := <-done
	q, granted := got.Granted()
	if got.err != nil || !granted || q.Resource != "rm -rf build" || got.Answer.By != anna || got.Answer.Hash != r.Hash || !got.Taken {
		t.Errorf("got %+v, %v", got.Request, got.err)
	}
	if got.Outcome != "allowed by anna" || got.Entry != 2 || d.kinds() != "asked answered" {
		t.Errorf("outcome %q, entry %d, recorded %q", got.Outcome, got.Entry, d.kinds())
	}
	if len(d.Pending()) != 0 {
		t.Error("it is still pending")
	}
}

func TestADenialSaysWhoAndWhy(t *testing.T) {
	d := newDesk(t, approval.Config{})
	done := d.ask(t.Context(), run("rm x"))
	d.mustAnswer(d.Pending()[0], deny(anna, "not on a Friday"))
	got := <-done
	if _, granted := got.Granted(); granted || got.err != nil || got.Outcome != "denied by anna: not on a Friday" {
		t.Errorf("got %+v, %v", got.Request, got.err)
	}
}

func TestSomethingElseIsAllowedInItsPlace(t *testing.T) {
	d := newDesk(t, approval.Config{})
	done := d.ask(t.Context(), run("rm -rf /"))
	r := d.Pending()[0]
	modify := approval.Answer{Verdict: approval.Modify, Resource: "rm -rf build", By: anna, Channel: "api"}
	d.mustAnswer(r, modify)
	got := <-done
	q, granted := got.Granted()
	if !granted || q.Resource != "rm -rf build" || len(q.Attributes) != 0 || q.Subject != r.Question.Subject {
		t.Errorf("granted %+v, %v", q, granted)
	}
	if got.Answer.Hash != approval.HashOf(q) || got.Answer.Hash == r.Hash {
		t.Error("the answer is not bound to what it allows")
	}
	for _, bad := range []approval.Answer{
		{Verdict: approval.Modify, By: anna},
		{Verdict: approval.Modify, Resource: "x", Scope: approval.Always, By: anna},
		{Verdict: approval.Allow, Resource: "x", By: anna},
		{Verdict: approval.Modify, Resource: "a\x00b", By: anna},
		{Verdict: approval.Modify, Resource: "ls", By: anna}, // as it was asked
	} {
		r := d.mustOpen(run("ls"))
		_, err := d.Answer(t.Context(), r.ID, bad)
		wantKind(t, err, fault.Invalid)
	}
}

func TestTheFirstAnswerCounts(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := d.mustOpen(run("rm x"))
	d.mustAnswer(r, allow(anna))
	again := d.mustAnswer(r, allow(anna)) // the same again is no error
	if again.State != approval.Answered {
		t.Errorf("answered again it is %s", again.State)
	}
	for _, other := range []approval.Answer{deny(anna, ""), deny(ben, ""), allow(ben), {Verdict: approval.Allow, Scope: approval.Always, By: anna}} {
		_, err := d.Answer(t.Context(), r.ID, other)
		wantKind(t, err, fault.Conflict)
		if err == nil || !strings.Contains(err.Error(), "anna said allow, once at 20") {
			t.Errorf("the error does not say who and when: %v", err)
		}
	}
	if d.kinds() != "asked answered" {
		t.Errorf("recorded %q", d.kinds())
	}
	_, err := d.Answer(t.Context(), "a-nosuchnosuch", allow(anna))
	wantKind(t, err, fault.NotFound)
}

func TestManyAnswerAtOnceAndOneWins(t *testing.T) {
	d := newDesk(t, approval.Config{})
	for range 5 {
		done := d.ask(t.Context(), run("rm x"))
		r := d.Pending()[0]
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for i := range 8 {
			wg.Go(func() {
				a := deny(approval.Person{ID: string(rune('a' + i)), Name: string(rune('a' + i)), Role: "operator"}, "")
				if i%2 == 0 {
					a.Verdict = approval.Allow
				}
				_, err := d.Answer(t.Context(), r.ID, a)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				} else if !errors.Is(err, fault.Conflict) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := <-done; won != 1 || got.err != nil {
			t.Errorf("%d answers won, %v", won, got.err)
		}
	}
}

func TestAnAgentNeverAnswersItsOwn(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := d.mustOpen(run("rm x"))
	for _, p := range []approval.Person{
		{ID: "t-x", Name: "x", Role: "agent"},
		{ID: "t-x", Name: "x", Role: "viewer"},
		{ID: "t-x", Name: "x"},
		{Name: "x", Role: "admin"},
		{ID: "t-x", Role: "admin", Subject: policy.Subject{Jail: "j-aaaaaaaaaaaa"}},
		{ID: "t-x", Role: "admin", Subject: policy.Subject{Session: "s1"}},
	} {
		for _, a := range []approval.Answer{allow(p), deny(p, "")} {
			_, err := d.Answer(t.Context(), r.ID, a)
			wantKind(t, err, fault.Denied)
		}
	}
	if len(d.Pending()) != 1 {
		t.Error("it is no longer pending")
	}
	d.mustAnswer(r, allow(anna))
	_, err := d.Answer(t.Context(), r.ID, allow(approval.Person{ID: "t-x", Role: "agent"}))
	wantKind(t, err, fault.Denied) // nor does it learn who did
}

func TestElevatedTakesTwo(t *testing.T) {
	d := newDesk(t, approval.Config{})
	done := d.ask(t.Context(), elevated("deploy"))
	r := d.Pending()[0]
	renamed := approval.Person{ID: anna.ID, Name: "annabel", Role: "operator"}
	for _, a := range []approval.Answer{allow(anna), allow(anna), allow(renamed)} { // the same one twice is one
		if got := d.mustAnswer(r, a); got.State != approval.Pending || got.First == nil || got.First.By != anna {
			t.Fatalf("after one of two it is %+v", got)
		}
	}
	for _, a := range []approval.Answer{
		allow(approval.Person{ID: "t-other", Name: "anna", Role: "operator"}), // her other token
		{Verdict: approval.Modify, Resource: "deploy --dry-run", By: ben},
	} {
		_, err := d.Answer(t.Context(), r.ID, a)
		wantKind(t, err, fault.Conflict)
	}
	d.mustAnswer(r, allow(ben))
	got := <-done
	if _, granted := got.Granted(); !granted || got.First.By != anna || got.Answer.By != ben {
		t.Errorf("got %+v", got.Request)
	}
	if d.kinds() != "asked seconded answered" {
		t.Errorf("recorded %q", d.kinds())
	}
	d.mustAnswer(r, allow(anna)) // both have said so
}

func TestElevatedIsAllowedByWhoTypesThePhrase(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := d.mustOpen(elevated("deploy"))
	if r.Phrase == "" || !strings.Contains(approval.Show(r, 1000).Phrase, r.Phrase) {
		t.Fatalf("the phrase %q is not shown", r.Phrase)
	}
	wrong := allow(anna)
	wrong.Typed = "allow"
	_, err := d.Answer(t.Context(), r.ID, wrong)
	wantKind(t, err, fault.Invalid)
	if d.Pending()[0].First != nil {
		t.Error("a wrong phrase counts as the first of two")
	}
	right := allow(anna)
	right.Typed = " " + r.Phrase + "\n"
	if got := d.mustAnswer(r, right); got.State != approval.Answered {
		t.Errorf("it is %s", got.State)
	}
	// One alone denies.
	r = d.mustOpen(elevated("deploy again"))
	d.mustAnswer(r, allow(anna))
	if got := d.mustAnswer(r, deny(ben, "no")); got.Answer.Verdict != approval.Deny {
		t.Errorf("got %+v", got)
	}
}

func TestTheSecondOfTwoComesAfterARestart(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := d.mustOpen(elevated("deploy"))
	d.mustAnswer(r, allow(anna))
	d.restart()
	if got := d.mustAnswer(r, allow(ben)); got.State != approval.Answered {
		t.Errorf("it is %s", got.State)
	}
}

func TestPreapprovedAnswersItself(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := run("make test")
	r.Tier = approval.Preapproved
	for range 3 {
		got, err := d.Ask(t.Context(), r, nil)
		if _, granted := got.Granted(); err != nil || !granted || got.Answer.By.Role != "policy" {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if d.kinds() != "answered answered answered" {
		t.Errorf("recorded %q", d.kinds())
	}
	if list, err := d.List(t.Context(), approval.Filter{}); err != nil || len(list) != 3 {
		t.Errorf("%d are kept, %v", len(list), err)
	}
}

func TestTheSameQuestionIsAskedOnce(t *testing.T) {
	d := newDesk(t, approval.Config{})
	first := d.ask(t.Context(), run("rm x"))
	second := d.ask(t.Context(), run("rm x"))
	other := run("rm x")
	other.Question.Subject.Jail = "j-bbbbbbbbbbbb"
	d.mustOpen(other)
	elsewhere := run("rm x")
	elsewhere.Question.Attributes = map[string]string{"cwd": "/"}
	d.mustOpen(elsewhere)
	d.mustOpen(elevated("rm x"))
	if n := len(d.Pending()); n != 4 {
		t.Fatalf("%d are pending, want 4", n)
	}
	for d.Pending()[0].Waiting != 2 {
		time.Sleep(time.Millisecond)
	}
	d.mustAnswer(d.Pending()[0], allow(anna))
	for _, done := range []<-chan asked{first, second} {
		select {
		case got := <-done:
			if got.err != nil {
				t.Error(got.err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("one of the two still waits")
		}
	}
}

func TestAnAnswerIsTakenOnce(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := d.mustOpen(run("rm x")) // by long poll: nobody waits in Ask
	d.mustAnswer(r, allow(anna))
	if got, err := d.Wait(t.Context(), r.ID); err != nil || got.State != approval.Answered || got.Taken {
		t.Errorf("Wait = %+v, %v", got, err)
	}
	_, err := d.Take(t.Context(), r.ID, run("rm y").Question)
	wantKind(t, err, fault.Denied)
	if got, err := d.Take(t.Context(), r.ID, r.Question); err != nil || !got.Taken {
		t.Errorf("Take = %+v, %v", got, err)
	}
	_, err = d.Take(t.Context(), r.ID, r.Question)
	wantKind(t, err, fault.Conflict)
	// It is not the answer of the next who asks the same.
	if next := d.mustOpen(run("rm x")); next.ID == r.ID || next.State != approval.Pending {
		t.Errorf("the next gets %+v", next)
	}
}

func TestAnAnswerGivenWhileNobodyWaitedIsNotLost(t *testing.T) {
	d := newDesk(t, approval.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	done := d.ask(ctx, run("rm x"))
	r := d.Pending()[0]
	cancel()
	if got := <-done; !errors.Is(got.err, context.Canceled) {
		t.Fatalf("Ask = %v", got.err)
	}
	if len(d.Pending()) != 1 {
		t.Fatal("it was withdrawn with its asker")
	}
	d.restart()
	if p := d.Pending(); len(p) != 1 || p[0].ID != r.ID {
		t.Fatalf("after a restart %v are pending", p)
	}
	d.mustAnswer(r, allow(anna))
	d.restart()
	got, err := d.Ask(t.Context(), run("rm x"), nil)
	if err != nil || got.ID != r.ID || !got.Taken {
		t.Errorf("asked again: %+v, %v", got, err)
	}
	d.restart()
	if next := d.mustOpen(run("rm x")); next.ID == r.ID {
		t.Error("the answer is given twice")
	}
}

func TestNobodyAnswersAndItIsDenied(t *testing.T) {
	d := newDesk(t, approval.Config{Wait: 50 * time.Millisecond})
	got, err := d.Ask(t.Context(), run("rm x"), nil)
	if _, granted := got.Granted(); err != nil || granted || got.State != approval.Expired || !strings.HasPrefix(got.Outcome, "denied: nobody answered within") {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = d.Answer(t.Context(), got.ID, allow(anna))
	wantKind(t, err, fault.Conflict)
	if d.kinds() != "asked expired" {
		t.Errorf("recorded %q", d.kinds())
	}
}

func TestWhatIsLongFinishedIsForgotten(t *testing.T) {
	d := newDesk(t, approval.Config{})
	waits, done := d.mustOpen(run("rm x")), run("rm y")
	done.Expires = time.Now().Add(200 * time.Millisecond)
	done, err := d.Ask(t.Context(), done, nil)
	if err != nil || done.State != approval.Expired {
		t.Fatalf("it is %+v, %v", done, err)
	}
	d.cfg.Keep = time.Nanosecond
	d.restart()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := d.Get(t.Context(), done.ID); errors.Is(err, fault.NotFound) {
			break
		} else if err != nil || time.Now().After(end) {
			t.Fatalf("it is still there, %v", err)
		}
	}
	if got, err := d.Get(t.Context(), waits.ID); err != nil || got.State != approval.Pending {
		t.Errorf("what waits is %+v, %v", got, err)
	}
}

func TestItExpiresWhileTheDaemonIsDown(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := run("rm x")
	r.Expires = time.Now().Add(200 * time.Millisecond)
	r = d.mustOpen(r)
	d.Close()
	time.Sleep(time.Until(r.Expires))
	d.open()
	if got, err := d.Wait(t.Context(), r.ID); err != nil || got.State != approval.Expired {
		t.Errorf("it is %+v, %v", got, err)
	}
}

func TestAnOldAnswerIsNoAnswer(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := run("rm x")
	r.Expires = time.Now().Add(2 * time.Second)
	r = d.mustOpen(r)
	d.mustAnswer(r, allow(anna))
	time.Sleep(time.Until(r.Expires))
	if next := d.mustOpen(run("rm x")); next.ID == r.ID {
		t.Error("an answer from before is given to who asks later")
	}
	if _, err := d.Take(t.Context(), r.ID, r.Question); err == nil {
		t.Error("an old answer can be taken")
	}
}

func TestAWithdrawnQuestionIsDenied(t *testing.T) {
	d := newDesk(t, approval.Config{})
	done := d.ask(t.Context(), run("rm x"))
	r := d.Pending()[0]
	if err := d.WithdrawOf(t.Context(), func(s policy.Subject) bool { return s.Jail == r.Question.Subject.Jail }, "the jail was removed"); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if _, granted := got.Granted(); got.err != nil || granted || got.State != approval.Withdrawn {
		t.Errorf("got %+v, %v", got.Request, got.err)
	}
	if _, err := d.Withdraw(t.Context(), r.ID, "again"); err != nil {
		t.Errorf("withdrawn twice: %v", err)
	}
	_, err := d.Answer(t.Context(), r.ID, allow(anna))
	wantKind(t, err, fault.Conflict)
	answered := d.mustOpen(run("ls"))
	d.mustAnswer(answered, allow(anna))
	_, err = d.Withdraw(t.Context(), answered.ID, "")
	wantKind(t, err, fault.Conflict)
}

func TestAJailCannotFloodThePeople(t *testing.T) {
	d := newDesk(t, approval.Config{Limit: 3})
	for _, line := range []string{"a", "b", "c"} {
		d.mustOpen(run(line))
	}
	_, err := d.Ask(t.Context(), run("d"), nil)
	wantKind(t, err, fault.Exhausted)
	d.mustOpen(run("a")) // is there already
	other := run("d")
	other.Question.Subject.Jail = "j-bbbbbbbbbbbb"
	d.mustOpen(other)
	if !strings.HasSuffix(d.kinds(), "refused asked") {
		t.Errorf("recorded %q", d.kinds())
	}
	d.mustAnswer(d.Pending()[0], deny(anna, ""))
	d.mustOpen(run("d"))
}

func TestTheRuleThatIsShownIsTheRuleThatIsWritten(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := run("npm run build")
	r.Pattern = "npm run *"
	r = d.mustOpen(r)
	shown := approval.Show(r, 1000).Writes[approval.Always]
	a := allow(anna)
	a.Scope = approval.Always
	got := d.mustAnswer(r, a)
	want := policy.Rule{Action: "bash", Pattern: "npm run *", Effect: policy.Allow, File: "answer " + string(r.ID)}
	if !slices.Equal(d.remembered, []policy.Rule{want}) || shown != want.String() || *got.Answer.Rule != want || got.Owed {
		t.Errorf("shown %q, remembered %v, kept %v", shown, d.remembered, got.Answer.Rule)
	}

	r = d.mustOpen(run("npm ci"))
	never := deny(anna, "")
	never.Scope = approval.Session
	d.mustAnswer(r, never)
	if rule := d.remembered[1]; rule.Pattern != "npm ci" || rule.Effect != policy.Deny {
		t.Errorf("remembered %v", rule)
	}
}

func TestWhatNoPatternCanSayIsAnsweredOnce(t *testing.T) {
	d := newDesk(t, approval.Config{})
	for _, line := range []string{"rm *", "ls a?", `grep \. x`, "~/x", "$HOME/x", ""} {
		r := d.mustOpen(run(line))
		if !slices.Equal(r.Scopes, []approval.Scope{approval.Once}) {
			t.Errorf("%q may be answered %v", line, r.Scopes)
		}
		a := allow(anna)
		a.Scope = approval.Always
		_, err := d.Answer(t.Context(), r.ID, a)
		wantKind(t, err, fault.Invalid)
	}
	if r := d.mustOpen(elevated("deploy")); !slices.Equal(r.Scopes, []approval.Scope{approval.Once}) {
		t.Errorf("what is elevated may be answered %v", r.Scopes)
	}
}

func TestARuleThatIsNotRememberedIsOwed(t *testing.T) {
	d := newDesk(t, approval.Config{})
	d.forgetful = errors.New("the disk is full")
	r := d.mustOpen(run("npm ci"))
	a := allow(anna)
	a.Scope = approval.Always
	if got, err := d.Answer(t.Context(), r.ID, a); err == nil || got.State != approval.Answered {
		t.Errorf("Answer = %s, %v; want answered, and an error", got.State, err)
	}
	d.forgetful = nil
	d.restart()
	if len(d.remembered) != 1 {
		t.Errorf("after a restart %v is remembered", d.remembered)
	}
	d.restart()
	if len(d.remembered) != 1 {
		t.Errorf("it is remembered again: %v", d.remembered)
	}
}

// TestOthersAreAskedWhileARuleIsRemembered is about a jail that is busy, of which
// the rule of an answer has to wait: meanwhile it ends, and another asks.
func TestOthersAreAskedWhileARuleIsRemembered(t *testing.T) {
	d := newDesk(t, approval.Config{})
	answers := d.ask(t.Context(), run("npm ci"))
	r := d.Pending()[0]
	other := run("npm test")
	other.Question.Subject.Jail = "j-another"
	d.slow = func() {
		d.mustOpen(other)
		d.mustOpen(run("npm start"))
		if err := d.WithdrawOf(t.Context(), func(s policy.Subject) bool { return s.Jail == r.Question.Subject.Jail }, "it has ended"); err != nil {
			t.Error(err)
		}
		select {
		case <-answers:
			t.Error("whoever asked goes on before the rule holds")
		default:
		}
	}
	a := allow(anna)
	a.Scope = approval.Always
	if got := d.mustAnswer(r, a); got.Owed {
		t.Error("the rule is still owed")
	}
	if got := <-answers; got.err != nil || got.State != approval.Answered {
		t.Errorf("whoever asked has %+v", got)
	}
	if list := d.Pending(); len(list) != 1 || list[0].Question.Subject.Jail != "j-another" {
		t.Errorf("pending are %v", list)
	}
}

func TestNothingIsAllowedThatCannotBeRecorded(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := d.mustOpen(run("rm x"))
	d.mu.Lock()
	d.unwilling = errors.New("the disk is full")
	d.mu.Unlock()
	if _, err := d.Answer(t.Context(), r.ID, allow(anna)); err == nil {
		t.Error("it is allowed")
	}
	if _, err := d.Ask(t.Context(), run("rm y"), nil); err == nil {
		t.Error("another can be asked")
	}
	pre := run("rm z")
	pre.Tier = approval.Preapproved
	if got, err := d.Ask(t.Context(), pre, nil); err == nil {
		t.Errorf("what is pre-approved is allowed: %+v", got)
	}
	if len(d.Pending()) != 1 {
		t.Error("it is no longer pending")
	}
	d.mu.Lock()
	d.unwilling = nil
	d.mu.Unlock()
	d.mustAnswer(r, allow(anna))
}

func TestWhatCannotBeShownIsRefused(t *testing.T) {
	d := newDesk(t, approval.Config{})
	long := run(strings.Repeat("x", 64<<10+1))
	bytes := run("rm \xff")
	attr := run("rm")
	attr.Question.Attributes = map[string]string{"cwd": "\xff"}
	none := approval.Request{}
	ctx := run("rm")
	ctx.Context = json.RawMessage("{")
	tier := run("rm")
	tier.Tier = "double"
	scope := run("rm")
	scope.Scopes = []approval.Scope{"forever"}
	past := run("rm")
	past.Expires = time.Now().Add(-time.Second)
	for name, r := range map[string]approval.Request{"too long": long, "bytes": bytes, "attributes": attr, "nothing": none, "context": ctx, "tier": tier, "scope": scope, "past": past} {
		if _, err := d.Ask(t.Context(), r, nil); err == nil || fault.KindOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(d.Pending()) != 0 {
		t.Error("something is pending")
	}
}

func TestAClosedQueueTellsWhoWaits(t *testing.T) {
	d := newDesk(t, approval.Config{})
	done := d.ask(t.Context(), run("rm x"))
	d.Close()
	got := <-done
	wantKind(t, got.err, fault.Unavailable)
	_, err := d.Open(t.Context(), run("rm y"))
	wantKind(t, err, fault.Unavailable)
}

func TestSubscribersSeeWhatHappens(t *testing.T) {
	d := newDesk(t, approval.Config{})
	s := d.Subscribe()
	defer s.Close()
	r := d.mustOpen(run("rm x"))
	d.mustAnswer(r, allow(anna))
	for _, want := range []approval.Kind{approval.KindAsked, approval.KindAnswered} {
		if e := <-s.C; e.Kind != want || e.Request.ID != r.ID || e.At.IsZero() {
			t.Errorf("told of %+v, want %s", e, want)
		}
	}
	slow := d.Subscribe()
	for i := range 200 {
		r := run("x")
		r.Tier = approval.Preapproved
		r.Question.Attributes["n"] = string(rune('a' + i))
		d.mustOpen(r)
	}
	n := 0
	for range slow.C {
		n++
	}
	if n == 0 || n >= 200 {
		t.Errorf("a slow reader got %d events, want some and then its end", n)
	}
	slow.Close()
	last := d.Subscribe()
	d.Close()
	if _, open := <-last.C; open {
		t.Error("a subscription outlives its queue")
	}
}

func TestLongPoll(t *testing.T) {
	d := newDesk(t, approval.Config{})
	r := d.mustOpen(run("rm x"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if got, err := d.Wait(ctx, r.ID); err != nil || got.State != approval.Pending {
		t.Errorf("Wait = %+v, %v; want it pending", got, err)
	}
	_, err := d.Wait(t.Context(), id.NewApproval())
	wantKind(t, err, fault.NotFound)
	d.mustAnswer(r, deny(anna, ""))
	for range 2 {
		if got, err := d.Wait(t.Context(), r.ID); err != nil || got.State != approval.Answered {
			t.Errorf("Wait = %+v, %v", got, err)
		}
	}
}

func TestTheHashIsOfTheExactAction(t *testing.T) {
	q := run("rm x").Question
	seen := map[string]bool{approval.HashOf(q): true}
	for _, change := range []func(*policy.Question){
		func(q *policy.Question) { q.Resource = "rm y" },
		func(q *policy.Question) { q.Action = "edit" },
		func(q *policy.Question) { q.Subject.Jail = "j-b" },
		func(q *policy.Question) { q.Subject.Agent = "other" },
		func(q *policy.Question) { q.Attributes = map[string]string{"cwd": "/"} },
		func(q *policy.Question) { q.Attributes = nil },
	} {
		q := run("rm x").Question
		change(&q)
		if h := approval.HashOf(q); seen[h] {
			t.Errorf("%+v has the hash of another question", q)
		} else {
			seen[h] = true
		}
	}
	empty := q
	empty.Attributes = map[string]string{}
	q.Attributes = nil
	if approval.HashOf(empty) != approval.HashOf(q) {
		t.Error("no attributes and none are two questions")
	}
}
