package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"glasshouse/agents/agent/acp"
	"glasshouse/agents/run"
	"glasshouse/fault"
	"glasshouse/id"
	safetext "glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy"
)

// Tools for the Agent Client Protocol only. They are not offered to models.
const (
	toolReadLines = "fs/read_text_file"
	toolTerminal  = "terminal/create"
	kindClient    = "client"
)

// clientTools returns tools for the Agent Client Protocol only. They are not offered to models.
func (tc *toolCalls) clientTools() []builtinTool {
	return []builtinTool{
		{
			Tool:     Tool{Name: toolReadLines, Kind: kindClient},
			question: questionFrom(policy.ActionRead, func(in *linesInput) string { return in.Path }),
			do:       tc.readLines,
		},
		{
			Tool:     Tool{Name: toolTerminal, Kind: kindClient},
			question: questionFrom(policy.ActionRun, func(in *terminalInput) string { return in.Line }),
			do:       tc.openTerminal,
		},
	}
}

// A jailConversation is a conversation that also reads and writes files and runs commands for
// the agent, in its jail. It implements acp.Files and acp.Terminals.
type jailConversation struct {
	*conversation
	jail id.Jail
	// +checklocks:mu
	terminals map[id.Exec]int // bytes of output that the agent wants of each
}

// callTool calls a built-in tool for the agent.
func (conv *jailConversation) callTool(ctx context.Context, at int64, tool string, input, output any) error {
	text, err := json.Marshal(input)
	if err != nil {
		return fmt.Errorf("encode the input of %s: %w", tool, err)
	}
	var used ToolOutcome
	err = conv.whenActive(ctx, func() (err error) {
		// Exec does not change during a conversation.
		key := keyPrefix(conv.saved.Exec) + strconv.FormatInt(at, 10) // +checklocksignore
		used, err = conv.supervisor.calls.Call(ctx, conv.caller, ToolUse{Key: key, Tool: tool, Input: text})
		return err
	})
	if err != nil {
		return err
	}
	if used.Error != nil {
		return fault.Newf(fault.Kind(used.Error.Kind), "gateway.Call", tool, "%s", used.Error.Message)
	}
	if output == nil {
		return nil
	}
	return json.Unmarshal(used.Output, output)
}

type linesInput struct {
	Path  string `json:"path"`
	Line  int    `json:"line,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// maxLines limits the text of one read, in bytes. It is stored in the journal.
const maxLines = 512 << 10

// ReadFile implements acp.Files.
func (conv *jailConversation) ReadFile(ctx context.Context, at int64, path string, line, limit int) (string, error) {
	var out struct {
		Text string `json:"text"`
	}
	err := conv.callTool(ctx, at, toolReadLines, linesInput{path, line, limit}, &out)
	return out.Text, err
}

// WriteFile implements acp.Files.
func (conv *jailConversation) WriteFile(ctx context.Context, at int64, path, content string) error {
	return conv.callTool(ctx, at, "write_file", fileInput{Path: path, Text: content}, nil)
}

func (tc *toolCalls) readLines(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[linesInput](inv.input)
	if err != nil {
		return nil, err
	}
	f, p, err := tc.files(ctx, inv, in.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, info, err := f.Read(ctx, p, 0, maxEdited)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if info.Size > maxEdited {
		return nil, fault.Newf(fault.TooLarge, "gateway.Call", p, "file of %d bytes is too large to read by lines; use a command", info.Size)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxEdited))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p, err)
	}
	text = selectLines(text, in.Line, in.Limit)
	if len(text) > maxLines {
		return nil, fault.Newf(fault.TooLarge, "gateway.Call", p, "the lines have %d bytes, which exceeds the limit: request fewer lines", len(text))
	}
	return struct {
		Text string `json:"text"`
	}{strings.ToValidUTF8(string(text), "\uFFFD")}, nil
}

// selectLines returns limit lines of a text, starting at line first. Lines count from 1. A
// limit of 0 means all.
func selectLines(text []byte, first, limit int) []byte {
	for n := 1; n < first && len(text) > 0; n++ {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	if limit <= 0 {
		return text
	}
	end := 0
	for range limit {
		i := bytes.IndexByte(text[end:], '\n')
		if i < 0 {
			return text
		}
		end += i + 1
	}
	return text[:end]
}

type terminalInput struct {
	Line string   `json:"line"` // as a shell command line
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"`
	Cwd  string   `json:"cwd,omitempty"`
}

// CreateTerminal implements acp.Terminals. A command without arguments is a shell command
// line: some agents send it this way.
func (conv *jailConversation) CreateTerminal(ctx context.Context, at int64, c acp.Command) (string, error) {
	in := terminalInput{Argv: c.Argv, Env: c.Env, Cwd: c.Cwd, Line: shellQuote(c.Argv)}
	if len(c.Argv) == 1 {
		in.Argv, in.Line = []string{"/bin/sh", "-c", c.Argv[0]}, c.Argv[0]
	}
	var out struct {
		Terminal id.Exec `json:"terminal"`
	}
	if err := conv.callTool(ctx, at, toolTerminal, in, &out); err != nil {
		return "", err
	}
	conv.mu.Lock()
	defer conv.mu.Unlock()
	conv.setLimit(out.Terminal, c.Limit)
	return string(out.Terminal), nil
}

