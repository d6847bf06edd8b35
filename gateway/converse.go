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

// A turnstile is a lock that one can give up waiting for.
type turnstile chan struct{}

func (t turnstile) Lock()   { t <- struct{}{} }
func (t turnstile) Unlock() { <-t }

// hushPatience is how long it is waited for an agent to take what it is being given.
const hushPatience = 2 * time.Second

// hush has the agent of a run told nothing until goOn is called. It cannot if the agent
// does not take what it is being given.
func (g *Gateway) hush(ctx context.Context, rid id.Run) (goOn func(), ok bool) {
	a := g.attending(rid)
	if a == nil {
		return func() {}, true
	}
	ctx, cancel := context.WithTimeout(ctx, hushPatience)
	defer cancel()
	select {
	case a.still <- struct{}{}:
		return a.still.Unlock, true
	case <-ctx.Done():
		return nil, false
	}
}

// errOver is why an agent is told to stop.
var errOver = errors.New("its run does not go on")

// converseIn talks with the agent in a jail, from where somebody has come to before. When
// the daemon ends, or the run is paused, the agent is left as it is: its jail stands still,
// or it waits for an answer.
func (g *Gateway) converseIn(ctx context.Context, a *attend, r run.Run, j jail.Jail, x id.Exec, l agent.Launch, ag Agent) error {
	who, err := g.callerIn(ctx, j.ID)
	if err != nil {
		return err
	}
	t, o, err := g.talkOf(ctx, a, r, who, x, l)
	if err != nil {
		return err
	}
	o.Spare = ag.Preset == "shell"
	from := int64(0)
	if o.From != nil {
		from = o.From.At
	}
	w, err := g.wireTo(context.WithoutCancel(ctx), j.ID, x, from)
	if err != nil {
		g.kill(ctx, j.ID, x)
		return errEnded{fmt.Sprintf("what the agent wrote cannot be read on: %s", err)}
	}
	var host acp.Host = t
	if ag.Preset == "shell" { // the others use their own tools, in the jail
		host = &workshop{talk: t, jail: j.ID}
	}
	err = g.converse(ctx, a, r, w, host, o, mine(j, r))
	if err != nil && ctx.Err() == nil {
		g.kill(ctx, j.ID, x)
		errs, _ := w.errs.text(0)
		return errors.Join(lost(err, errs), t.closeOpen(ctx, x))
	}
	return err
}

// talkOf is the conversation with a process of an agent, and how it is taken up.
func (g *Gateway) talkOf(ctx context.Context, a *attend, r run.Run, who Caller, x id.Exec, l agent.Launch) (*talk, acp.Options, error) {
	t := &talk{g: g, at: a, run: r, who: who}
	o := acp.Options{Cwd: l.Cwd, Servers: l.Servers, Meta: l.Meta, Still: a.still, GoOn: goOn}
	if len(r.Talk) > 0 {
		if err := json.Unmarshal(r.Talk, &t.kept); err != nil {
			return nil, o, fmt.Errorf("how far the conversation has come: %w", err)
		}
	}
	var err error
	if o.Prompt, err = g.cfg.Runs.Text(ctx, r.Session, r.Goal); err != nil {
		return nil, o, err
	}
	if t.kept.Exec == x {
		o.From = &t.kept.Position
		o.Resume = t.kept.Resumes
		return t, o, nil
	}
	if t.kept.Exec != "" {
		if err := t.closeOpen(ctx, t.kept.Exec); err != nil {
			return nil, o, err
		}
	}
	// Another process of it: of the conversation before it may still know.
	t.kept = kept{Exec: x, Resumes: t.kept.Position.Session, Inbox: t.kept.Inbox, Errand: t.kept.Errand}
	o.Resume = t.kept.Resumes
	return t, o, t.Keep(ctx, acp.Position{})
}

// converse talks with an agent until its run does not go on, or it has ended. An agent that
// is left works on, and is taken up again.
func (g *Gateway) converse(ctx context.Context, a *attend, r run.Run, c acp.Conn, host acp.Host, o acp.Options, leave bool) error {
	talking, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		stop(g.whyStop(ctx, talking, a, r.ID, leave))
	}()
	_, err := acp.Drive(talking, c, host, o)
	cause := context.Cause(talking)
	stop(errOver)
	<-watched
	if errors.Is(err, errOver) || errors.Is(err, acp.ErrLeft) || cause != nil && errors.Is(cause, acp.ErrLeft) {
		return ctx.Err()
	}
	return err
}

// whyStop waits until an agent is not to go on, and says what becomes of it.
func (g *Gateway) whyStop(ctx, talking context.Context, a *attend, rid id.Run, leave bool) error {
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
			return errOver
		}
	}
}

// lost is why a conversation has ended before its run has. Another process of the agent may
// do better, unless this one cannot do at all what is wanted.
func lost(err error, stderr string) error {
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
func (g *Gateway) converseOutside(ctx context.Context, a *attend, r run.Run, ag Agent, l agent.Launch, s spawn.Spawner, start spawn.Start) error {
	who, err := g.callerOf(ctx, r.ID)
	if err != nil {
		return err
	}
	theirIn, in := io.Pipe()
	out, theirOut := io.Pipe()
	var errs cut
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
	t, o, err := g.talkOf(ctx, a, r, who, id.NewExec(), l)
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
	return lost(errors.Join(err, werr), text)
}
