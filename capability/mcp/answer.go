package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/capability/engine"
	"glasshouse/fault"
)

// pulse is the interval of progress notifications. Calls may wait for approvals, and clients
// time out without notifications.
const pulse = 5 * time.Second

// begin prepares a call. The returned context also ends with the server. Until the returned
// function is called, the client receives progress notifications if it requested them.
func (s *Server) begin(ctx context.Context, req *sdk.CallToolRequest) (context.Context, func()) {
	ctx, cancel := s.until(context.WithValue(ctx, peerKey{}, &Peer{Request: req}))
	token := req.Params.GetProgressToken()
	if token == nil {
		return ctx, cancel
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		beat(ctx, req.Session, token)
	}()
	return ctx, func() { cancel(); <-ended }
}

func beat(ctx context.Context, client *sdk.ServerSession, token any) {
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	for since := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			passed := now.Sub(since).Round(time.Second)
			err := client.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
				ProgressToken: token,
				Progress:      passed.Seconds(),
				Message:       fmt.Sprintf("under way for %v", passed),
			})
			if err != nil {
				return // the client has disconnected; the call ends by itself
			}
		}
	}
}

// refused returns the result of a failed tool call.
func refused(ctx context.Context, err error) (*sdk.CallToolResult, error) {
	var result sdk.CallToolResult
	result.SetError(tell(ctx, err))
	return &result, nil
}

// maxTold bounds an error message, which may contain output of a capability.
const maxTold = 16 << 10

// tell converts an error for the caller: the cause and the remedy. Internal errors are not
// disclosed.
func tell(ctx context.Context, err error) error {
	_, failed := errors.AsType[*engine.Failure](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case fault.KindOf(err) == "" && !failed:
		slog.Error("a tool failed", "err", err)
		return errors.New("internal error")
	}
	text := bounded(err.Error(), maxTold)
	if remedy := fault.RemedyOf(err); remedy != "" {
		text += "\nWhat can be done: " + remedy
	}
	return errors.New(text)
}
