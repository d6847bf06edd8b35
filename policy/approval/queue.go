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

// A Store keeps requests, notices and links. Save is atomic.
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

	// Forget deletes links that expired before now, and finished requests and dead notices
	// older than old.
	Forget(ctx context.Context, now, old time.Time) error
}

// A Filter selects the requests that List returns.
type Filter struct {
	Jail  id.Jail // "": all jails
	State State   // "": any state
	Limit int     // 0: 100
}

// Config configures a Queue. The zero value is valid and sends no notifications.
type Config struct {
	Wait  time.Duration // default time until a request expires; 0 is 15 minutes
	Limit int           // most pending requests per jail; 0 is 32
	Keep  time.Duration // retention of finished requests; 0 is 90 days. The audit log is not affected

	// Remember puts the rule of an answer into force. It may be called twice for the same
	// answer, if the daemon ended before it stored the result of the first call.
	Remember func(ctx context.Context, r Request, rule policy.Rule) error

	// Record writes an event to the audit log before the event has an effect, and returns the
	// number of the entry. It must not call the Queue. If it fails, nothing is allowed.
	Record func(ctx context.Context, e Event) (entry int64, err error)

	// Recorded returns a pending request in the state of its latest audit log entry, and
	// whether there is such an entry. An earlier process may have been killed between Record
	// and Store.Save.
	Recorded func(ctx context.Context, r Request) (Request, bool, error)

	Webhooks []Webhook
	Pushes   []Push
	Browsers BrowserConfig
	Links    string // base URL of the Links handler, such as "https://host/answers/"; "": links are disabled
	Retry    Retry
	Log      *slog.Logger
}

// A Queue holds pending approvals. It is safe for concurrent use.
type Queue struct {
	cfg    Config
	store  Store
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	outbox outbox

	browsers *browsers // nil: Web Push is disabled

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	pending map[id.Approval]*pendingRequest // requests without an answer, by id
	// +checklocks:mu
	byQuestion map[string]*pendingRequest // the same requests, by Request.key
	// +checklocks:mu
	untaken map[string]Request // answers that no caller has received yet, by Request.key
	// +checklocks:mu
	watchers map[*Subscription]struct{} // subscriptions of Subscribe
	wake     chan struct{}              // signals expireLoop that an earlier expiry was added
}

// A pendingRequest is a request that is pending or was settled a moment ago.
type pendingRequest struct {
	req     Request       // guarded by Queue.mu
	waiters int           // callers that wait for the answer. guarded by Queue.mu
	done    chan struct{} // closed when the request is settled
}

// New returns a Queue that continues with the requests and notices in the store.
func New(ctx context.Context, s Store, cfg Config) (*Queue, error) {
	cfg.Wait = cmp.Or(cfg.Wait, 15*time.Minute)
	cfg.Limit = cmp.Or(cfg.Limit, 32)
	cfg.Keep = cmp.Or(cfg.Keep, 90*24*time.Hour)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	q := &Queue{
		cfg: cfg, store: s,
		pending: map[id.Approval]*pendingRequest{}, byQuestion: map[string]*pendingRequest{}, untaken: map[string]Request{},
		watchers: map[*Subscription]struct{}{}, wake: make(chan struct{}, 1),
	}
	list, err := s.Unfinished(ctx)
	if err != nil {
		return nil, fmt.Errorf("load approvals: %w", err)
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

// resume loads a request that an earlier process left unfinished.
//
// New calls it before the queue is shared.
//
// +checklocksignore
func (q *Queue) resume(r Request) {
	if r.State == Pending && q.cfg.Recorded != nil {
		r = q.asRecorded(r)
	}
	if r.State == Pending { // expireLoop handles those that have expired
		w := &pendingRequest{req: r, done: make(chan struct{})}
		q.pending[r.ID], q.byQuestion[r.key()] = w, w
	}
	if r.State == Answered && !r.AnswerUsed { // expireLoop handles those that have expired
		q.untaken[r.key()] = r
	}
}

// RememberOwed calls Config.Remember for answers whose rules an earlier process did not put
// into force. Call it as soon as Config.Remember works.
func (q *Queue) RememberOwed(ctx context.Context) error {
	list, err := q.store.Unfinished(ctx)
	if err != nil {
		return fmt.Errorf("load approvals: %w", err)
	}
	for _, r := range list {
		if _, err := q.remember(ctx, r); err != nil {
			q.cfg.Log.Error("failed to put the rule of an answer into force", "approval", r.ID, "error", err)
		}
	}
	return nil
}

// asRecorded returns a pending request in the state of its latest audit log entry, and stores
// that state. Otherwise a person would be asked again, and the audit log would contain two
// answers. New calls it before the queue is shared.
//
// +checklocksignore
func (q *Queue) asRecorded(r Request) Request {
	now, found, err := q.cfg.Recorded(q.ctx, r)
	if err == nil && found {
		kinds := map[State]Kind{Pending: KindSeconded, Answered: KindAnswered, Expired: KindExpired, Withdrawn: KindWithdrawn}
		err = q.save(q.ctx, now, kinds[now.State])
	}
	if err != nil {
		q.cfg.Log.Error("failed to read the recorded state of a request", "approval", r.ID, "error", err)
		return r
	}
	if found {
		q.cfg.Log.Info("restored a request from the audit log", "approval", r.ID, "state", now.State)
		return now
	}
	return r
}

// key identifies requests that share one question to a person.
func (r Request) key() string { return string(r.Tier) + " " + r.Hash }

// Close ends all goroutines and subscriptions. Waiting callers get fault.Unavailable; their
// requests stay pending in the store. Close may be called twice.
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

var errClosed = fault.Newf(fault.Unavailable, "approval.Ask", "", "the daemon is shutting down; the request stays pending: repeat it")

// Open adds a request and returns without waiting. If the same question is pending, or has an
// answer that no caller has taken, Open returns that request. If the jail has too many pending
// requests, Open returns fault.Exhausted.
func (q *Queue) Open(ctx context.Context, r Request) (Request, error) {
	_, r, err := q.open(ctx, r, false)
	return r, err
}

// Ask adds a request and waits until it is settled. Only the callers that wait at that time
// get the answer; later callers with the same question do not. If ctx is done first, the
// request stays pending and a later Ask of the same question waits for it. If put is not nil,
// Ask calls it with the pending request before waiting.
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
		// A concurrent caller has just taken the answer. Ask again.
	}
}