// shellQuote returns a command as a shell command line.
func shellQuote(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		q, err := syntax.Quote(a, syntax.LangBash)
		if err != nil {
			q = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words[i] = q
	}
	return strings.Join(words, " ")
}

func (tc *toolCalls) openTerminal(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[terminalInput](inv.input)
	if err != nil {
		return nil, err
	}
	env := envMap(in.Env)
	for k, v := range callerEnv(inv.caller) {
		env[k] = v
	}
	x, err := tc.startOnce(ctx, inv, jail.ExecRequest{Argv: in.Argv, Cwd: in.Cwd, Env: env})
	if err != nil {
		return nil, fmt.Errorf("start the command of the terminal: %w", err)
	}
	return struct {
		Terminal id.Exec `json:"terminal"`
	}{x}, nil
}

// findTerminal returns the command of a terminal that this agent has opened, and how many
// bytes of its output the agent wants.
func (conv *jailConversation) findTerminal(ctx context.Context, name string) (id.Exec, int, error) {
	x := id.Exec(name)
	conv.mu.Lock()
	limit, known := conv.terminals[x]
	conv.mu.Unlock()
	for f := (run.StepFilter{Run: conv.run.ID, Limit: 1000}); !known; {
		steps, err := conv.supervisor.cfg.Runs.Steps(ctx, f)
		if err != nil {
			return "", 0, fmt.Errorf("find terminal %s: %w", name, err)
		}
		for _, s := range steps {
			f.After = s.N
			known = known || s.Name == toolTerminal && name != "" && (s.Ref == name || strings.HasPrefix(s.Ref, name+"@"))
		}
		if known {
			conv.mu.Lock()
			limit = conv.setLimit(x, 0)
			conv.mu.Unlock()
		} else if len(steps) < f.Limit {
			return "", 0, fault.Newf(fault.NotFound, "gateway.findTerminal", clip(name, 40), "no such terminal")
		}
	}
	return x, limit, nil
}

// maxTerminal limits the returned output of a terminal, in bytes.
const maxTerminal = 256 << 10

// setLimit stores how many bytes of a terminal's output an agent wants, and returns the
// effective limit. The caller must hold mu.
//
// +checklocks:conv.conversation.mu
func (conv *jailConversation) setLimit(x id.Exec, limit int) int {
	if limit <= 0 || limit > maxTerminal {
		limit = maxTerminal
	}
	if conv.terminals == nil {
		conv.terminals = map[id.Exec]int{}
	}
	conv.terminals[x] = limit
	return limit
}

// TerminalOutput implements acp.Terminals.
func (conv *jailConversation) TerminalOutput(ctx context.Context, name string) (acp.Output, error) {
	x, limit, err := conv.findTerminal(ctx, name)
	if err != nil {
		return acp.Output{}, err
	}
	var text []byte
	status, err := conv.supervisor.cfg.Jails.Output(ctx, conv.jail, x, func(c protocol.Chunk) error {
		text = safetext.AppendEnd(text, c.Data, limit)
		return nil
	})
	if err != nil {
		return acp.Output{}, fmt.Errorf("read the output of terminal %s: %w", name, err)
	}
	out := acp.Output{Truncated: status.Next > int64(min(len(text), limit))}
	out.Text = strings.ToValidUTF8(safetext.Suffix(string(text), limit), "\uFFFD")
	if status.Ended != nil {
		e := exitOf(status)
		out.Exit = &e
	}
	return out, nil
}

func exitOf(s protocol.ExecStatus) acp.Exit { return acp.Exit{Code: s.Code, Signal: s.Signal} }

// WaitTerminal implements acp.Terminals.
func (conv *jailConversation) WaitTerminal(ctx context.Context, name string) (acp.Exit, error) {
	x, _, err := conv.findTerminal(ctx, name)
	if err != nil {
		return acp.Exit{}, err
	}
	status, err := conv.supervisor.follow(ctx, conv.jail, x, func(protocol.Chunk) error { return nil })
	if err != nil {
		return acp.Exit{}, fmt.Errorf("wait for terminal %s: %w", name, err)
	}
	return exitOf(status), nil
}

// KillTerminal implements acp.Terminals.
func (conv *jailConversation) KillTerminal(ctx context.Context, name string) error {
	x, _, err := conv.findTerminal(ctx, name)
	if err == nil {
		conv.supervisor.terminate(ctx, conv.jail, x)
	}
	return err
}

// ReleaseTerminal implements acp.Terminals.
func (conv *jailConversation) ReleaseTerminal(ctx context.Context, name string) error {
	return conv.KillTerminal(ctx, name)
}
