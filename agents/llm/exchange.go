package llm

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"net/http"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// An exchange is one request with its response.
type exchange struct {
	g      *Gateway
	f      *format
	caller Caller
	header http.Header // header of the caller's request
	url    string      // path and query relative to the provider's base, for the journal
	in     []byte      // the original request
	out    []byte      // the forwarded request
	ask    ask
	to     target

	key    string // idempotency key for the journal; empty: the answer is not stored
	digest string // digest of the request, for the journal
	stored bool   // in the journal

	account  account
	reserved int64 // tokens reserved in the provider's rate limiter
	tally    tally
	call     Call
	sum      hash.Hash // checksum of the bytes sent to the caller
	kept     []byte    // the bytes sent to the caller, if they are stored or recorded
	sent     bool      // a provider has started to process it
}

// serve handles a request of a format.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, f *format, model, path string) {
	x, err := g.accept(w, r, f, model, path)
	if err != nil {
		f.refuse(w, err)
		return
	}
	was, leave, err := x.recall(r.Context(), r.Header.Get("Idempotency-Key"))
	defer leave()
	switch {
	case err != nil:
		f.refuse(w, err)
	case was != nil:
		was.answer(w)
	default:
		if err := x.run(w, r); err != nil {
			f.refuse(w, err)
		}
	}
}

// accept parses a request.
func (g *Gateway) accept(w http.ResponseWriter, r *http.Request, f *format, model, path string) (*exchange, error) {
	c, err := g.cfg.Caller(r)
	if err != nil {
		return nil, err
	}
	if err := checkHeader(r.Header); err != nil {
		return nil, err
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, &fault.Error{Op: "llm.accept", Kind: fault.Unsupported, Field: "Content-Encoding", Remedy: "send it without Content-Encoding",
			Err: fmt.Errorf("unsupported Content-Encoding %s", quoted(e))}
	}
	x := &exchange{g: g, f: f, caller: c, header: r.Header, sum: sha256.New()}
	if x.in, err = readBody(w, r); err != nil {
		return nil, err
	}
	if x.ask, err = f.read(x.in, model); err != nil {
		return nil, err
	}
	if x.to, err = g.resolve(c, f.api, x.ask.model); err != nil {
		return nil, err
	}
	if x.out, err = x.rewrite(); err != nil {
		return nil, err
	}
	x.url = upstreamPath(f, path, x.to.model) + query(r.URL.Query())
	x.tally.ask = x.ask
	price, priced := g.price(x.to.model)
	if f.free {
		price, priced = Price{}, true
	}
	x.account = account{budget: c.Budget, price: price}
	x.call = Call{
		ID: id.NewLLMCall(), Caller: c, Hint: hint(r.Header), Format: f.name, Model: x.ask.model, Served: x.to.model,
		Provider: x.to.provider.Name, Stream: x.ask.stream, Priced: priced, RequestDigest: sha256.Sum256(x.in),
		Request: x.in[:min(len(x.in), max(g.cfg.RecordBodies, 0))],
	}
	return x, nil
}

// rewrite returns the request to forward, which differs from the original only where
// necessary.
func (x *exchange) rewrite() (body []byte, err error) {
	body = x.in
	if x.to.model != x.ask.model && x.f.api != Gemini {
		if body, err = withModel(body, x.to.model); err != nil {
			return nil, err
		}
	}
	if x.f == chat && x.ask.stream && !x.ask.usage {
		return withUsage(body)
	}
	return body, nil
}

// run waits for the rate limits, reserves budget, forwards the request and passes on the
// answer. The caller must report the returned error; all other errors have been reported.
func (x *exchange) run(w http.ResponseWriter, r *http.Request) error {
	out := x.answerLimit()
	leave, err := x.g.callers.of(x.caller.who()).enter(r.Context(), "this caller", x.ask.input+out, x.g.cfg.Wait)
	if err != nil {
		return err
	}
	defer leave()
	left, err := x.to.provider.limiter.enter(r.Context(), "provider "+x.to.provider.Name, x.ask.input+out, x.g.cfg.Wait)
	if err != nil {
		return err
	}
	defer left()
	x.reserved = x.ask.input + out
	defer x.account.release() // releases the part of the reservation that was not settled
	if err := x.reserve(out); err != nil {
		x.exceeded(r.Context(), err)
		x.to.provider.limiter.correct(x.reserved, 0)
		return err
	}
	return x.forward(w, r)
}

