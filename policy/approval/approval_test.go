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

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/store/storetest"
)

// A harness is a queue on a real database. It records the queue's calls of Record and
// Remember.
type harness struct {
	*approval.Queue
	t    *testing.T
	path string
	cfg  approval.Config

	mu             sync.Mutex
	events         []approval.Event
	remembered     []policy.Rule
	recordErr      error  // result of Record
	rememberErr    error  // result of Remember
	beforeRemember func() // called before Remember
}

func newHarness(t *testing.T, cfg approval.Config) *harness {
	t.Helper()
	d := &harness{t: t, path: filepath.Join(t.TempDir(), "g.db"), cfg: cfg}
	d.open()
	return d
}

// open opens the queue, even after Close.
func (d *harness) open() {
	d.t.Helper()
	cfg := d.cfg
	cfg.Record = func(_ context.Context, e approval.Event) (int64, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.recordErr != nil {
			return 0, d.recordErr
		}
		d.events = append(d.events, e)
		return int64(len(d.events)), nil
	}
	cfg.Remember = func(_ context.Context, r approval.Request, rule policy.Rule) error {
		if d.beforeRemember != nil {
			d.beforeRemember()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.rememberErr == nil {
			d.remembered = append(d.remembered, rule)
		}
		return d.rememberErr
	}
	s, err := storetest.Open(d.t, d.path)
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

func (d *harness) restart() {
	d.t.Helper()
	d.Close()
	d.open()
	if err := d.RememberOwed(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
}

func (d *harness) kinds() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, e := range d.events {
		all = append(all, string(e.Kind))
	}
	return strings.Join(all, " ")
}

func (d *harness) mustOpen(r approval.Request) approval.Request {
	d.t.Helper()
	got, err := d.Open(d.t.Context(), r)
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

func (d *harness) mustAnswer(r approval.Request, a approval.Answer) approval.Request {
	d.t.Helper()
	got, err := d.Answer(d.t.Context(), r.ID, a)
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

type askResult struct {
	approval.Request
	err error
}

func TestWithdrawBeforeAskWaitsDoesNotAskAgain(t *testing.T) {
	d := newHarness(t, approval.Config{})
	puts := 0
	got, err := d.Queue.Ask(t.Context(), run("rm x"), func(r approval.Request) {
		puts++
		if _, err := d.Withdraw(t.Context(), r.ID, "the jail was rewound"); err != nil {
			t.Error(err)
		}
	})
	if err != nil || got.State != approval.Withdrawn || puts != 1 {
		t.Errorf("Ask = %q, %v after %d calls of put, want withdrawn after 1", got.State, err, puts)
	}
	if left := d.Pending(); len(left) != 0 {
		t.Errorf("Pending = %+v, want nothing", left)
	}
}

// ask calls Ask in the background. When it returns, the request is pending or settled.
func (d *harness) ask(ctx context.Context, r approval.Request) <-chan askResult {
	d.t.Helper()
	done := make(chan askResult, 1)
	go func() {
		got, err := d.Queue.Ask(ctx, r, nil)
		done <- askResult{got, err}
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
			d.t.Fatal("the request does not become pending within 30 s")
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

func TestAskWaitsUntilAllowed(t *testing.T) {
	d := newHarness(t, approval.Config{})
	done := d.ask(t.Context(), run("rm -rf build"))
	r := d.Pending()[0]
	if r.State != approval.Pending || !strings.HasPrefix(string(r.ID), "a-") || r.Hash != approval.HashOf(r.Question) || r.Tier != approval.Standard {
		t.Errorf("request = %+v", r)
	}
	if left := time.Until(r.Expires); left < 14*time.Minute || left > 15*time.Minute {
		t.Errorf("expires in %s, want the default of 15 min", left)
	}
	d.mustAnswer(r, allow(anna))
	got := <-done
	q, granted := got.Granted()
	if got.err != nil || !granted || q.Resource != "rm -rf build" || got.Answer.By != anna || got.Answer.Hash != r.Hash || !got.AnswerUsed {
		t.Errorf("Ask = %+v, %v", got.Request, got.err)
	}
	if got.Outcome != "allowed by anna" || got.ChainEntry != 2 || d.kinds() != "asked answered" {
		t.Errorf("outcome %q, entry %d, events %q", got.Outcome, got.ChainEntry, d.kinds())
	}
	if len(d.Pending()) != 0 {
		t.Error("the request is pending after its answer")
	}
}

func TestDenialOutcomeHasAuthorAndReason(t *testing.T) {
	d := newHarness(t, approval.Config{})
	done := d.ask(t.Context(), run("rm x"))
	d.mustAnswer(d.Pending()[0], deny(anna, "not on a Friday"))
	got := <-done
	if _, granted := got.Granted(); granted || got.err != nil || got.Outcome != "denied by anna: not on a Friday" {
		t.Errorf("Ask = %+v, %v", got.Request, got.err)
	}
}

func TestModifyAllowsDifferentResource(t *testing.T) {
	d := newHarness(t, approval.Config{})
	done := d.ask(t.Context(), run("rm -rf /"))
	r := d.Pending()[0]
	modify := approval.Answer{Verdict: approval.Modify, Resource: "rm -rf build", By: anna, Channel: "api"}
	d.mustAnswer(r, modify)
	got := <-done
	q, granted := got.Granted()
	if !granted || q.Resource != "rm -rf build" || len(q.Attributes) != 0 || q.Subject != r.Question.Subject {
		t.Errorf("Granted = %+v, %v", q, granted)
	}
	if got.Answer.Hash != approval.HashOf(q) || got.Answer.Hash == r.Hash {
		t.Error("the hash of the answer is not the hash of the modified question")
	}
	for _, bad := range []approval.Answer{
		{Verdict: approval.Modify, By: anna},
		{Verdict: approval.Modify, Resource: "x", Scope: approval.Always, By: anna},
		{Verdict: approval.Allow, Resource: "x", By: anna},
		{Verdict: approval.Modify, Resource: "a\x00b", By: anna},
		{Verdict: approval.Modify, Resource: "ls", By: anna}, // unchanged
	} {
		r := d.mustOpen(run("ls"))
		_, err := d.Answer(t.Context(), r.ID, bad)
		wantKind(t, err, fault.Invalid)
	}
}

func TestFirstAnswerSettles(t *testing.T) {
	d := newHarness(t, approval.Config{})
	r := d.mustOpen(run("rm x"))
	d.mustAnswer(r, allow(anna))
	again := d.mustAnswer(r, allow(anna)) // repeating the answer is no error
	if again.State != approval.Answered {
		t.Errorf("state after the same answer = %s, want answered", again.State)
	}
	for _, other := range []approval.Answer{deny(anna, ""), deny(ben, ""), allow(ben), {Verdict: approval.Allow, Scope: approval.Always, By: anna}} {
		_, err := d.Answer(t.Context(), r.ID, other)
		wantKind(t, err, fault.Conflict)
		if err == nil || !strings.Contains(err.Error(), "anna already answered allow, once at 20") {
			t.Errorf("error = %v, want author and time of the first answer", err)
		}
	}
	if d.kinds() != "asked answered" {
		t.Errorf("events = %q", d.kinds())
	}
	_, err := d.Answer(t.Context(), "a-nosuchnosuch", allow(anna))
	wantKind(t, err, fault.NotFound)
}

func TestConcurrentAnswersSettleOnce(t *testing.T) {
	d := newHarness(t, approval.Config{})
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
			t.Errorf("%d answers succeeded, want 1; Ask = %v", won, got.err)
		}
	}
}

func TestAgentCannotAnswerOwnRequest(t *testing.T) {
	d := newHarness(t, approval.Config{})
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
		t.Error("the request is not pending")
	}
	d.mustAnswer(r, allow(anna))
	_, err := d.Answer(t.Context(), r.ID, allow(approval.Person{ID: "t-x", Role: "agent"}))
	wantKind(t, err, fault.Denied) // the error does not reveal the first answer
}

func TestElevatedNeedsTwoPeople(t *testing.T) {
	d := newHarness(t, approval.Config{})
	done := d.ask(t.Context(), elevated("deploy"))
	r := d.Pending()[0]
	renamed := approval.Person{ID: anna.ID, Name: "annabel", Role: "operator"}
	for _, a := range []approval.Answer{allow(anna), allow(anna), allow(renamed)} { // the same person counts once
		if got := d.mustAnswer(r, a); got.State != approval.Pending || got.First == nil || got.First.By != anna {
			t.Fatalf("request after one of two answers = %+v", got)
		}
	}
	for _, a := range []approval.Answer{
		allow(approval.Person{ID: "t-other", Name: "anna", Role: "operator"}), // another token of the same person
		{Verdict: approval.Modify, Resource: "deploy --dry-run", By: ben},
	} {
		_, err := d.Answer(t.Context(), r.ID, a)
		wantKind(t, err, fault.Conflict)
	}
	d.mustAnswer(r, allow(ben))
	got := <-done
	if _, granted := got.Granted(); !granted || got.First.By != anna || got.Answer.By != ben {
		t.Errorf("Ask = %+v", got.Request)
	}
	if d.kinds() != "asked seconded answered" {
		t.Errorf("events = %q", d.kinds())
	}
	d.mustAnswer(r, allow(anna)) // a repetition of the first answer
}

func TestElevatedIsAllowedByTypedPhrase(t *testing.T) {
	d := newHarness(t, approval.Config{})
	r := d.mustOpen(elevated("deploy"))
	if r.Phrase == "" || !strings.Contains(approval.Show(r, 1000).Phrase, r.Phrase) {
		t.Fatalf("phrase %q is not shown", r.Phrase)
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
		t.Errorf("state after the typed phrase = %s, want answered", got.State)
	}
	// One person alone can deny.
	r = d.mustOpen(elevated("deploy again"))
	d.mustAnswer(r, allow(anna))
	if got := d.mustAnswer(r, deny(ben, "no")); got.Answer.Verdict != approval.Deny {
		t.Errorf("Answer = %+v, want denied", got)
	}
}

func TestSecondAnswerAfterRestart(t *testing.T) {
	d := newHarness(t, approval.Config{})
	r := d.mustOpen(elevated("deploy"))
	d.mustAnswer(r, allow(anna))
	d.restart()
	if got := d.mustAnswer(r, allow(ben)); got.State != approval.Answered {
		t.Errorf("state = %s, want answered", got.State)
	}
}

func TestPreapprovedIsAllowedWithoutAsking(t *testing.T) {
	d := newHarness(t, approval.Config{})
	r := run("make test")
	r.Tier = approval.Preapproved
	for range 3 {
		got, err := d.Ask(t.Context(), r, nil)
		if _, granted := got.Granted(); err != nil || !granted || got.Answer.By.Role != "policy" {
			t.Errorf("Ask = %+v, %v", got, err)
		}
	}
	if d.kinds() != "answered answered answered" {
		t.Errorf("events = %q", d.kinds())
	}
	if list, err := d.List(t.Context(), approval.Filter{}); err != nil || len(list) != 3 {
		t.Errorf("List = %d requests, %v, want 3", len(list), err)
	}
}

func TestSameQuestionIsAskedOnce(t *testing.T) {
	d := newHarness(t, approval.Config{})
	first := d.ask(t.Context(), run("rm x"))
	second := d.ask(t.Context(), run("rm x"))
	other := run("rm x")
	other.Question.Subject.Jail = "j-bbbbbbbbbbbb"
	d.mustOpen(other)
	otherDir := run("rm x")
	otherDir.Question.Attributes = map[string]string{"cwd": "/"}
	d.mustOpen(otherDir)
	d.mustOpen(elevated("rm x"))
	if n := len(d.Pending()); n != 4 {
		t.Fatalf("%d requests are pending, want 4", n)
	}
	for d.Pending()[0].Waiting != 2 {
		time.Sleep(time.Millisecond)
	}
	d.mustAnswer(d.Pending()[0], allow(anna))
	for _, done := range []<-chan askResult{first, second} {
		select {
		case got := <-done:
			if got.err != nil {
				t.Error(got.err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("one of two callers did not get the answer")
		}
	}
}

func TestAnswerIsTakenOnce(t *testing.T) {
	d := newHarness(t, approval.Config{})
	r := d.mustOpen(run("rm x")) // added by Open: no caller waits in Ask
	d.mustAnswer(r, allow(anna))
	if got, err := d.Wait(t.Context(), r.ID); err != nil || got.State != approval.Answered || got.AnswerUsed {
		t.Errorf("Wait = %+v, %v", got, err)
	}
	_, err := d.Take(t.Context(), r.ID, run("rm y").Question)
	wantKind(t, err, fault.Denied)
	if got, err := d.Take(t.Context(), r.ID, r.Question); err != nil || !got.AnswerUsed {
		t.Errorf("Take = %+v, %v", got, err)
	}
	_, err = d.Take(t.Context(), r.ID, r.Question)
	wantKind(t, err, fault.Conflict)
	// The next request with the same question does not get this answer.
	if next := d.mustOpen(run("rm x")); next.ID == r.ID || next.State != approval.Pending {
		t.Errorf("Open of the same question = %+v, want a new request", next)
	}
}

func TestAnswerWithoutWaiterIsKept(t *testing.T) {
	d := newHarness(t, approval.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	done := d.ask(ctx, run("rm x"))
	r := d.Pending()[0]
	cancel()
	if got := <-done; !errors.Is(got.err, context.Canceled) {
		t.Fatalf("Ask = %v", got.err)
	}
	if len(d.Pending()) != 1 {
		t.Fatal("the request is not pending after its caller gave up")
	}
	d.restart()
	if p := d.Pending(); len(p) != 1 || p[0].ID != r.ID {
		t.Fatalf("Pending after a restart = %v", p)
	}
	d.mustAnswer(r, allow(anna))
	d.restart()
	got, err := d.Ask(t.Context(), run("rm x"), nil)
	if err != nil || got.ID != r.ID || !got.AnswerUsed {
		t.Errorf("Ask of the same question = %+v, %v", got, err)
	}
	d.restart()
	if next := d.mustOpen(run("rm x")); next.ID == r.ID {
		t.Error("the answer is used twice")
	}
}

func TestUnansweredRequestIsDenied(t *testing.T) {
	d := newHarness(t, approval.Config{Wait: 50 * time.Millisecond})
	got, err := d.Ask(t.Context(), run("rm x"), nil)
	if _, granted := got.Granted(); err != nil || granted || got.State != approval.Expired || !strings.HasPrefix(got.Outcome, "denied: no answer within") {
		t.Errorf("Ask = %+v, %v", got, err)
	}
	_, err = d.Answer(t.Context(), got.ID, allow(anna))
	wantKind(t, err, fault.Conflict)
	if d.kinds() != "asked expired" {
		t.Errorf("events = %q", d.kinds())
	}
}

func TestFinishedRequestsAreDeletedAfterKeep(t *testing.T) {
	d := newHarness(t, approval.Config{})
	waits, done := d.mustOpen(run("rm x")), run("rm y")
	done.Expires = time.Now().Add(200 * time.Millisecond)
	done, err := d.Ask(t.Context(), done, nil)
	if err != nil || done.State != approval.Expired {
		t.Fatalf("Ask = %+v, %v, want expired", done, err)
	}
	d.cfg.Keep = time.Nanosecond
	d.restart()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := d.Get(t.Context(), done.ID); errors.Is(err, fault.NotFound) {
			break
		} else if err != nil || time.Now().After(end) {
			t.Fatalf("the request was not deleted: %v", err)
		}
	}
	if got, err := d.Get(t.Context(), waits.ID); err != nil || got.State != approval.Pending {
		t.Errorf("pending request = %+v, %v", got, err)
	}
}

func TestRequestExpiresWhileDaemonIsDown(t *testing.T) {
	d := newHarness(t, approval.Config{})
	r := run("rm x")
	r.Expires = time.Now().Add(200 * time.Millisecond)
	r = d.mustOpen(r)
	d.Close()
	time.Sleep(time.Until(r.Expires))
	d.open()
	if got, err := d.Wait(t.Context(), r.ID); err != nil || got.State != approval.Expired {
		t.Errorf("Wait = %+v, %v, want expired", got, err)
	}
}

func TestExpiredAnswerIsNotUsed(t *testing.T) {
	d := newHarness(t, approval.Config{})
	r := run("rm x")
	r.Expires = time.Now().Add(2 * time.Second)
	r = d.mustOpen(r)
	d.mustAnswer(r, allow(anna))
	time.Sleep(time.Until(r.Expires))
	if next := d.mustOpen(run("rm x")); next.ID == r.ID {
		t.Error("an expired answer is used for a later request")
	}
	if _, err := d.Take(t.Context(), r.ID, r.Question); err == nil {
		t.Error("Take returned an expired answer")
	}
}

func TestWithdrawnRequestIsDenied(t *testing.T) {
	d := newHarness(t, approval.Config{})
	done := d.ask(t.Context(), run("rm x"))
	r := d.Pending()[0]
	if err := d.WithdrawMatching(t.Context(), func(s policy.Subject) bool { return s.Jail == r.Question.Subject.Jail }, "the jail was removed"); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if _, granted := got.Granted(); got.err != nil || granted || got.State != approval.Withdrawn {
		t.Errorf("Ask = %+v, %v", got.Request, got.err)
	}
	if _, err := d.Withdraw(t.Context(), r.ID, "again"); err != nil {
		t.Errorf("second Withdraw = %v", err)
	}
	_, err := d.Answer(t.Context(), r.ID, allow(anna))
	wantKind(t, err, fault.Conflict)
	answered := d.mustOpen(run("ls"))
	d.mustAnswer(answered, allow(anna))
	_, err = d.Withdraw(t.Context(), answered.ID, "")
	wantKind(t, err, fault.Conflict)
}

func TestPendingRequestsPerJailAreLimited(t *testing.T) {
	d := newHarness(t, approval.Config{Limit: 3})
	for _, line := range []string{"a", "b", "c"} {
		d.mustOpen(run(line))
	}
	_, err := d.Ask(t.Context(), run("d"), nil)
	wantKind(t, err, fault.Exhausted)
	d.mustOpen(run("a")) // already pending
	other := run("d")
	other.Question.Subject.Jail = "j-bbbbbbbbbbbb"
	d.mustOpen(other)
	if !strings.HasSuffix(d.kinds(), "refused asked") {
		t.Errorf("events = %q", d.kinds())
	}
	d.mustAnswer(d.Pending()[0], deny(anna, ""))
	d.mustOpen(run("d"))
}

func TestShownRuleIsTheRememberedRule(t *testing.T) {
	d := newHarness(t, approval.Config{})
	r := run("npm run build")
	r.Pattern = "npm run *"
	r = d.mustOpen(r)
	shown := approval.Show(r, 1000).Writes[approval.Always]
	a := allow(anna)
	a.Scope = approval.Always
	got := d.mustAnswer(r, a)
	want := policy.Rule{Action: "bash", Pattern: "npm run *", Effect: policy.Allow, File: "answer " + string(r.ID)}
	if !slices.Equal(d.remembered, []policy.Rule{want}) || shown != want.String() || *got.Answer.Rule != want || got.RulePending {
		t.Errorf("shown %q, remembered %v, stored %v", shown, d.remembered, got.Answer.Rule)
	}

	r = d.mustOpen(run("npm ci"))
	never := deny(anna, "")
	never.Scope = approval.Session
	d.mustAnswer(r, never)
	if rule := d.remembered[1]; rule.Pattern != "npm ci" || rule.Effect != policy.Deny {
		t.Errorf("remembered %v", rule)
	}
}

func TestResourceWithWildcardsOffersOnlyOnce(t *testing.T) {
	d := newHarness(t, approval.Config{})
	for _, line := range []string{"rm *", "ls a?", `grep \. x`, "~/x", "$HOME/x", ""} {
		r := d.mustOpen(run(line))
		if !slices.Equal(r.Scopes, []approval.Scope{approval.Once}) {
			t.Errorf("scopes of %q = %v", line, r.Scopes)
		}
		a := allow(anna)
		a.Scope = approval.Always
		_, err := d.Answer(t.Context(), r.ID, a)
		wantKind(t, err, fault.Invalid)
	}
	if r := d.mustOpen(elevated("deploy")); !slices.Equal(r.Scopes, []approval.Scope{approval.Once}) {
		t.Errorf("scopes of an elevated request = %v", r.Scopes)
	}
}

func TestFailedRememberIsRetriedAfterRestart(t *testing.T) {
	d := newHarness(t, approval.Config{})
	d.rememberErr = errors.New("the disk is full")
	r := d.mustOpen(run("npm ci"))
	a := allow(anna)
	a.Scope = approval.Always
	if got, err := d.Answer(t.Context(), r.ID, a); err == nil || got.State != approval.Answered {
		t.Errorf("Answer = %s, %v, want answered and an error", got.State, err)
	}
	d.rememberErr = nil
	d.restart()
	if len(d.remembered) != 1 {
		t.Errorf("rules after a restart = %v, want 1", d.remembered)
	}
	d.restart()
	if len(d.remembered) != 1 {
		t.Errorf("rules after a second restart = %v, want 1", d.remembered)
	}
}

// TestQueueIsUsableWhileRemembering covers a busy jail that delays the call of Remember. In
// the meantime, the jail ends and another jail asks.
func TestQueueIsUsableWhileRemembering(t *testing.T) {
	d := newHarness(t, approval.Config{})
	answers := d.ask(t.Context(), run("npm ci"))
	r := d.Pending()[0]
	other := run("npm test")
	other.Question.Subject.Jail = "j-another"
	d.beforeRemember = func() {
		d.mustOpen(other)
		d.mustOpen(run("npm start"))
		if err := d.WithdrawMatching(t.Context(), func(s policy.Subject) bool { return s.Jail == r.Question.Subject.Jail }, "it has ended"); err != nil {
			t.Error(err)
		}
		select {
		case <-answers:
			t.Error("Ask returned before Remember")
		default:
		}
	}
	a := allow(anna)
	a.Scope = approval.Always
	if got := d.mustAnswer(r, a); got.RulePending {
		t.Error("Owed is set after Remember")
	}
	if got := <-answers; got.err != nil || got.State != approval.Answered {
		t.Errorf("Ask = %+v", got)
	}
	if list := d.Pending(); len(list) != 1 || list[0].Question.Subject.Jail != "j-another" {
		t.Errorf("Pending = %v", list)
	}
}

func TestNothingIsAllowedIfRecordFails(t *testing.T) {
	d := newHarness(t, approval.Config{})
	r := d.mustOpen(run("rm x"))
	d.mu.Lock()
	d.recordErr = errors.New("the disk is full")
	d.mu.Unlock()
	if _, err := d.Answer(t.Context(), r.ID, allow(anna)); err == nil {
		t.Error("Answer succeeded without Record")
	}
	if _, err := d.Ask(t.Context(), run("rm y"), nil); err == nil {
		t.Error("Ask succeeded without Record")
	}
	pre := run("rm z")
	pre.Tier = approval.Preapproved
	if got, err := d.Ask(t.Context(), pre, nil); err == nil {
		t.Errorf("Ask of a pre-approved request succeeded without Record: %+v", got)
	}
	if len(d.Pending()) != 1 {
		t.Error("the request is not pending")
	}
	d.mu.Lock()
	d.recordErr = nil
	d.mu.Unlock()
	d.mustAnswer(r, allow(anna))
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	d := newHarness(t, approval.Config{})
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
			t.Errorf("%s: Ask = %v", name, err)
		}
	}
	if len(d.Pending()) != 0 {
		t.Error("an invalid request is pending")
	}
}

func TestCloseEndsWaitingCallers(t *testing.T) {
	d := newHarness(t, approval.Config{})
	done := d.ask(t.Context(), run("rm x"))
	d.Close()
	got := <-done
	wantKind(t, got.err, fault.Unavailable)
	_, err := d.Open(t.Context(), run("rm y"))
	wantKind(t, err, fault.Unavailable)
}

func TestSubscribersReceiveEvents(t *testing.T) {
	d := newHarness(t, approval.Config{})
	s := d.Subscribe()
	defer s.Close()
	r := d.mustOpen(run("rm x"))
	d.mustAnswer(r, allow(anna))
	for _, want := range []approval.Kind{approval.KindAsked, approval.KindAnswered} {
		if e := <-s.C; e.Kind != want || e.Request.ID != r.ID || e.At.IsZero() {
			t.Errorf("event = %+v, want %s", e, want)
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
		t.Errorf("a slow reader got %d events, want between 1 and 199", n)
	}
	slow.Close()
	last := d.Subscribe()
	d.Close()
	if _, open := <-last.C; open {
		t.Error("the subscription is open after its queue was closed")
	}
}

func TestWaitReturnsPendingRequestOnTimeout(t *testing.T) {
	d := newHarness(t, approval.Config{})
	r := d.mustOpen(run("rm x"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if got, err := d.Wait(ctx, r.ID); err != nil || got.State != approval.Pending {
		t.Errorf("Wait = %+v, %v, want pending", got, err)
	}
	_, err := d.Wait(t.Context(), id.NewApproval())
	wantKind(t, err, fault.NotFound)
	d.mustAnswer(r, deny(anna, ""))
	for range 2 {
		if got, err := d.Wait(t.Context(), r.ID); err != nil || got.State != approval.Answered {
			t.Errorf("Wait = %+v, %v, want answered", got, err)
		}
	}
}

func TestHashCoversTheWholeQuestion(t *testing.T) {
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
			t.Errorf("the hash of %+v equals the hash of another question", q)
		} else {
			seen[h] = true
		}
	}
	empty := q
	empty.Attributes = map[string]string{}
	q.Attributes = nil
	if approval.HashOf(empty) != approval.HashOf(q) {
		t.Error("the hashes of empty and nil attributes differ")
	}
}