// Wait waits until the request is settled or ctx is done, and returns the request in its state
// at that time. It fails only if the request does not exist or the queue is closing. A caller
// that carries out the answer must call Take first.
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
		return w.req, nil
	}
	return r, err
}

// await waits until w is settled. counted reports that open counted the caller in w.waiters.
func (q *Queue) await(ctx context.Context, w *pendingRequest, counted bool) (Request, error) {
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
	if w.req.State != Pending {
		return w.req, nil
	}
	if counted {
		w.waiters--
	}
	return Request{}, err
}

// Take claims the answer of a request for the question that was asked, and returns the
// request. A second call returns fault.Conflict.
func (q *Queue) Take(ctx context.Context, aid id.Approval, question policy.Question) (Request, error) {
	r, err := q.store.Get(ctx, aid)
	if err != nil {
		return Request{}, err
	}
	if r.Hash != HashOf(question) {
		return Request{}, fault.Newf(fault.Denied, "approval.Take", string(aid), "the request is for a different question")
	}
	return q.take(ctx, r)
}

func (q *Queue) take(ctx context.Context, r Request) (Request, error) {
	const op = "approval.Take"
	q.mu.Lock()
	defer q.mu.Unlock()
	r, err := q.store.Get(ctx, r.ID) // in its current state
	switch {
	case err != nil:
		return Request{}, err
	case r.State == Pending:
		return Request{}, fault.Newf(fault.Conflict, op, string(r.ID), "the request is still pending")
	case r.State != Answered:
		return r, nil // no answer to take
	case r.AnswerUsed:
		return Request{}, fault.Newf(fault.Conflict, op, string(r.ID), "the answer has already been used")
	case !r.Expires.After(time.Now()):
		return Request{}, fault.Newf(fault.Denied, op, string(r.ID), "the answer expired at %s", r.Expires.Format(time.RFC3339))
	}
	r.AnswerUsed = true
	if err := q.store.Save(context.WithoutCancel(ctx), r, nil); err != nil {
		return Request{}, err
	}
	delete(q.untaken, r.key())
	return r, nil
}

// open returns the request of a question, and its pendingRequest unless the request is
// settled. count adds the caller to those who get the answer.
func (q *Queue) open(ctx context.Context, r Request, count bool) (*pendingRequest, Request, error) {
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
	if answered, ok := q.untaken[r.key()]; ok && answered.Expires.After(now) {
		return nil, answered, nil
	}
	if w := q.byQuestion[r.key()]; w != nil {
		if count {
			w.waiters++
		}
		return w, w.req, nil
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
			"the jail already has %d pending approvals: this request is denied", n)
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
		return nil, Request{}, fmt.Errorf("record the request: %w", err)
	}
	r.ChainEntry = entry
	if err := q.save(ctx, r, KindAsked); err != nil {
		return nil, Request{}, fmt.Errorf("store the request: %w", err)
	}
	w := &pendingRequest{req: r, done: make(chan struct{})}
	if count {
		w.waiters = 1
	}
	q.pending[r.ID], q.byQuestion[r.key()] = w, w
	q.publish(Event{Kind: KindAsked, Request: r})
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return w, r, nil
}

