package approval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
)

// A Store keeps requests, notices and links. Save is all or nothing.
type Store interface {
	Save(ctx context.Context, r Request, notices []Notice) error
	Get(ctx context.Context, aid id.Approval) (Request, error) // fault.NotFound
	Unfinished(ctx context.Context) ([]Request, error)         // oldest first
	List(ctx context.Context, f Filter) ([]Request, error)     // newest first

	Notices(ctx context.Context) ([]Notice, error) // oldest first
	PutNotice(ctx context.Context, n Notice) error
	DeleteNotice(ctx context.Context, nid string) error

	PutLink(ctx context.Context, l Link) error
	GetLink(ctx context.Context, hash string) (Link, error) // fault.NotFound

	// Forget deletes links that ended before now, and requests that are finished
	// and notices that are dead, of before old.
	Forget(ctx context.Context, now, old time.Time) error
}

// A Filter says which requests are listed.
type Filter struct {
	Jail  id.Jail // "": of all
	State State   // "": in any
	Limit int     // 0: 100
}

// Config is what a Queue works with. Its zero value works, and tells nobody.
type Config struct {
	Wait  time.Duration // how long a request waits; 0 is 15 minutes
	Limit int           // how many requests of one jail may be pending; 0 is 32
	Keep  time.Duration // how long finished requests can be looked at; 0 is 90 days. What is recorded of them stays

	// Remember makes a rule of an answer hold from now on. It may be called
	// again for an answer of which it is not known whether it was.
	Remember func(ctx context.Context, r Request, rule policy.Rule) error

	// Record records what happens to requests, before it has any effect, and
	// returns the number of the record. It must not call the Queue. If it fails
	// nothing is allowed.
	Record func(ctx context.Context, e Event) (entry int64, err error)

	// Recorded returns a pending request as it was when Record recorded what happened to
	// it last, and whether there is such a record. Its process may have been killed
	// between Record and Store.Save.
	Recorded func(ctx context.Context, r Request) (Request, bool, error)

	Webhooks []Webhook
	Pushes   []Push
	Browsers BrowserConfig
	Links    string // where the Links handler is: "https://host/answers/"; "": there are no links
	Retry    Retry
	Log      *slog.Logger
}

// A Queue holds what waits for a person. It is safe for concurrent use.
type Queue struct {
	cfg    Config
	store  Store
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	outbox outbox

	browsers *browsers // nil: none are told

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	pending map[id.Approval]*waiting // requests without an answer
	// +checklocks:mu
	same map[string]*waiting // the same, by what it asks
	// +checklocks:mu
	ready map[string]Request // answers that no caller has received yet
	// +checklocks:mu
	watchers map[*Subscription]struct{} // of Subscribe
	wake     chan struct{}              // something expires earlier now
}

// A waiting is a request that is pending, or was a moment ago.
type waiting struct {
	now   Request       // guarded by Queue.mu
	asked int           // by how many at once. guarded by Queue.mu
	done  chan struct{} // closed once it is settled
}

// New returns a Queue that goes on with what the store holds.
func New(ctx context.Context, s Store, cfg Config) (*Queue, error) {
	cfg.Wait = cmp.Or(cfg.Wait, 15*time.Minute)
	cfg.Limit = cmp.Or(cfg.Limit, 32)
	cfg.Keep = cmp.Or(cfg.Keep, 90*24*time.Hour)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	q := &Queue{
		cfg: cfg, store: s,
		pending: map[id.Approval]*waiting{}, same: map[string]*waiting{}, ready: map[string]Request{},
		watchers: map[*Subscription]struct{}{}, wake: make(chan struct{}, 1),
	}
	list, err := s.Unfinished(ctx)
	if err != nil {
		return nil, fmt.Errorf("take up approvals: %w", err)
	}
	q.ctx, q.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := q.startOutbox(ctx); err != nil {
		q.cancel()
		return nil, err
	}
	for _, r := range list {
		q.resume(r)
	}
	q.wg.Go(q.expireLoop)
	return q, nil
}

// resume takes up a request that was left by another process.
//
// It is called by New only, before the queue is shared.
//
// +checklocksignore
func (q *Queue) resume(r Request) {
	if r.State == Pending && q.cfg.Recorded != nil {
		r = q.asRecorded(r)
	}
	if r.State == Pending { // those whose time is over are found by the loop
		w := &waiting{now: r, done: make(chan struct{})}
		q.pending[r.ID], q.same[r.key()] = w, w
	}
	if r.State == Answered && !r.Taken { // those that are too old are found by the loop
		q.ready[r.key()] = r
	}
}