// answerLimit returns the assumed maximum number of tokens of the answer.
func (x *exchange) answerLimit() int64 {
	switch x.ask.limit {
	case none:
		return 0
	case 0:
		return min(x.g.cfg.Output*max(x.ask.choices, 1), maxTokens)
	}
	return min(x.ask.limit, maxTokens)
}

// reserve reserves budget for the call. A stream without a limit can be ended at any time, so
// it starts with a smaller reservation if necessary.
func (x *exchange) reserve(out int64) error {
	if x.f.free {
		return nil
	}
	err := x.account.open(x.ask.input, out)
	if x.ask.limit != 0 || !x.ask.stream {
		return err
	}
	for err != nil && out > more {
		out /= 2
		if x.account.open(x.ask.input, out) == nil {
			return nil
		}
	}
	return err
}

// exceeded calls Config.Exceeded for a call that the budget does not allow.
func (x *exchange) exceeded(ctx context.Context, err error) {
	if overdrawn(err) && x.g.cfg.Exceeded != nil {
		x.g.cfg.Exceeded(context.WithoutCancel(ctx), x.caller, err)
	}
}

// finish settles and records the call. It is called once, before the caller sees the end of
// the answer.
func (x *exchange) finish(ctx context.Context, how Outcome, problem string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	c := &x.call
	c.Outcome, c.Problem, c.Kept, c.Free = how, problem, x.key != "", x.f.free
	if x.sent && !x.f.free {
		c.Usage = x.tally.usage()
	}
	c.Cost = x.account.price.Cost(c.Usage)
	c.Took = time.Since(c.Began)
	x.sum.Sum(c.AnswerDigest[:0])
	c.Answer = x.kept[:min(len(x.kept), max(x.g.cfg.RecordBodies, 0))]
	x.account.settle(c.Usage)
	x.to.provider.limiter.correct(x.reserved, c.Usage.Total())
	x.g.meters.add(*c)
	if x.g.cfg.Record == nil {
		return nil
	}
	if err := x.g.cfg.Record(ctx, *c); err != nil {
		x.g.cfg.Log.Error("cannot record a model call", "call", c.ID, "run", c.Caller.Run, "error", err)
		return notRecorded()
	}
	return nil
}

// keep stores an answer in the journal, before the caller sees its end.
func (x *exchange) keep(ctx context.Context, status int, contentType string) error {
	if x.key == "" {
		return nil
	}
	if len(x.kept) > maxKept {
		x.g.cfg.Log.Warn("a model answer is too long for the journal", "call", x.call.ID, "run", x.caller.Run)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err := x.caller.Journal.End(ctx, x.key, x.digest, Recorded{Status: status, ContentType: contentType, Body: x.kept})
	if err != nil {
		x.g.cfg.Log.Error("cannot store a model answer in the journal", "call", x.call.ID, "run", x.caller.Run, "error", err)
		return notRecorded()
	}
	x.stored = true
	return nil
}

// note adds bytes sent to the caller to the digest, and stores them if needed.
func (x *exchange) note(part []byte) {
	x.sum.Write(part)
	room := x.g.cfg.RecordBodies
	if x.key != "" {
		room = maxKept + 1 // the extra byte shows that it is too long
	}
	x.kept = append(x.kept, part[:min(len(part), max(room-len(x.kept), 0))]...)
}

// maxHeader is the maximum size of a request header.
const maxHeader = 64 << 10

func checkHeader(h http.Header) error {
	size := 0
	for name, values := range h {
		for _, v := range values {
			size += len(name) + len(v)
		}
	}
	if size > maxHeader {
		return fault.Newf(fault.TooLarge, "llm.checkHeader", "", "the header has %d bytes, which exceeds the limit of %d", size, maxHeader)
	}
	return nil
}

// hint returns the session name that the agent sends.
func hint(h http.Header) string {
	for _, name := range []string{"X-Session-Id", "X-Claude-Code-Session-Id"} {
		if v := h.Get(name); v != "" {
			return strings.Map(func(r rune) rune {
				if r <= ' ' || r > '~' {
					return -1
				}
				return r
			}, v[:min(len(v), 128)])
		}
	}
	return ""
}
