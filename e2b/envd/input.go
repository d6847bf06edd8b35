package envd

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	"glasshouse/e2b/envdpb"
	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// An input writes to the stdin or terminal of one command.
type input struct {
	st protocol.ExecStatus
	w  io.WriteCloser
}

func (s *Server) openInput(ctx context.Context, v *visit, st protocol.ExecStatus) (*input, error) {
	w, err := s.jails.Stdin(ctx, v.Jail, st.ID)
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.Invalid) {
		err = connect.NewError(connect.CodeInternal, err) // as E2B's envd
	}
	return &input{st, w}, err
}

func (in *input) write(i *envdpb.ProcessInput) error {
	var data []byte
	switch i := i.GetInput().(type) {
	case *envdpb.ProcessInput_Stdin:
		if in.st.PTY {
			return refuse(connect.CodeInternal, "the process has a terminal: write to pty")
		}
		data = i.Stdin
	case *envdpb.ProcessInput_Pty:
		if !in.st.PTY {
			return refuse(connect.CodeInternal, "the process has no terminal: write to stdin")
		}
		data = i.Pty
	default:
		return refuse(connect.CodeUnimplemented, "input is stdin or pty")
	}
	_, err := in.w.Write(data)
	return err
}

// leave waits until all data has been delivered to the command, and leaves its stdin open.
func (in *input) leave() error {
	return in.w.(interface{ Leave() error }).Leave()
}

func (s *Server) sendInput(ctx context.Context, v *visit, q *envdpb.SendInputRequest) (*envdpb.SendInputResponse, error) {
	st, err := s.find(ctx, v, q.GetProcess())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // releases the input if leave is not called
	in, err := s.openInput(ctx, v, st)
	if err != nil {
		return nil, err
	}
	if err := in.write(q.GetInput()); err != nil {
		return nil, err
	}
	return &envdpb.SendInputResponse{}, in.leave()
}

func (s *Server) streamInput(ctx context.Context, from *connect.ClientStream[envdpb.StreamInputRequest]) (*envdpb.StreamInputResponse, error) {
	v := visited(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var in *input
	for from.Receive() {
		switch e := from.Msg().GetEvent().(type) {
		case *envdpb.StreamInputRequest_Start:
			if in != nil {
				return nil, refuse(connect.CodeInvalidArgument, "the stream has begun already")
			}
			st, err := s.find(ctx, v, e.Start.GetProcess())
			if err != nil {
				return nil, answer(err)
			}
			if in, err = s.openInput(ctx, v, st); err != nil {
				return nil, answer(err)
			}
		case *envdpb.StreamInputRequest_Data:
			if in == nil {
				return nil, refuse(connect.CodeInvalidArgument, "data before the start of the stream")
			}
			if err := in.write(e.Data.GetInput()); err != nil {
				return nil, answer(err)
			}
		case *envdpb.StreamInputRequest_Keepalive:
		default:
			return nil, refuse(connect.CodeUnimplemented, "a stream event must be start, data or keepalive")
		}
	}
	if err := from.Err(); err != nil {
		return nil, err
	}
	if in == nil {
		return &envdpb.StreamInputResponse{}, nil
	}
	return &envdpb.StreamInputResponse{}, answer(in.leave())
}

func (s *Server) closeStdin(ctx context.Context, v *visit, q *envdpb.CloseStdinRequest) (*envdpb.CloseStdinResponse, error) {
	st, err := s.find(ctx, v, q.GetProcess())
	if err != nil {
		return nil, err
	}
	if st.PTY {
		return nil, refuse(connect.CodeUnknown, "cannot close the input of a terminal: send Ctrl+D")
	}
	w, err := s.jails.Stdin(ctx, v.Jail, st.ID)
	switch {
	case errors.Is(err, fault.Conflict): // closed already
		return &envdpb.CloseStdinResponse{}, nil
	case err != nil:
		return nil, err
	}
	return &envdpb.CloseStdinResponse{}, w.Close()
}
