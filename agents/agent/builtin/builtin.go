// Package builtin is the reference agent: it plans, calls tools, evaluates their results
// and finishes. Its only connection is the agent endpoint of its jail.
//
// # Replay after a crash
//
// An agent may be killed at any moment. A new process resumes from the last checkpoint.
// Each request to the model or to a tool carries an idempotency key derived from the step
// number. The endpoint answers a known key from the step log. A restarted agent repeats
// the requests made since the checkpoint, byte for byte, and gets the same responses. No
// call is executed or billed twice.
//
// Replay requires that a request depends on the state alone. Requests use no clock and no
// randomness. Outside input (messages, the tool list, the reason why the run is not
// complete) is saved in a checkpoint before it is used in a request. The agent therefore
// accepts new messages only when it makes a checkpoint.
package builtin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Config configures an agent. The zero value works in a jail.
type Config struct {
	// Endpoint is the address of the agent endpoint: http://host:port or unix:///path.
	// Default: http://localhost:4097.
	Endpoint string

	// Token is sent to the endpoint with each request unless it is empty.
	Token string

	// CheckpointInterval is the number of steps between two checkpoints. Default: 1.
	CheckpointInterval int

	// Transport sends the requests. Default: a direct connection to Endpoint, without a proxy.
	Transport http.RoundTripper

	Log *slog.Logger // default: discard
}

const (
	heartbeat = 5 * time.Second

	// maxMistakes is the number of consecutive unusable answers after which the run fails.
	maxMistakes = 3

	// stopTimeout bounds the checkpoint that is written when the agent stops.
	stopTimeout = 10 * time.Second
)

// Reasons to stop the agent.
var (
	errStopRequested = errors.New("stop requested")
	errRunEnded      = errors.New("the run has ended")
)

// ErrFailed is wrapped by the error of Run if the agent has failed the run.
var ErrFailed = errors.New("the run has failed")

