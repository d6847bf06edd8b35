package gateway

import (
	"context"
	"errors"
	"io"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
)

// A agentConn is the standard input and output of an agent in a jail. Both outlive this
// process: the jail's init keeps what the agent writes, and knows how much it was given.
// It implements acp.Conn.
type agentConn struct {
	ctx    context.Context
	cancel context.CancelFunc
	jails  Jails
	jail   id.Jail
	exec   id.Exec
	out    *control.Stream
	errs   truncatedOutput  // what it wrote to its standard error
	inputShared  bool // another process may have given it a part of the first line
}

// openConn opens the way to an agent, from a byte of its output on.
func (g *Gateway) openConn(ctx context.Context, j id.Jail, x id.Exec, at int64) (*agentConn, error) {
	w := &agentConn{jails: g.cfg.Jails, jail: j, exec: x, inputShared: true}
	w.ctx, w.cancel = context.WithCancel(ctx)
	var err error
	if w.out, err = w.jails.Attach(w.ctx, j, x, control.AttachOptions{From: at, Lossless: true, Follow: true}); err != nil {
		w.cancel()
		return nil, err
	}
	return w, nil
}

// Next implements acp.Conn. Output that was overwritten before anybody has read it cannot
// be done without.
func (w *agentConn) Next() (int64, []byte, error) {
	for {
		c, err := w.out.Next()
		switch {
		case err != nil:
			return 0, nil, err
		case c.Lost > 0:
			return 0, nil, fault.Newf(fault.Unavailable, "gateway", string(w.exec), "%d bytes that the agent wrote are not kept any more", c.Lost)
		case c.Stream == protocol.Stdout:
			return c.Offset, c.Data, nil
		}
		w.errs.Write(c.Data)
	}
}

// Give implements acp.Conn.
func (w *agentConn) Give(at int64, line []byte) error {
	if w.inputShared {
		w.inputShared = false
		if err := w.waitForIdleInput(); err != nil {
			return err
		}
	}
	in, err := w.stdin()
	if err != nil {
		return err
	}
	done := in.Given() - at
	if done < 0 || done > int64(len(line)) {
		return errors.Join(in.Leave(), fault.Newf(fault.Conflict, "gateway", string(w.exec), "the agent was given %d bytes, and not %d", in.Given(), at))
	}
	_, err = in.Write(line[done:])
	return connError(errors.Join(err, in.Leave()))
}

// A stdin is what control.Client.Stdin returns.
type stdin interface {
	io.Writer
	Given() int64
	Leave() error
}

func (w *agentConn) stdin() (stdin, error) {
	in, err := w.jails.Stdin(w.ctx, w.jail, w.exec)
	if err != nil {
		return nil, connError(err)
	}
	return in.(stdin), nil
}

// connError says of an agent that takes no more input what acp.Conn wants said.
func connError(err error) error {
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) {
		return io.ErrClosedPipe
	}
	return err
}

// idleInputTime is longer than the jail's init goes on writing for a process that is gone,
// to an agent that takes nothing.
const idleInputTime = 500 * time.Millisecond

// waitForIdleInput waits until nobody gives the agent what a process before has left behind.
func (w *agentConn) waitForIdleInput() error {
	for last := int64(-1); ; {
		in, err := w.stdin()
		if err != nil {
			return err
		}
		now := in.Given()
		if err := connError(in.Leave()); err != nil || now == last {
			return err
		}
		last = now
		select {
		case <-time.After(idleInputTime):
		case <-w.ctx.Done():
			return context.Cause(w.ctx)
		}
	}
}

// Close implements acp.Conn. The agent works on.
func (w *agentConn) Close() error {
	w.cancel()
	return w.out.Detach()
}
