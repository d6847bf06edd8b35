package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"glasshouse/agents/agent"
	"glasshouse/agents/agent/acp"
	"glasshouse/agents/agent/spawn"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// A cancelableLock is a mutex. Its capacity must be 1. Waiting for it can be cancelled by
// sending to it in a select.
type cancelableLock chan struct{}

func (l cancelableLock) Lock()   { l <- struct{}{} }
func (l cancelableLock) Unlock() { <-l }

// pausePromptsTimeout limits how long pausePrompts waits for a prompt that is being written to
// an agent.
const pausePromptsTimeout = 2 * time.Second

// pausePrompts prevents prompts to the agent of a run until resume is called. It returns false
// if the agent does not read a prompt that is being written.
func (su *supervisions) pausePrompts(ctx context.Context, rid id.Run) (resume func(), ok bool) {
	sup := su.of(rid)
	if sup == nil {
		return func() {}, true
	}
	ctx, cancel := context.WithTimeout(ctx, pausePromptsTimeout)
	defer cancel()
	select {
	case sup.promptLock <- struct{}{}:
		return sup.promptLock.Unlock, true
	case <-ctx.Done():
		return nil, false
	}
}

// errRunOver ends a conversation whose run must not continue.
var errRunOver = errors.New("the run has stopped")

// converseInJail drives the conversation with an agent in a jail, starting at the recorded
// position. When the daemon ends or the run is paused, the agent process is left alone: its
// jail is paused, or the process waits for a response.
func (sv *supervisor) converseInJail(ctx context.Context, sup *supervision, r run.Run, j jail.Jail, x id.Exec, l agent.Launch, ag Agent) error {
	caller, err := sv.endpoints.callerIn(ctx, j.ID)
	if err != nil {
		return fmt.Errorf("identify the agent in jail %s: %w", j.ID, err)
	}
	conv, o, err := sv.openConversation(ctx, sup, r, caller, x, l)
	if err != nil {
		return err
	}
	o.OmitUnsupportedServers = ag.Preset == "shell"
	from := int64(0)
	if o.From != nil {
		from = o.From.At
	}
	conn, err := sv.openConn(context.WithoutCancel(ctx), j.ID, x, from)
	if err != nil {
		sv.terminate(ctx, j.ID, x)
		return errEnded{fmt.Sprintf("cannot continue to read the agent's output: %s", err)}
	}
	var host acp.Host = conv
	if ag.Preset == "shell" { // other agents use their own tools inside the jail
		host = &jailConversation{conversation: conv, jail: j.ID}
	}
	err = sv.converse(ctx, sup, r, conn, host, o, isDedicatedJail(j, r))
	if err != nil && ctx.Err() == nil {
		sv.terminate(ctx, j.ID, x)
		errs, _ := conn.errs.text(0)
		return errors.Join(conversationError(err, errs), conv.endOpenSteps(ctx, x))
	}
	return err
}

// openConversation returns the conversation with an agent process, and the options to start or
// continue it.
func (sv *supervisor) openConversation(ctx context.Context, sup *supervision, r run.Run, caller Caller, x id.Exec, l agent.Launch) (*conversation, acp.Options, error) {
	conv := &conversation{supervisor: sv, supervision: sup, run: r, caller: caller}
	o := acp.Options{Cwd: l.Cwd, Servers: l.Servers, Meta: l.Meta, SendLock: sup.promptLock, ResumePrompt: continuePrompt}
	if len(r.Conversation) > 0 {
		if err := json.Unmarshal(r.Conversation, &conv.saved); err != nil {
			return nil, o, fmt.Errorf("decode the stored conversation state: %w", err)
		}
	}
	var err error
	o.Prompt, err = sv.cfg.Runs.Text(ctx, r.Session, r.Goal)
	if err != nil {
		return nil, o, fmt.Errorf("read the goal of run %s: %w", r.ID, err)
	}
	if conv.saved.Exec == x {
		o.From = &conv.saved.Position
		o.Resume = conv.saved.Resumes
		return conv, o, nil
	}
	if conv.saved.Exec != "" {
		if err := conv.endOpenSteps(ctx, conv.saved.Exec); err != nil {
			return nil, o, fmt.Errorf("end the unfinished steps of process %s: %w", conv.saved.Exec, err)
		}
	}
	// This is a new process. It may still be able to load the previous session.
	conv.saved = conversationState{Exec: x, Resumes: conv.saved.Position.Session, Inbox: conv.saved.Inbox, SiblingRequest: conv.saved.SiblingRequest}
	o.Resume = conv.saved.Resumes
	return conv, o, conv.SavePosition(ctx, acp.Position{})
}

