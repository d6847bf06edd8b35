package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"glasshouse/agent"
	"glasshouse/agent/acp"
	"glasshouse/agent/spawn"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/run"
)

// A cancelableLock is a lock that one can give up waiting for.
type cancelableLock chan struct{}

func (t cancelableLock) Lock()   { t <- struct{}{} }
func (t cancelableLock) Unlock() { <-t }

// pausePromptsTimeout is how long it is waited for an agent to take what it is being given.
const pausePromptsTimeout = 2 * time.Second

// pausePrompts has the agent of a run told nothing until goOn is called. It cannot if the agent
// does not take what it is being given.
func (g *Gateway) pausePrompts(ctx context.Context, rid id.Run) (goOn func(), ok bool) {
	a := g.supervisionOf(rid)
	if a == nil {
		return func() {}, true
	}
	ctx, cancel := context.WithTimeout(ctx, pausePromptsTimeout)
	defer cancel()
	select {
	case a.promptLock <- struct{}{}:
		return a.promptLock.Unlock, true
	case <-ctx.Done():
		return nil, false
	}
}

// errRunOver is why an agent is told to stop.
var errRunOver = errors.New("its run does not go on")

// converseInJail talks with the agent in a jail, from where somebody has come to before. When
// the daemon ends, or the run is paused, the agent is left as it is: its jail stands still,
// or it waits for an answer.
func (g *Gateway) converseInJail(ctx context.Context, a *supervision, r run.Run, j jail.Jail, x id.Exec, l agent.Launch, ag Agent) error {
	who, err := g.callerIn(ctx, j.ID)
	if err != nil {
		return err
	}
	t, o, err := g.openConversation(ctx, a, r, who, x, l)
	if err != nil {
		return err
	}
	o.Spare = ag.Preset == "shell"
	from := int64(0)
	if o.From != nil {
		from = o.From.At
	}
	w, err := g.openConn(context.WithoutCancel(ctx), j.ID, x, from)
	if err != nil {
		g.terminate(ctx, j.ID, x)
		return errEnded{fmt.Sprintf("what the agent wrote cannot be read on: %s", err)}
	}
	var host acp.Host = t
	if ag.Preset == "shell" { // the others use their own tools, in the jail
		host = &jailConversation{conversation: t, jail: j.ID}
	}
	err = g.converse(ctx, a, r, w, host, o, isDedicatedJail(j, r))
	if err != nil && ctx.Err() == nil {
		g.terminate(ctx, j.ID, x)
		errs, _ := w.errs.text(0)
		return errors.Join(conversationError(err, errs), t.endOpenSteps(ctx, x))
	}
	return err
}

// openConversation is the conversation with a process of an agent, and how it is taken up.
func (g *Gateway) openConversation(ctx context.Context, a *supervision, r run.Run, who Caller, x id.Exec, l agent.Launch) (*conversation, acp.Options, error) {
	t := &conversation{g: g, supervision: a, run: r, caller: who}
	o := acp.Options{Cwd: l.Cwd, Servers: l.Servers, Meta: l.Meta, Still: a.promptLock, GoOn: continuePrompt}
	if len(r.Talk) > 0 {
		if err := json.Unmarshal(r.Talk, &t.saved); err != nil {
			return nil, o, fmt.Errorf("how far the conversation has come: %w", err)
		}
	}
	var err error
	if o.Prompt, err = g.cfg.Runs.Text(ctx, r.Session, r.Goal); err != nil {
		return nil, o, err
	}
	if t.saved.Exec == x {
		o.From = &t.saved.Position
		o.Resume = t.saved.Resumes
		return t, o, nil
	}
	if t.saved.Exec != "" {
		if err := t.endOpenSteps(ctx, t.saved.Exec); err != nil {
			return nil, o, err
		}
	}
	// Another process of it: of the conversation before it may still know.
	t.saved = conversationState{Exec: x, Resumes: t.saved.Position.Session, Inbox: t.saved.Inbox, Errand: t.saved.Errand}
	o.Resume = t.saved.Resumes
	return t, o, t.Keep(ctx, acp.Position{})
}

// converse talks with an agent until its run does not go on, or it has ended. An agent that
// is left works on, and is taken up again.
func (g *Gateway) converse(ctx context.Context, a *supervision, r run.Run, c acp.Conn, host acp.Host, o acp.Options, leave bool) error {
	talking, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		stop(g.waitForStop(ctx, talking, a, r.ID, leave))
	}()
	_, err := acp.Drive(talking, c, host, o)
	cause := context.Cause(talking)
	stop(errRunOver)
	<-watched
	if errors.Is(err, errRunOver) || errors.Is(err, acp.ErrLeft) || cause != nil && errors.Is(cause, acp.ErrLeft) {
		return ctx.Err()
	}
	return err
}

// waitForStop waits until an agent is not to go on, and says what becomes of it.
func (g *Gateway) waitForStop(ctx, talking context.Context, a *supervision, rid id.Run, leave bool) error {
	for {
		select {
		case <-talking.Done():
			return nil
		case <-ctx.Done():
			return acp.ErrLeft
		case <-a.moved:
		}
		now, err := g.cfg.Runs.Get(ctx, rid)
		switch {
		case err != nil && ctx.Err() == nil:
			g.cfg.Log.Error("a run cannot be read", "run", rid, "err", err)
		case err != nil, now.State == run.Active, now.State == run.Paused && now.Why == run.ForApproval:
		case leave && !now.State.Ended():
			return acp.ErrLeft
		default:
			return errRunOver
		}
	}
}

// conversationError is why a conversation has ended before its run has. Another process of the agent may
// do better, unless this one cannot do at all what is wanted.
func conversationError(err error, stderr string) error {
	if errors.Is(err, fault.Unsupported) || errors.Is(err, fault.Unauthenticated) {
		return err
	}
	if stderr = strings.TrimSpace(stderr); stderr != "" {
		return errEnded{fmt.Sprintf("%s; it wrote: %s", err, clip(stderr, 1000))}
	}
	return errEnded{err.Error()}
}

// converseOutside starts an agent that is in no jail, and talks with it. It ends with this
// process.
func (g *Gateway) converseOutside(ctx context.Context, a *supervision, r run.Run, ag Agent, l agent.Launch, s spawn.Spawner, start spawn.Start) error {
	who, err := g.callerOf(ctx, r.ID)
	if err != nil {
		return err
	}
	theirIn, in := io.Pipe()
	out, theirOut := io.Pipe()
	var errs truncatedOutput
	start.Stdin, start.Stdout, start.Stderr = theirIn, theirOut, &errs
	proc, err := s.Start(ctx, start)
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	go func() { // it says no more then
		<-proc.Done()
		theirOut.Close()
		theirIn.Close()
	}()
	l.Cwd = proc.Cwd
	t, o, err := g.openConversation(ctx, a, r, who, id.NewExec(), l)
	o.Spare = ag.Preset == "shell"
	if err == nil {
		err = g.converse(ctx, a, r, acp.Pipes(in, out), t, o, false)
	}
	out.Close()
	in.Close()
	proc.Kill()
	_, werr := proc.Wait()
	if err == nil || ctx.Err() != nil {
		return err
	}
	text, _ := errs.text(0)
	return conversationError(errors.Join(err, werr), text)
}
