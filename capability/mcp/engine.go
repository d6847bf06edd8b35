package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/fault"
)

// Sandboxes starts imported servers in jails.
type Sandboxes interface {
	// Start starts the server of a capability in a jail as its manifest declares. The session
	// is used if the filesystem has session mode. ctx bounds only the start.
	Start(ctx context.Context, c *engine.Installed, session string) (Process, error)

	// Forget removes the files of such servers: those of a capability or, if c is nil, those
	// of a session.
	Forget(ctx context.Context, c *engine.Installed, session string) error
}

// An Engine calls the tools of imported servers. Tools with equal sandbox declarations share a
// process, per session or, with a persistent filesystem, globally. With an ephemeral
// filesystem each call has its own process.
type Engine struct {
	sandboxes Sandboxes
	version   string

	mu sync.Mutex
	// +checklocks:mu
	servers map[location]*kept
	// +checklocks:mu
	running map[*session]bool
	// +checklocks:mu
	closed bool
}

var _ engine.Engine = (*Engine)(nil)

// NewEngine returns an engine. Servers see version as the client's version.
func NewEngine(version string, s Sandboxes) *Engine {
	return &Engine{sandboxes: s, version: version, servers: map[location]*kept{}, running: map[*session]bool{}}
}

// Prepare checks that the capability is a tool. Servers start with the first call.
func (e *Engine) Prepare(_ context.Context, c *engine.Installed) error {
	if c.Runtime.Stdio != manifest.MCPStdio || c.Runtime.Tool.Name == "" {
		return fault.Newf(fault.Invalid, "mcp.Prepare", c.ID, "the capability is not a tool of an MCP server")
	}
	return nil
}

// limit is the default timeout of a call.
const limit = time.Minute

// Call calls the tool once.
func (e *Engine) Call(ctx context.Context, call *engine.Call) (engine.Result, error) {
	c := call.Capability
	if err := e.Prepare(ctx, c); err != nil {
		return engine.Result{}, err
	}
	input, err := schema.ToJSON(call.Input)
	if err != nil {
		return engine.Result{}, fault.New(fault.Invalid, "mcp.Call", c.ID, err)
	}
	if input = bytes.TrimSpace(input); len(input) == 0 || input[0] != '{' {
		return engine.Result{}, fault.Fieldf("mcp.Call", "input", "the input of a tool must be a map")
	}

	begun := time.Now()
	k, s, warm, err := e.take(ctx, c, call.Session)
	if err != nil {
		return engine.Result{}, err
	}
	forwarded := time.Now()
	result, err := e.forward(ctx, c, s, input)
	result.Usage.Wall = time.Since(forwarded)
	if f, ok := errors.AsType[*engine.Failure](err); ok {
		f.Usage.Wall = result.Usage.Wall
	}
	e.give(k, s, err)
	result.Warm = warm
	result.Jail, result.Isolation = s.process.Jail()
	result.Times = map[string]time.Duration{"sandbox": forwarded.Sub(begun), "forward": result.Usage.Wall}
	return result, err
}

// forward sends a call to a server and reads the result.
func (e *Engine) forward(ctx context.Context, c *engine.Installed, s *session, input json.RawMessage) (engine.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Resources.Timeout, limit))
	defer cancel()
	defer context.AfterFunc(ctx, s.kill)()

	before := s.process.Usage()
	fail := func(kind engine.Kind, err error) (engine.Result, error) {
		return engine.Result{}, &engine.Failure{Kind: kind, Reason: err.Error(), Err: err, Usage: since(before, s.process.Usage()), Log: s.process.Log()}
	}
	if err := s.agrees(ctx, c); err != nil {
		if fault.KindOf(err) == fault.Conflict {
			return engine.Result{}, err
		}
		return fail(s.kind(ctx, err), err)
	}
	s.guard.asked()
	answer, err := s.client.CallTool(ctx, &sdk.CallToolParams{Name: c.Runtime.Tool.Name, Arguments: input})
	if err != nil {
		if refusal, ok := errors.AsType[*jsonrpc.Error](err); ok && ctx.Err() == nil && !s.gone() {
			return fail(engine.Failed, errors.New(plain(refusal.Message, maxTold)))
		}
		return fail(s.kind(ctx, err), s.why(ctx, err))
	}
	switch {
	case answer.InputRequests != nil:
		return fail(engine.Failed, errors.New("the tool requests further input, which is not supported"))
	case answer.IsError:
		return fail(engine.Failed, errors.New(cmp.Or(plain(textOf(answer.Content), maxTold), "the tool did not state a reason")))
	}
	output, err := outputOf(c, answer)
	if err != nil {
		return fail(engine.Garbled, err)
	}
	return engine.Result{Output: output, Usage: since(before, s.process.Usage()), Log: s.process.Log()}, nil
}

func outputOf(c *engine.Installed, answer *sdk.CallToolResult) (form.Value, error) {
	switch {
	case c.Output.String() == resultSchema.String():
		return saidBy(answer.Content), nil
	case answer.StructuredContent == nil:
		return nil, errors.New("the tool declares an output but returned none")
	}
	return structured(c.Output, answer.StructuredContent)
}

// agrees returns an error if a tool differs from the one its manifest was created from.
func (s *session) agrees(ctx context.Context, c *engine.Installed) error {
	digests, err := s.digests(ctx)
	if err != nil {
		return err
	}
	now, there := digests[c.Runtime.Tool.Name]
	switch {
	case !there:
		err = fmt.Errorf("the server no longer has the tool %q", c.Runtime.Tool.Name)
	case now != c.Runtime.Tool.Digest:
		err = fmt.Errorf("the server's description of %q differs from the approved one", c.Runtime.Tool.Name)
	default:
		return nil
	}
	return &fault.Error{Op: "mcp.Call", On: c.ID, Kind: fault.Conflict, Err: err,
		Remedy: "import the server again, and review the changes"}
}

// kind classifies the failure of a server that did not respond.
func (s *session) kind(ctx context.Context, err error) engine.Kind {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return engine.TimedOut
	case ctx.Err() != nil:
		return engine.Cancelled
	case s.guard.err() != nil:
		return engine.Garbled
	}
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, os.ErrClosed, syscall.EPIPE, sdk.ErrConnectionClosed} {
		if errors.Is(err, end) {
			return cmp.Or(s.process.Limit(), engine.Crashed)
		}
	}
	return engine.Garbled
}

// since returns the difference of two usage readings. Concurrent calls to one process are each
// charged with all of it.
func since(before, now engine.Usage) engine.Usage {
	return engine.Usage{
		CPU:          now.CPU - before.CPU,
		MemoryPeak:   now.MemoryPeak,
		NetworkOut:   now.NetworkOut - before.NetworkOut,
		NetworkIn:    now.NetworkIn - before.NetworkIn,
		StorageWrite: now.StorageWrite - before.StorageWrite,
		Steps:        now.Steps - before.Steps,
	}
}