// RememberOwed has the rules of answers hold that did not when an earlier process ended.
// Call it as soon as Config.Remember works.
func (q *Queue) RememberOwed(ctx context.Context) error {
	list, err := q.store.Unfinished(ctx)
	if err != nil {
		return fmt.Errorf("take up approvals: %w", err)
	}
	for _, r := range list {
		if _, err := q.remember(ctx, r); err != nil {
			q.cfg.Log.Error("the rule of an answer does not hold yet", "approval", r.ID, "error", err)
		}
	}
	return nil
}

// asRecorded returns a pending request as its last record has it, and keeps it so. Without
// that a person would be asked again, and the audit log would have two answers. Only New
// calls it, before the queue is shared.
//
// +checklocksignore
func (q *Queue) asRecorded(r Request) Request {
	now, found, err := q.cfg.Recorded(q.ctx, r)
	if err == nil && found {
		kinds := map[State]Kind{Pending: KindSeconded, Answered: KindAnswered, Expired: KindExpired, Withdrawn: KindWithdrawn}
		err = q.save(q.ctx, now, kinds[now.State])
	}
	if err != nil {
		q.cfg.Log.Error("what was recorded of a request cannot be read", "approval", r.ID, "error", err)
		return r
	}
	if found {
		q.cfg.Log.Info("a request is as it was recorded before the daemon ended", "approval", r.ID, "state", now.State)
		return now
	}
	return r
}

// key is what two requests have in common of which a person is asked once.
func (r Request) key() string { return string(r.Tier) + " " + r.Hash }

// Close ends what runs. Whoever waits is told so; requests stay pending in the
// store. It may be called twice.
func (q *Queue) Close() error {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		q.cancel()
		for s := range q.watchers {
			q.drop(s)
		}
	}
	q.mu.Unlock()
	q.wg.Wait()
	return nil
}

var errClosed = fault.Newf(fault.Unavailable, "approval", "", "the daemon is ending; the question still waits: ask again")

// Open puts a question and returns its request without waiting. A question
// that is pending already, or that was answered and nobody took the answer, is
// not asked again. Of a jail that has too many pending it is refused:
// fault.Exhausted.
func (q *Queue) Open(ctx context.Context, r Request) (Request, error) {
	_, r, err := q.open(ctx, r, false)
	return r, err
}

// Ask puts a question and waits until it is settled. The answer is the caller's:
// nobody else who asks the same gets it later. If ctx is done first the request
// stays pending, and asking the same again waits for it. put, if it is not nil, is
// called with the request when it is pending, before Ask waits.
func (q *Queue) Ask(ctx context.Context, r Request, put func(Request)) (Request, error) {
	for {
		w, now, err := q.open(ctx, r, true)
		if err != nil {
			return Request{}, err
		}
		if w != nil {
			if put != nil {
				put(now)
			}
			return q.await(ctx, w, true)
		}
		taken, err := q.take(ctx, now)
		if fault.KindOf(err) != fault.Conflict {
			return taken, err
		}
		// Somebody else who asks the same has just taken it.
	}
}

// Wait waits until a request is settled, or ctx is done, and returns how it
// is. Its error says only that there is no such request, or that the queue is
// closing. Whoever then carries out the answer calls Take first.
func (q *Queue) Wait(ctx context.Context, aid id.Approval) (Request, error) {
	q.mu.Lock()
	w := q.pending[aid]
	q.mu.Unlock()
	if w == nil {
		return q.store.Get(ctx, aid)
	}
	r, err := q.await(ctx, w, false)
	if err != nil && ctx.Err() != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		return w.now, nil
	}
	return r, err
}