// Run pursues the goal of the run that the endpoint serves. It returns nil when the run
// has ended, when ctx ends and when the endpoint requests a stop. In the last two cases it
// writes a checkpoint first. The error wraps ErrFailed if the agent has reported the run
// as failed. After any other error the agent can be restarted.
func Run(ctx context.Context, cfg Config) error {
	if cfg.CheckpointInterval <= 0 {
		cfg.CheckpointInterval = 1
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e, err := newEndpoint(cfg)
	if err != nil {
		return err
	}
	defer e.close()
	a := &agent{endpoint: e, checkpointEvery: cfg.CheckpointInterval, log: cfg.Log}

	runCtx, stop := context.WithCancelCause(ctx)
	var beats sync.WaitGroup
	beats.Go(func() { a.sendHeartbeats(runCtx, stop) })
	err = a.pursue(runCtx)
	stop(nil)
	beats.Wait()

	switch {
	case errors.Is(err, errRunEnded):
		return nil
	case ctx.Err() != nil || errors.Is(err, errStopRequested):
		a.checkpointOnStop(ctx)
		return nil
	}
	if g, ok := errors.AsType[*fatalError](err); ok {
		return a.fail(ctx, g)
	}
	if _, ok := errors.AsType[*problem](err); ok && a.started {
		return a.fail(ctx, &fatalError{err.Error()}) // a restarted agent would be rejected too
	}
	return err
}

// An agent pursues one run.
type agent struct {
	endpoint        *endpoint
	checkpointEvery int
	log             *slog.Logger

	started bool
	state   state // as of the beginning of the current step
}

// A fatalError is an error that a restart of the agent would not resolve. It fails the run.
type fatalError struct{ why string }

func (g *fatalError) Error() string { return g.why }

// pursue resumes the run and executes steps until an error ends it.
func (a *agent) pursue(ctx context.Context) error {
	if err := a.begin(ctx); err != nil {
		return err
	}
	for {
		if err := a.refresh(ctx); err != nil {
			return err
		}
		if err := a.step(ctx); err != nil {
			return err
		}
		if a.state.Mistakes >= maxMistakes {
			return &fatalError{fmt.Sprintf("the model gave %d unusable answers in a row; the last problem: %s", a.state.Mistakes, a.state.LastMistake)}
		}
	}
}

// begin reads the run from the endpoint and restores the state of its last checkpoint.
func (a *agent) begin(ctx context.Context) error {
	var r runInfo
	if err := a.endpoint.get(ctx, "/run", &r); err != nil {
		return fmt.Errorf("get the run: %w", err)
	}
	if terminal(r.State) {
		return errRunEnded
	}
	s, err := r.resume()
	if err != nil {
		return err
	}
	a.state, a.started = s, true
	a.log.Info("resuming the run", "run", r.Run, "step", s.Step)
	return nil
}

// refresh reads new messages and the tool list and writes a checkpoint, if one is due.
func (a *agent) refresh(ctx context.Context) error {
	s := &a.state
	if s.Refreshed || s.Step%a.checkpointEvery != 0 && !s.Unjournaled {
		return nil
	}
	var inbox struct {
		Messages []inboxMessage `json:"messages"`
		After    int64          `json:"after"`
	}
	if err := a.endpoint.get(ctx, fmt.Sprintf("/run/inbox?after=%d&wait=0s", s.InboxSeq), &inbox); err != nil {
		return fmt.Errorf("read the inbox: %w", err)
	}
	var list struct {
		Tools []tool `json:"tools"`
	}
	if err := a.endpoint.get(ctx, "/run/tools", &list); err != nil {
		return fmt.Errorf("list the tools: %w", err)
	}
	next := s.clone()
	next.addInbox(inbox.Messages, inbox.After)
	next.Tools = usableTools(list.Tools)
	next.Refreshed, next.Unjournaled = true, false
	next.trim()
	if err := a.checkpoint(ctx, &next, ""); err != nil {
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	*s = next
	return nil
}

func (a *agent) checkpoint(ctx context.Context, s *state, reason string) error {
	in := struct {
		State  *state `json:"state"`
		Reason string `json:"reason,omitempty"`
	}{s, reason}
	return a.endpoint.post(ctx, "/run/checkpoint", in, nil)
}

// checkpointOnStop writes a checkpoint before the agent stops. Failure is harmless: the run
// then resumes from the previous checkpoint.
func (a *agent) checkpointOnStop(ctx context.Context) {
	if !a.started {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := a.checkpoint(ctx, &a.state, "stopping"); err != nil && !errors.Is(err, errRunEnded) {
		a.log.Warn("cannot write a checkpoint before stopping", "error", err)
	}
}

// fail reports the run as failed.
func (a *agent) fail(ctx context.Context, g *fatalError) error {
	in := struct {
		Error string `json:"error"`
	}{g.why}
	if err := a.endpoint.post(ctx, "/run/fail", in, nil); err != nil && !errors.Is(err, errRunEnded) {
		return fmt.Errorf("report that the run has failed (%w): %w", g, err)
	}
	return fmt.Errorf("%w: %w", ErrFailed, g)
}

// sendHeartbeats sends heartbeats until ctx ends. It calls stop if the response says that
// the run has ended or that the agent must stop.
func (a *agent) sendHeartbeats(ctx context.Context, stop context.CancelCauseFunc) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		var status struct {
			State string `json:"state"`
			Stop  bool   `json:"stop"`
		}
		err := a.endpoint.postOnce(ctx, heartbeat, "/run/heartbeat", struct{}{}, &status)
		switch {
		case err != nil: // the next heartbeat tries again; other requests retry by themselves
		case terminal(status.State):
			stop(errRunEnded)
		case status.Stop:
			stop(errStopRequested)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// terminal reports whether state is a final state of a run.
func terminal(state string) bool {
	return state == "done" || state == "failed" || state == "cancelled"
}