// converse drives a conversation until the run stops or the agent ends. If ctx is done, or
// leave is set and the run is paused, the agent is left running and the conversation can be
// continued later.
func (sv *supervisor) converse(ctx context.Context, sup *supervision, r run.Run, c acp.Conn, host acp.Host, o acp.Options, leave bool) error {
	driveCtx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		stop(sv.waitForStop(ctx, driveCtx, sup, r.ID, leave))
	}()
	_, err := acp.Drive(driveCtx, c, host, o)
	cause := context.Cause(driveCtx)
	stop(errRunOver)
	<-watched
	if errors.Is(err, errRunOver) || errors.Is(err, acp.ErrDetached) || cause != nil && errors.Is(cause, acp.ErrDetached) {
		return ctx.Err()
	}
	return err
}

// waitForStop waits until a conversation must end. It returns acp.ErrDetached if the agent should
// keep running, and errRunOver if it should be stopped.
func (sv *supervisor) waitForStop(ctx, driveCtx context.Context, sup *supervision, rid id.Run, leave bool) error {
	for {
		select {
		case <-driveCtx.Done():
			return nil
		case <-ctx.Done():
			return acp.ErrDetached
		case <-sup.moved:
		}
		now, err := sv.cfg.Runs.Get(ctx, rid)
		switch {
		case err != nil && ctx.Err() == nil:
			sv.cfg.Log.Error("could not read a run", "run", rid, "err", err)
		case err != nil, now.State == run.Active, now.State == run.Paused && now.Why == run.ForApproval:
		case leave && !now.State.Ended():
			return acp.ErrDetached
		default:
			return errRunOver
		}
	}
}

// conversationError converts the error of a conversation that ended before its run. The agent
// is restarted, except after permanent errors.
func conversationError(err error, stderr string) error {
	if errors.Is(err, fault.Unsupported) || errors.Is(err, fault.Unauthenticated) {
		return err
	}
	stderr = strings.TrimSpace(stderr)
	if stderr != "" {
		return errEnded{fmt.Sprintf("%s; stderr: %s", err, clip(stderr, 1000))}
	}
	return errEnded{err.Error()}
}

// converseOutside starts an agent outside of jails and drives the conversation with it. The
// agent ends with this process.
func (sv *supervisor) converseOutside(ctx context.Context, sup *supervision, r run.Run, ag Agent, l agent.Launch, s spawn.Spawner, start spawn.Start) error {
	caller, err := sv.callerOf(ctx, r.ID)
	if err != nil {
		return fmt.Errorf("identify the agent of run %s: %w", r.ID, err)
	}
	theirIn, in := io.Pipe()
	out, theirOut := io.Pipe()
	var errs truncatedOutput
	start.Stdin, start.Stdout, start.Stderr = theirIn, theirOut, &errs
	proc, err := s.Start(ctx, start)
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	go func() { // unblock the readers and writers of the pipes
		<-proc.Done()
		theirOut.Close()
		theirIn.Close()
	}()
	l.Cwd = proc.Cwd
	conv, o, err := sv.openConversation(ctx, sup, r, caller, id.NewExec(), l)
	o.OmitUnsupportedServers = ag.Preset == "shell"
	if err == nil {
		err = sv.converse(ctx, sup, r, acp.Pipes(in, out), conv, o, false)
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