// await waits until w is settled. asks says that it was counted among those
// who get the answer.
func (q *Queue) await(ctx context.Context, w *waiting, asks bool) (Request, error) {
	var err error
	select {
	case <-w.done:
	case <-ctx.Done():
		err = fmt.Errorf("wait for an answer: %w", context.Cause(ctx))
	case <-q.ctx.Done():
		err = errClosed
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.now.State != Pending {
		return w.now, nil
	}
	if asks {
		w.asked--
	}
	return Request{}, err
}

// Take takes the answer of a request for the question that was asked, and
// returns it. It can be taken once: a second call is a fault.Conflict.
func (q *Queue) Take(ctx context.Context, aid id.Approval, question policy.Question) (Request, error) {
	r, err := q.store.Get(ctx, aid)
	if err != nil {
		return Request{}, err
	}
	if r.Hash != HashOf(question) {
		return Request{}, fault.Newf(fault.Denied, "approval.Take", string(aid), "it was asked about something else")
	}
	return q.take(ctx, r)
}

func (q *Queue) take(ctx context.Context, r Request) (Request, error) {
	const op = "approval.Take"
	q.mu.Lock()
	defer q.mu.Unlock()
	r, err := q.store.Get(ctx, r.ID) // as it is now
	switch {
	case err != nil:
		return Request{}, err
	case r.State == Pending:
		return Request{}, fault.Newf(fault.Conflict, op, string(r.ID), "it is not answered")
	case r.State != Answered:
		return r, nil // there is nothing to take
	case r.Taken:
		return Request{}, fault.Newf(fault.Conflict, op, string(r.ID), "the answer was taken already")
	case !r.Expires.After(time.Now()):
		return Request{}, fault.Newf(fault.Denied, op, string(r.ID), "the answer is too old: it held until %s", r.Expires.Format(time.RFC3339))
	}
	r.Taken = true
	if err := q.store.Save(context.WithoutCancel(ctx), r, nil); err != nil {
		return Request{}, err
	}
	delete(q.ready, r.key())
	return r, nil
}

// open returns the request of a question, and what waits for it unless it is
// settled already. asks counts the caller among those who get the answer.
func (q *Queue) open(ctx context.Context, r Request, asks bool) (*waiting, Request, error) {
	now := time.Now()
	if err := r.check(now, q.cfg.Wait); err != nil {
		return nil, Request{}, err
	}
	r.Hash = HashOf(r.Question)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, Request{}, errClosed
	}
	if ready, there := q.ready[r.key()]; there && ready.Expires.After(now) {
		return nil, ready, nil
	}
	if w := q.same[r.key()]; w != nil {
		if asks {
			w.asked++
		}
		return w, w.now, nil
	}
	r = Request{
		Question: r.Question, Parent: r.Parent, Rule: r.Rule, Reason: r.Reason, Tier: r.Tier, Expires: r.Expires.UTC(), Scopes: r.Scopes,
		Pattern: r.Pattern, Context: r.Context, ID: id.NewApproval(), Created: now.UTC(), Hash: r.Hash,
	}
	if r.Tier == Preapproved {
		return nil, r, q.preapprove(ctx, &r)
	}
	if n := q.pendingOf(r.Question.Subject.Jail); n >= q.cfg.Limit {
		err := fault.Newf(fault.Exhausted, "approval.Open", string(r.Question.Subject.Jail),
			"%d questions of this jail wait for a person already: this one is denied", n)
		r.Outcome = err.Error()
		q.record(ctx, Event{Kind: KindRefused, Request: r})
		return nil, Request{}, err
	}
	if r.Tier == Elevated {
		r.Phrase = "allow " + r.Question.Action + " " + string(r.ID[len(r.ID)-4:])
	}
	if err := r.move(Pending); err != nil {
		return nil, Request{}, err
	}
	entry, err := q.record(ctx, Event{Kind: KindAsked, Request: r})
	if err != nil {
		return nil, Request{}, fmt.Errorf("record a question: %w", err)
	}
	r.Entry = entry
	if err := q.save(ctx, r, KindAsked); err != nil {
		return nil, Request{}, fmt.Errorf("keep a question: %w", err)
	}
	w := &waiting{now: r, done: make(chan struct{})}
	if asks {
		w.asked = 1
	}
	q.pending[r.ID], q.same[r.key()] = w, w
	q.tell(Event{Kind: KindAsked, Request: r})
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return w, r, nil
}

// preapprove settles a question that the policy has allowed before. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) preapprove(ctx context.Context, r *Request) error {
	if err := r.move(Answered); err != nil {
		return err
	}
	r.Settled, r.Outcome = r.Created, "pre-approved"
	r.Answer = &Answer{Verdict: Allow, Scope: Once, Reason: r.Reason, By: Person{ID: "policy", Name: "policy", Role: "policy"}, Channel: "policy", At: r.Created, Hash: r.Hash}
	entry, err := q.record(ctx, Event{Kind: KindAnswered, Request: *r})
	if err != nil {
		return fmt.Errorf("record a pre-approved question: %w", err)
	}
	r.Entry = entry
	if err := q.store.Save(context.WithoutCancel(ctx), *r, nil); err != nil {
		return fmt.Errorf("keep a pre-approved question: %w", err)
	}
	q.ready[r.key()] = *r
	q.tell(Event{Kind: KindAnswered, Request: *r})
	return nil
}

// pendingOf counts the pending requests of a jail. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) pendingOf(j id.Jail) int {
	n := 0
	for _, w := range q.pending {
		if w.now.Question.Subject.Jail == j {
			n++
		}
	}
	return n
}

