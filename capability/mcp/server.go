// Package mcp implements both sides of the Model Context Protocol. A Server offers
// capabilities and jails as tools. An Engine calls the tools of imported servers as
// capabilities.
//
// The package makes no policy decisions. A Server calls through Capabilities and Jails, which
// evaluate the policy for one caller. The policy engine calls imported tools through Engine,
// like any other capability.
package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"syscall"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/capability/manifest"
	"glasshouse/capability/skill"
)

// Capabilities are the capabilities of one caller. The implementation evaluates the policy,
// meters and records every call. The server does not extend the caller's permissions.
type Capabilities interface {
	// List returns the capabilities that the caller may see now.
	List(ctx context.Context) ([]Tool, error)

	// Call calls a capability. Input and output are JSON values of its types.
	Call(ctx context.Context, id string, input json.RawMessage) (json.RawMessage, error)
}

// A Tool is a capability as seen by a caller.
type Tool struct {
	ID          string
	Description string
	Input       json.RawMessage // JSON Schema; nil: any object
	Output      json.RawMessage // JSON Schema; nil: anything
	Effects     []string        // as declared in the manifest
}

// A Server serves one caller: all its clients act as that caller. It is safe for concurrent
// use.
type Server struct {
	capabilities Capabilities
	sdk          *sdk.Server
	closing      context.Context // ends on Close
	close        context.CancelFunc

	own []string // names of the jail tools

	resources Resources // may be nil
	prompts   Prompts   // may be nil
	watches   watches

	offering sync.Mutex
	// The listed resources and prompts as JSON, by URI and by name.
	// +checklocks:offering
	listedResources map[string]string
	// +checklocks:offering
	listedPrompts map[string]string

	refreshLock sync.Mutex // serializes refreshes; locked before mu
	mu          sync.Mutex
	// +checklocks:mu
	listed map[string]string // the tools of capabilities by name, as last announced
}

// NewServer returns a server of capabilities and, unless j is nil, of jails. Clients see
// version as the server's version.
func NewServer(version string, c Capabilities, j Jails) *Server {
	s := &Server{capabilities: c, listed: map[string]string{}, listedResources: map[string]string{}, listedPrompts: map[string]string{}}
	s.closing, s.close = context.WithCancel(context.Background())
	s.sdk = sdk.NewServer(&sdk.Implementation{Name: "glasshouse", Title: "Glasshouse", Version: version}, &sdk.ServerOptions{
		Instructions: instructions,
		//lint:ignore SA1019 protocol versions before 2026-07-28 have logging
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{ListChanged: true}, Logging: &sdk.LoggingCapabilities{}},

		// Lists and resources belong to one caller. The SDK's default allows shared caches to
		// return them to other callers.
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.CacheScope = "private" },

		CompletionHandler:  s.complete,
		SubscribeHandler:   s.subscribe,
		UnsubscribeHandler: s.unsubscribe,
	})
	s.sdk.AddReceivingMiddleware(s.fresh)
	if j != nil {
		s.addJails(j)
	}
	return s
}

const instructions = `The tools are governed capabilities, and jails to run programs in. ` +
	`Each call is decided by a policy, may wait for a person's approval, and is recorded. ` +
	`A tool that is refused says why, and what can be done about it.`

// fresh refreshes the tools before each request that depends on them.
func (s *Server) fresh(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		call, isCall := req.(*sdk.CallToolRequest)
		if method == "tools/list" || isCall && !s.knows(call.Params.Name) {
			if err := s.Refresh(ctx); err != nil {
				return nil, err
			}
		}
		if err := s.refreshOffer(ctx, method); err != nil {
			return nil, err
		}
		return next(ctx, method, req)
	}
}

func (s *Server) knows(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.listed[name]
	return ok || slices.Contains(s.own, name)
}

// Refresh lists the capabilities again and notifies the clients of changes. Call it when
// capabilities are added, removed or changed.
func (s *Server) Refresh(ctx context.Context) error {
	s.refreshLock.Lock() // otherwise an older list could replace a newer one
	defer s.refreshLock.Unlock()
	tools, err := s.capabilities.List(ctx)
	if err != nil {
		return fmt.Errorf("list the capabilities: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()

	there := map[string]bool{}
	for _, t := range tools {
		name := skill.ToolName(t.ID)
		there[name] = true
		text := fmt.Sprintf("%q", t)
		if s.listed[name] == text {
			continue
		}
		s.listed[name] = text
		if err := s.add(name, t); err != nil {
			s.sdk.RemoveTools(name)
			slog.Warn("a capability cannot be served as a tool", "capability", t.ID, "err", err)
		}
	}
	var gone []string
	for name := range s.listed {
		if !there[name] {
			gone = append(gone, name)
			delete(s.listed, name)
		}
	}
	if len(gone) > 0 {
		s.sdk.RemoveTools(gone...)
	}
	return nil
}

func (s *Server) add(name string, t Tool) error {
	if err := manifest.CheckID(t.ID); err != nil {
		return err
	}
	if slices.Contains(s.own, name) {
		return fmt.Errorf("the name %s is used by a jail tool", name)
	}
	in, err := shapeOf(t.Input, "input")
	if err != nil {
		return fmt.Errorf("input schema: %w", err)
	}
	out, err := shapeOf(t.Output, "result")
	if err != nil {
		return fmt.Errorf("output schema: %w", err)
	}
	tool := &sdk.Tool{Name: name, Title: t.ID, Description: t.Description, InputSchema: in.schema, Annotations: annotations(t.Effects)}
	if t.Output != nil {
		tool.OutputSchema = out.schema
	}
	s.sdk.AddTool(tool, s.handler(t.ID, in, out, isContent(t.Output)))
	return nil
}

// annotations returns the tool annotations for declared effects.
func annotations(effects []string) *sdk.ToolAnnotations {
	pure, open := len(effects) == 0, slices.Contains(effects, "network")
	destructive := !pure
	return &sdk.ToolAnnotations{ReadOnlyHint: pure, IdempotentHint: pure, DestructiveHint: &destructive, OpenWorldHint: &open}
}

// handler calls a capability. Output of ContentSchema is returned as content.
func (s *Server) handler(id string, in, out shape, content bool) sdk.ToolHandler {
	return func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		ctx, done := s.begin(ctx, req)
		defer done()
		input, err := in.unwrap(req.Params.Arguments)
		if err != nil {
			return refused(ctx, err)
		}
		output, err := s.capabilities.Call(ctx, id, input)
		if err != nil {
			return refused(ctx, err)
		}
		result := &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(output)}}}
		if content {
			if parts := contentsOf(output); parts != nil {
				result.Content = parts
			}
		}
		if structured := out.wrap(output); structured != nil {
			result.StructuredContent = structured
		}
		return result, nil
	}
}

// Serve serves one client until it closes in or out, or ctx ends.
func (s *Server) Serve(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	ctx, done := s.until(ctx)
	defer done()
	err := s.sdk.Run(ctx, &sdk.IOTransport{Reader: in, Writer: out, MaxLineLength: maxFrame})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, syscall.EPIPE) {
		return nil // the client ended while the server sent a message
	}
	return err
}

// Close cancels all calls and ends all sessions.
func (s *Server) Close() error {
	s.close()
	var all []error
	for session := range s.sdk.Sessions() {
		all = append(all, session.Close())
	}
	return errors.Join(all...)
}

// until returns a context that also ends with the server.
func (s *Server) until(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.closing, cancel)
	return ctx, func() { stop(); cancel() }
}
