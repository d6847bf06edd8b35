package mcp

import (
	"context"
	"errors"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A Peer is the client that makes a call. Capabilities and Jails find it in the context of
// the call.
type Peer struct {
	Request *sdk.CallToolRequest
}

type peerKey struct{}

// PeerOf returns the client that makes a call, or nil.
func PeerOf(ctx context.Context) *Peer {
	p, _ := ctx.Value(peerKey{}).(*Peer)
	return p
}

// Log sends a log message to the client, if it has asked for messages of that level.
//
//lint:ignore SA1019 protocol versions before 2026-07-28 have logging
func (p *Peer) Log(ctx context.Context, level sdk.LoggingLevel, data any) error {
	//lint:ignore SA1019 protocol versions before 2026-07-28 have logging
	return p.Request.Session.Log(ctx, &sdk.LoggingMessageParams{Level: level, Logger: "glasshouse", Data: data})
}

// Progress reports progress, if the client has asked for it. A total of 0 is unknown.
func (p *Peer) Progress(ctx context.Context, done, total float64, message string) error {
	token := p.Request.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	return p.Request.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
		ProgressToken: token, Progress: done, Total: total, Message: message,
	})
}

// errNoForms is returned by Ask if the client cannot show forms.
var errNoForms = errors.New("the client does not support elicitation")

// CanAsk reports whether the client can ask its user.
func (p *Peer) CanAsk() bool {
	init := p.Request.Session.InitializeParams()
	return init != nil && init.Capabilities != nil && init.Capabilities.Elicitation != nil
}

// Ask requests the client to ask its user to fill in a form, whose fields a JSON Schema describes.
// The answer is nil if the user declines, or closes the form.
func (p *Peer) Ask(ctx context.Context, message string, schema map[string]any) (map[string]any, error) {
	if !p.CanAsk() {
		return nil, errNoForms
	}
	r, err := p.Request.Session.Elicit(ctx, &sdk.ElicitParams{Message: message, RequestedSchema: schema})
	if err != nil || r.Action != "accept" {
		return nil, err
	}
	if r.Content == nil {
		r.Content = map[string]any{}
	}
	return r.Content, nil
}