// Pending returns what waits, oldest first.
func (q *Queue) Pending() []Request {
	q.mu.Lock()
	defer q.mu.Unlock()
	var list []Request
	for _, w := range q.pending {
		r := w.now
		r.Waiting = w.asked
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Request) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// Get returns a request, however long ago it was settled.
func (q *Queue) Get(ctx context.Context, aid id.Approval) (Request, error) {
	return q.store.Get(ctx, aid)
}

// List returns requests, newest first.
func (q *Queue) List(ctx context.Context, f Filter) ([]Request, error) { return q.store.List(ctx, f) }

// Withdraw ends a request that nobody needs the answer of any more.
func (q *Queue) Withdraw(ctx context.Context, aid id.Approval, reason string) (Request, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.pending[aid]
	if w == nil {
		r, err := q.store.Get(ctx, aid)
		if err == nil && r.State != Withdrawn {
			err = fault.Newf(fault.Conflict, "approval.Withdraw", string(aid), "it is %s already", r.State)
		}
		return r, err
	}
	r := w.now
	if err := r.move(Withdrawn); err != nil {
		return r, err
	}
	r.Outcome = "withdrawn: " + shorten(reason, maxReason)
	return r, q.settle(ctx, w, r, KindWithdrawn)
}

// WithdrawOf withdraws all that somebody asked who has ended: a jail, or a run.
func (q *Queue) WithdrawOf(ctx context.Context, of func(policy.Subject) bool, reason string) error {
	var errs []error
	for _, r := range q.Pending() {
		if !of(r.Question.Subject) {
			continue
		}
		if _, err := q.Withdraw(ctx, r.ID, reason); err != nil && fault.KindOf(err) != fault.Conflict {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// settle records, keeps and makes known what became of a pending request, in
// that order. q.mu is held.
//
// +checklocks:q.mu
func (q *Queue) settle(ctx context.Context, w *waiting, r Request, kind Kind) error {
	r.Settled = time.Now().UTC()
	entry, err := q.record(ctx, Event{Kind: kind, Request: r})
	if err != nil && kind == KindAnswered {
		return fmt.Errorf("record the answer: %w", err)
	}
	if entry != 0 {
		r.Entry = entry
	}
	r.Taken = w.asked > 0 || r.State != Answered
	if err := q.save(ctx, r, kind); err != nil {
		return fmt.Errorf("keep what became of %s: %w", r.ID, err)
	}
	w.now = r
	delete(q.pending, r.ID)
	delete(q.same, r.key())
	if !r.Taken {
		q.ready[r.key()] = r
	}
	q.tell(Event{Kind: kind, Request: r})
	if !r.Owed { // else once it is remembered
		close(w.done)
	}
	return nil
}

// save keeps a request, and with it that people are to be told. q.mu is held.
//
// +checklocks:q.mu
func (q *Queue) save(ctx context.Context, r Request, kind Kind) error {
	notices := q.noticesFor(r, kind)
	if err := q.store.Save(context.WithoutCancel(ctx), r, notices); err != nil {
		return err
	}
	q.outbox.add(notices)
	return nil
}

func (q *Queue) record(ctx context.Context, e Event) (int64, error) {
	if q.cfg.Record == nil {
		return 0, nil
	}
	e.At = time.Now().UTC()
	entry, err := q.cfg.Record(context.WithoutCancel(ctx), e)
	if err != nil {
		q.cfg.Log.Error("what happens to approvals cannot be recorded", "approval", e.Request.ID, "kind", e.Kind, "error", err)
	}
	return entry, err
}

// expireLoop ends what nobody answers in time.
func (q *Queue) expireLoop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-q.ctx.Done():
			return
		case <-q.wake:
		case <-timer.C:
		}
		timer.Reset(q.expire())
	}
}

// expire settles what is over and returns how long there is until the next.
func (q *Queue) expire() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	wait := time.Hour
	if err := q.store.Forget(q.ctx, now, now.Add(-q.cfg.Keep)); err != nil && q.ctx.Err() == nil {
		q.cfg.Log.Error("what is over cannot be forgotten", "error", err)
	}
	for key, r := range q.ready {
		if !r.Expires.After(now) {
			delete(q.ready, key)
			r.Taken = true // by nobody: it need not be looked at again
			if err := q.store.Save(context.WithoutCancel(q.ctx), r, nil); err != nil {
				q.cfg.Log.Error("an old answer cannot be put away", "approval", r.ID, "error", err)
			}
			continue
		}
		wait = min(wait, r.Expires.Sub(now))
	}
	for _, w := range q.pending {
		if left := w.now.Expires.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		r := w.now
		err := r.move(Expired)
		if err == nil {
			r.Outcome = fmt.Sprintf("denied: nobody answered within %s", r.Expires.Sub(r.Created).Round(time.Second))
			err = q.settle(q.ctx, w, r, KindExpired)
		}
		if err != nil {
			q.cfg.Log.Error("a question cannot be ended", "approval", r.ID, "error", err)
			wait = min(wait, time.Second)
		}
	}
	return wait
}
