package llm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"glasshouse/fault"
)

// tail is how long a provider may take to close a stream after its last event.
const tail = 2 * time.Second

// A stream is an answer that is passed on event by event. The event that may be the last is
// held back until the call is settled, recorded and stored: a caller that has seen the end of
// an answer gets the same answer on a retry.
type stream struct {
	*exchange
	w      http.ResponseWriter
	out    *http.ResponseController
	answer *answer
	passed int64
	unsent bool // written but not flushed
	held   []byte
	leave  func() // stops waiting for the provider
}

func (x *exchange) stream(ctx context.Context, cancel context.CancelCauseFunc, w http.ResponseWriter, a *answer) {
	s := &stream{exchange: x, w: w, out: http.NewResponseController(w), answer: a}
	s.leave = func() { cancel(errSilent) }
	x.giveHeader(w, a)
	w.Header().Set("X-Accel-Buffering", "no") // disables buffering in nginx
	w.WriteHeader(a.StatusCode)
	defer s.out.SetWriteDeadline(time.Time{}) // the connection may be reused
	how, err := s.pass()
	cancel(nil) // the rest of the provider's response is not needed
	s.end(ctx, how, err)
}

// pass passes events on until the stream ends or is ended.
func (s *stream) pass() (Outcome, error) {
	in := newEvents(s.answer.body, maxEvent)
	for {
		if s.unsent && !in.ready() { // buffered events are flushed together
			s.unsent = false
			if err := s.out.Flush(); err != nil {
				return Cancelled, err
			}
		}
		ev, err := in.next()
		if err == nil || err == io.EOF { // some providers omit the last empty line
			s.f.event(&s.tally, ev)
		}
		if err == nil || err == io.EOF && (s.tally.done || s.tally.failed) {
			if how, err := s.one(ev); err != nil {
				return how, err
			}
		}
		if err != nil {
			return s.over(err) // an incomplete event is not passed on
		}
	}
}

// one forwards one event.
func (s *stream) one(ev sse) (Outcome, error) {
	if s.passed += int64(len(ev.raw)); s.passed > maxStream {
		return Truncated, fault.Newf(fault.Unavailable, "llm.one", "provider "+s.to.provider.Name, "the stream has more than %d bytes", maxStream)
	}
	if err := s.account.covers(s.tally.usage()); err != nil && !s.tally.done {
		return BudgetExhausted, err
	}
	if s.tally.strip {
		return "", nil
	}
	if s.tally.done {
		if s.held == nil {
			time.AfterFunc(tail, s.leave)
		}
		s.held = append(s.held, ev.raw...)
		return "", nil
	}
	s.note(ev.raw)
	s.tally.shown = s.tally.last
	if err := s.write(ev.raw); err != nil {
		return Cancelled, err
	}
	return "", nil
}

// write queues bytes for the next flush. A caller that does not read blocks it for at most the
// provider's timeout.
func (s *stream) write(part []byte) error {
	s.out.SetWriteDeadline(time.Now().Add(s.to.provider.Timeout))
	s.unsent = true
	_, err := s.w.Write(part)
	return err
}

// over returns the outcome at the end of the provider's stream.
func (s *stream) over(err error) (Outcome, error) {
	name := "provider " + s.to.provider.Name
	switch {
	case s.tally.done:
		return Answered, nil // a late close does not matter
	case s.tally.failed:
		return Failed, nil // the provider has sent an error
	case errors.Is(err, errEvent):
		return Truncated, fault.Newf(fault.Unavailable, "llm.over", name, "an event of the stream has more than %d bytes", maxEvent)
	case err == io.EOF:
		return Truncated, fault.Newf(fault.Unavailable, "llm.over", name, "the stream is truncated")
	}
	return Truncated, fmt.Errorf("read a stream: %w", err)
}

// end settles a stream and sends the events that were held back, or an error.
func (s *stream) end(ctx context.Context, how Outcome, err error) {
	switch cause := context.Cause(ctx); {
	case how != Truncated:
	case errors.Is(cause, errSilent):
		err = fault.Newf(fault.Timeout, "llm.end", "provider "+s.to.provider.Name, "no data for %v", s.to.provider.Timeout)
	case errors.Is(err, context.Canceled):
		how = Cancelled
	case fault.KindOf(err) == "":
		err = fault.Newf(fault.Unavailable, "llm.end", "provider "+s.to.provider.Name, "the stream is truncated")
	}
	last := s.held
	if how == Cancelled {
		last = nil
	}
	if how == BudgetExhausted {
		s.exceeded(ctx, err)
	}
	if err != nil && how != Cancelled {
		last = s.f.broken(&s.tally, problemOf(err))
	}
	s.note(last)
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	failed := s.finish(ctx, how, problem)
	if failed == nil && how == Answered {
		failed = s.keep(ctx, s.answer.StatusCode, s.answer.Header.Get("Content-Type"))
	}
	if failed != nil {
		last = s.f.broken(&s.tally, problemOf(failed)) // harmless if the caller has disconnected
	}
	if len(last) > 0 {
		s.write(last)
		s.out.Flush()
	}
}