// preapprove settles a request that the policy already allows. The caller holds q.mu.
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
		return fmt.Errorf("record a pre-approved request: %w", err)
	}
	r.ChainEntry = entry
	if err := q.store.Save(context.WithoutCancel(ctx), *r, nil); err != nil {
		return fmt.Errorf("store a pre-approved request: %w", err)
	}
	q.untaken[r.key()] = *r
	q.publish(Event{Kind: KindAnswered, Request: *r})
	return nil
}

// pendingOf counts the pending requests of a jail. The caller holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) pendingOf(j id.Jail) int {
	n := 0
	for _, w := range q.pending {
		if w.req.Question.Subject.Jail == j {
			n++
		}
	}
	return n
}

// Pending returns the pending requests, oldest first.
func (q *Queue) Pending() []Request {
	q.mu.Lock()
	defer q.mu.Unlock()
	var list []Request
	for _, w := range q.pending {
		r := w.req
		r.Waiting = w.waiters
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Request) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// Get returns a request, pending or settled.
func (q *Queue) Get(ctx context.Context, aid id.Approval) (Request, error) {
	return q.store.Get(ctx, aid)
}

// List returns requests, newest first.
func (q *Queue) List(ctx context.Context, f Filter) ([]Request, error) { return q.store.List(ctx, f) }

// Withdraw ends a pending request whose answer is no longer needed.
func (q *Queue) Withdraw(ctx context.Context, aid id.Approval, reason string) (Request, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.pending[aid]
	if w == nil {
		r, err := q.store.Get(ctx, aid)
		if err == nil && r.State != Withdrawn {
			err = fault.Newf(fault.Conflict, "approval.Withdraw", string(aid), "request is already %s", r.State)
		}
		return r, err
	}
	r := w.req
	if err := r.move(Withdrawn); err != nil {
		return r, err
	}
	r.Outcome = "withdrawn: " + shorten(reason, maxReason)
	return r, q.settle(ctx, w, r, KindWithdrawn)
}

// WithdrawMatching withdraws all pending requests whose subject, such as a jail or a run, has ended.
func (q *Queue) WithdrawMatching(ctx context.Context, of func(policy.Subject) bool, reason string) error {
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

// settle records, stores and publishes the end of a pending request, in that order. The caller
// holds q.mu.
//
// +checklocks:q.mu
func (q *Queue) settle(ctx context.Context, w *pendingRequest, r Request, kind Kind) error {
	r.Settled = time.Now().UTC()
	entry, err := q.record(ctx, Event{Kind: kind, Request: r})
	if err != nil && kind == KindAnswered {
		return fmt.Errorf("record the answer: %w", err)
	}
	if entry != 0 {
		r.ChainEntry = entry
	}
	r.AnswerUsed = w.waiters > 0 || r.State != Answered
	if err := q.save(ctx, r, kind); err != nil {
		return fmt.Errorf("store the outcome of %s: %w", r.ID, err)
	}
	w.req = r
	delete(q.pending, r.ID)
	delete(q.byQuestion, r.key())
	if !r.AnswerUsed {
		q.untaken[r.key()] = r
	}
	q.publish(Event{Kind: kind, Request: r})
	if !r.RulePending { // otherwise Answer closes it after the rule is stored
		close(w.done)
	}
	return nil
}

// save stores a request together with its notices. The caller holds q.mu.
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
		q.cfg.Log.Error("failed to record an approval event", "approval", e.Request.ID, "kind", e.Kind, "error", err)
	}
	return entry, err
}

// expireLoop expires requests that were not answered in time.
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

// expire settles expired requests and returns the time until the next expiry.
func (q *Queue) expire() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	wait := time.Hour
	if err := q.store.Forget(q.ctx, now, now.Add(-q.cfg.Keep)); err != nil && q.ctx.Err() == nil {
		q.cfg.Log.Error("failed to delete finished requests", "error", err)
	}
	for key, r := range q.untaken {
		if !r.Expires.After(now) {
			delete(q.untaken, key)
			r.AnswerUsed = true // unused: Unfinished no longer returns it
			if err := q.store.Save(context.WithoutCancel(q.ctx), r, nil); err != nil {
				q.cfg.Log.Error("failed to store an expired answer", "approval", r.ID, "error", err)
			}
			continue
		}
		wait = min(wait, r.Expires.Sub(now))
	}
	for _, w := range q.pending {
		if left := w.req.Expires.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		r := w.req
		err := r.move(Expired)
		if err == nil {
			r.Outcome = fmt.Sprintf("denied: no answer within %s", r.Expires.Sub(r.Created).Round(time.Second))
			err = q.settle(q.ctx, w, r, KindExpired)
		}
		if err != nil {
			q.cfg.Log.Error("failed to expire a request", "approval", r.ID, "error", err)
			wait = min(wait, time.Second)
		}
	}
	return wait
}
