package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/engine"
	"glasshouse/fault"
)

// pulse is how often a client that wants to know is told that a call goes on. Calls
// may wait for a person, and clients give up on what is silent.
const pulse = 5 * time.Second

// begin prepares a call: it ends with the server too, and while it lasts the client
// hears of it, if it has asked to.
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
				return // nobody listens; the call ends by itself
			}
		}
	}
}

// refused is a tool's answer that it failed.
func refused(ctx context.Context, err error) (*sdk.CallToolResult, error) {
	var result sdk.CallToolResult
	result.SetError(tell(ctx, err))
	return &result, nil
}

// maxTold bounds what is said of an error: some of it is the words of a capability.
const maxTold = 16 << 10

// tell is an error as a caller is told of it: what is wrong and what he can do. Of
// what is internal he is not told more than that.
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
