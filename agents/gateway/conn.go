package gateway

import (
	"context"
	"errors"
	"io"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// An agentConn is the standard input and output of an agent in a jail. Both outlive this
// process: the jail's init buffers the output and counts the bytes of input. It implements
// acp.Conn.
type agentConn struct {
	ctx         context.Context
	cancel      context.CancelFunc
	jails       Jails
	jail        id.Jail
	exec        id.Exec
	out         *control.Stream
	errs        truncatedOutput // standard error of the agent
	inputShared bool            // an earlier process may have written part of the first line
}

// openConn connects to an agent, starting at an offset of its output.
func (sv *supervisor) openConn(ctx context.Context, j id.Jail, x id.Exec, at int64) (*agentConn, error) {
	conn := &agentConn{jails: sv.cfg.Jails, jail: j, exec: x, inputShared: true}
	conn.ctx, conn.cancel = context.WithCancel(ctx)
	var err error
	conn.out, err = conn.jails.Attach(conn.ctx, j, x, control.AttachOptions{From: at, Lossless: true, Follow: true})
	if err != nil {
		conn.cancel()
		return nil, err
	}
	return conn, nil
}

// Next implements acp.Conn. It fails if output was overwritten in the buffer before it was
// read.
func (conn *agentConn) Next() (int64, []byte, error) {
	for {
		c, err := conn.out.Next()
		switch {
		case err != nil:
			return 0, nil, err
		case c.Lost > 0:
			return 0, nil, fault.Newf(fault.Unavailable, "gateway.Next", string(conn.exec), "%d bytes of the agent's output were overwritten before they were read", c.Lost)
		case c.Stream == protocol.Stdout:
			return c.Offset, c.Data, nil
		}
		conn.errs.Write(c.Data)
	}
}

// Write implements acp.Conn.
func (conn *agentConn) Write(at int64, line []byte) error {
	if conn.inputShared {
		conn.inputShared = false
		if err := conn.waitForIdleInput(); err != nil {
			return err
		}
	}
	in, err := conn.stdin()
	if err != nil {
		return err
	}
	done := in.Given() - at
	if done < 0 || done > int64(len(line)) {
		return errors.Join(in.Leave(), fault.Newf(fault.Conflict, "gateway.Write", string(conn.exec), "the agent has received %d bytes of input, want %d", in.Given(), at))
	}
	_, err = in.Write(line[done:])
	return connError(errors.Join(err, in.Leave()))
}

// A stdin is the result of control.Client.Stdin.
type stdin interface {
	io.Writer
	Given() int64
	Leave() error
}

func (conn *agentConn) stdin() (stdin, error) {
	in, err := conn.jails.Stdin(conn.ctx, conn.jail, conn.exec)
	if err != nil {
		return nil, connError(err)
	}
	return in.(stdin), nil
}

// connError maps the errors of an agent that accepts no more input to io.ErrClosedPipe, as
// acp.Conn requires.
func connError(err error) error {
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) {
		return io.ErrClosedPipe
	}
	return err
}

// idleInputTime exceeds the time that the jail's init keeps writing the input of a
// disconnected client to an agent that does not read.
const idleInputTime = 500 * time.Millisecond

// waitForIdleInput waits until no input of an earlier process is written to the agent.
func (conn *agentConn) waitForIdleInput() error {
	for last := int64(-1); ; {
		in, err := conn.stdin()
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
		case <-conn.ctx.Done():
			return context.Cause(conn.ctx)
		}
	}
}

// Close implements acp.Conn. It does not end the agent.
func (conn *agentConn) Close() error {
	conn.cancel()
	return conn.out.Detach()
}
