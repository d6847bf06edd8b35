package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy"
)

// A Tool is the description of a tool for a model.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Kind        string          `json:"kind"` // file, exec, capability, autonomy
}

// A builtinTool is a tool that the gateway implements.
type builtinTool struct {
	Tool
	// question returns the policy question about a use. nil or an empty action: the use is not
	// evaluated.
	question func(input json.RawMessage) (policy.Question, error)
	// preview returns what to show with an approval request. It may be nil.
	preview      func(ctx context.Context, inv *invocation) json.RawMessage
	do           func(ctx context.Context, inv *invocation) (any, error)
	waitsForPeer bool // it waits for a sibling: the agent is neither idle nor slow meanwhile
}

// An invocation is one use of a tool.
type invocation struct {
	caller  Caller
	key     string // identifies the use, even when it is repeated
	input   json.RawMessage
	ref     string // identifies its side effect: the id of a command
	saveRef func(ctx context.Context, ref string) error
	retry   bool  // it was started before, and may have had effects
	entry   int64 // audit log entry of its decision
}

// maxToolText limits the text of a file or stream, in bytes, that a tool returns to a model.
const maxToolText = 64 << 10

// inJail reports whether the tool needs the agent's jail.
func (tool *builtinTool) inJail() bool { return tool.Kind == "exec" || tool.Kind == "file" }

// jailTools returns the tools that act in the agent's jail.
func (tc *toolCalls) jailTools() []builtinTool {
	return []builtinTool{
		{
			Tool: Tool{"bash", "Run a command line in the workspace and wait for it. Returns exit code, stdout and stderr.", objectSchema(`
				"command": {"type": "string"},
				"description": {"type": "string", "description": "purpose of the command, in a few words"},
				"cwd": {"type": "string", "description": "default: the workspace"},
				"timeout_ms": {"type": "integer", "minimum": 1, "maximum": 3600000, "description": "default 120000"}`, "command"), "exec"},
			question: questionFrom(policy.ActionRun, func(in *commandInput) string { return in.Command }),
			do:       tc.runCommand,
		},
		{
			Tool: Tool{"read_file", "Read a text file. Read long files in parts.", objectSchema(`
				"path": {"type": "string"},
				"offset": {"type": "integer", "minimum": 0, "description": "in bytes"},
				"limit": {"type": "integer", "minimum": 1, "maximum": 65536}`, "path"), "file"},
			question: questionFrom(policy.ActionRead, func(in *fileInput) string { return in.Path }),
			do:       tc.readFile,
		},
		{
			Tool: Tool{"write_file", "Write a text file. Replaces an existing file.", objectSchema(`
				"path": {"type": "string"},
				"text": {"type": "string"}`, "path", "text"), "file"},
			question: questionFrom(policy.ActionEdit, func(in *fileInput) string { return in.Path }),
			preview:  tc.previewWrite,
			do:       tc.writeFile,
		},
		{
			Tool: Tool{"edit_file", "Replace a piece of a text file. The old text must occur exactly once, unless all is set.", objectSchema(`
				"path": {"type": "string"},
				"old": {"type": "string"},
				"new": {"type": "string"},
				"all": {"type": "boolean"}`, "path", "old", "new"), "file"},
			question: questionFrom(policy.ActionEdit, func(in *editInput) string { return in.Path }),
			preview:  tc.previewEdit,
			do:       tc.editFile,
		},
		{
			Tool: Tool{"list_files", "List a directory.", objectSchema(`
				"path": {"type": "string", "description": "default: the workspace"}`), "file"},
			question: questionFrom(policy.ActionRead, func(in *fileInput) string { return cmp.Or(in.Path, ".") }),
			do:       tc.listFiles,
		},
	}
}

// objectSchema returns the JSON Schema of an object with the given properties.
func objectSchema(properties string, required ...string) json.RawMessage {
	need, _ := json.Marshal(append([]string{}, required...))
	var b bytes.Buffer
	if err := json.Compact(&b, fmt.Appendf(nil, `{"type": "object", "properties": {%s}, "required": %s, "additionalProperties": false}`, properties, need)); err != nil {
		panic(err) // unreachable: the schemas are constants
	}
	return b.Bytes()
}

// questionFrom returns a function that makes a policy question of a tool's input.
func questionFrom[T any](action string, resource func(*T) string) func(json.RawMessage) (policy.Question, error) {
	return func(raw json.RawMessage) (policy.Question, error) {
		in, err := inputOf[T](raw)
		if err != nil {
			return policy.Question{}, err
		}
		return policy.Question{Action: action, Resource: resource(in)}, nil
	}
}

// inputOf decodes the input of a tool. Unknown fields are an error.
func inputOf[T any](raw json.RawMessage) (*T, error) {
	in := new(T)
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(in); err != nil {
		return nil, fault.New(fault.Invalid, "gateway.Call", "", fmt.Errorf("decode the input: %w", err))
	}
	return in, nil
}

type commandInput struct {
	Command     string `json:"command"`
	Description string `json:"description,omitempty"`
	Cwd         string `json:"cwd,omitempty"`
	TimeoutMS   int64  `json:"timeout_ms,omitempty"`
}

// commandOutput is the result of a command.
type commandOutput struct {
	ExitCode  int    `json:"exit_code"`
	Signal    string `json:"signal,omitempty"`
	TimedOut  bool   `json:"timed_out,omitempty"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated,omitempty"`
}

const defaultCommandTimeout = 2 * time.Minute

// startOnce starts the command of an invocation, unless an earlier call has started it. The ID of
// the command is stored before it starts, with the jail's init that knows it: if the jail has been
// started again since an earlier call, nothing is started, because the command may have been executed.
func (tc *toolCalls) startOnce(ctx context.Context, inv *invocation, r jail.ExecRequest) (id.Exec, error) {
	if inv.ref == "" {
		started, err := tc.cfg.Jails.InitStarted(ctx, inv.caller.Jail)
		if err != nil {
			return "", err
		}
		if err := inv.saveRef(ctx, fmt.Sprintf("%s@%d", id.NewExec(), started.UnixNano())); err != nil {
			return "", err
		}
	}
	x, nanos, _ := strings.Cut(inv.ref, "@")
	r.ID = id.Exec(x)
	if n, err := strconv.ParseInt(nanos, 10, 64); err == nil {
		r.Init = time.Unix(0, n)
	}
	_, _, err := tc.cfg.Jails.Exec(ctx, inv.caller.Jail, r, nil)
	if errors.Is(err, fault.Conflict) { // an earlier call may have started it
		if _, missing := tc.cfg.Jails.ExecStatus(ctx, inv.caller.Jail, r.ID); missing == nil {
			err = nil
		}
	}
	return r.ID, err
}

// runCommand runs a command once. A repeated call finds it, running or ended.
func (tc *toolCalls) runCommand(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[commandInput](inv.input)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(in.Command) == "" {
		return nil, fault.Fieldf("gateway.Call", "command", "the command is empty")
	}
	timeout := time.Duration(in.TimeoutMS) * time.Millisecond
	if timeout <= 0 {
		timeout = defaultCommandTimeout
	}
	x, err := tc.startOnce(ctx, inv, jail.ExecRequest{Cmd: in.Command, Cwd: in.Cwd, Timeout: timeout, Env: callerEnv(inv.caller)})
	if err != nil {
		return nil, err
	}
	return tc.outputOf(ctx, inv.caller.Jail, x)
}

// outputOf waits until a command has ended, and returns the beginning and the end of its
// output.
func (co *core) outputOf(ctx context.Context, jid id.Jail, x id.Exec) (*commandOutput, error) {
	var stdout, stderr truncatedOutput
	each := func(c protocol.Chunk) error {
		if c.Stream == protocol.Stderr {
			stderr.Write(c.Data)
		} else {
			stdout.Write(c.Data)
		}
		return nil
	}
	status, err := co.follow(ctx, jid, x, each)
	if err != nil {
		return nil, fmt.Errorf("follow the output of command %s: %w", x, err)
	}
	out := &commandOutput{ExitCode: status.Code, Signal: status.Signal, TimedOut: status.TimedOut}
	out.Stdout, out.Truncated = stdout.text(status.Stdout)
	var lost bool
	out.Stderr, lost = stderr.text(status.Stderr)
	out.Truncated = out.Truncated || lost
	return out, nil
}

// follow passes the output of a command to each until the command has ended.
func (co *core) follow(ctx context.Context, jid id.Jail, x id.Exec, each func(protocol.Chunk) error) (protocol.ExecStatus, error) {
	s, err := co.cfg.Jails.Attach(ctx, jid, x, control.AttachOptions{From: -1, Follow: true})
	if err != nil { // the jail may have stopped: its buffered output remains
		return co.cfg.Jails.Output(ctx, jid, x, each)
	}
	defer s.Close()
	return s.Each(each)
}

// truncatedOutput keeps the beginning and the end of the bytes written to it.
type truncatedOutput struct {
	head, tail []byte
	all        int64
}

func (c *truncatedOutput) Write(p []byte) (int, error) {
	all := len(p)
	if n := min(len(p), maxToolText/2-len(c.head)); n > 0 {
		c.head = append(c.head, p[:n]...)
		p = p[n:]
	}
	c.tail = append(c.tail, p...)
	if over := len(c.tail) - maxToolText/2; over > 0 {
		c.tail = append(c.tail[:0], c.tail[over:]...)
	}
	c.all += int64(all)
	return all, nil
}

// text returns the kept output of a stream, and whether some of it is missing. all is the known
// length of the stream in bytes.
func (c *truncatedOutput) text(all int64) (string, bool) {
	lost := max(all, c.all) - int64(len(c.head)+len(c.tail))
	if lost <= 0 {
		return strings.ToValidUTF8(string(c.head)+string(c.tail), "\uFFFD"), false
	}
	return strings.ToValidUTF8(fmt.Sprintf("%s\n… %d bytes left out …\n%s", c.head, lost, c.tail), "\uFFFD"), true
}

type fileInput struct {
	Path   string `json:"path"`
	Text   string `json:"text,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Limit  int64  `json:"limit,omitempty"`
}

type editInput struct {
	Path string `json:"path"`
	Old  string `json:"old"`
	New  string `json:"new"`
	All  bool   `json:"all,omitempty"`
}

// files opens the files of the invocation's jail, and returns p as an absolute path. A
// relative p starts at the workspace.
func (co *core) files(ctx context.Context, inv *invocation, p string) (jail.Files, string, error) {
	if strings.Contains(p, "\x00") {
		return nil, "", fault.Fieldf("gateway.Call", "path", "a path must not contain a NUL byte")
	}
	j, err := co.cfg.Jails.Get(ctx, inv.caller.Jail)
	if err != nil {
		return nil, "", err
	}
	if !path.IsAbs(p) {
		p = path.Join(cmp.Or(j.Spec.Project(), "/"), p)
	}
	f, err := co.cfg.Jails.Files(ctx, inv.caller.Jail)
	return f, p, err
}

func (tc *toolCalls) readFile(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[fileInput](inv.input)
	if err != nil {
		return nil, err
	}
	f, p, err := tc.files(ctx, inv, in.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	limit := in.Limit
	if limit <= 0 || limit > maxToolText {
		limit = maxToolText
	}
	r, info, err := f.Read(ctx, p, in.Offset, limit)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, limit))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p, err)
	}
	return struct {
		Text string `json:"text"`
		Size int64  `json:"size"`
		More bool   `json:"more,omitempty"`
	}{strings.ToValidUTF8(string(text), "\uFFFD"), info.Size, in.Offset+int64(len(text)) < info.Size}, nil
}

func (tc *toolCalls) writeFile(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[fileInput](inv.input)
	if err != nil {
		return nil, err
	}
	f, p, err := tc.files(ctx, inv, in.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return putFile(ctx, f, p, []byte(in.Text))
}

// writeResult is the result of write_file and edit_file.
type writeResult struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// putFile writes a file and its missing parent directories.
func putFile(ctx context.Context, f jail.Files, p string, text []byte) (writeResult, error) {
	info, err := f.Write(ctx, p, bytes.NewReader(text), protocol.WriteOptions{Parents: true})
	return writeResult{info.Path, info.Size}, err
}

// maxEdited limits the size of an edited file, in bytes.
const maxEdited = 8 << 20

func (tc *toolCalls) editFile(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[editInput](inv.input)
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
		return nil, fault.Newf(fault.TooLarge, "gateway.Call", p, "file of %d bytes is too large to edit; use a command", info.Size)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p, err)
	}
	next, err := replaceText(string(text), in, inv.retry)
	if err != nil {
		return nil, err
	}
	return putFile(ctx, f, p, []byte(next))
}

// replaceText applies an edit to a text. If retry is set and the text already contains the new
// text, the edit was made before.
func replaceText(text string, in *editInput, retry bool) (string, error) {
	const op = "gateway.Call"
	n := strings.Count(text, in.Old)
	switch {
	case in.Old == "":
		return "", fault.Fieldf(op, "old", "the old text is empty; to create a file, use write_file")
	case n == 0:
		if done := in.New != "" && strings.Contains(text, in.New); done && retry {
			return text, nil
		} else if done {
			return "", fault.Fieldf(op, "old", "the file does not contain the old text, but already contains the new text")
		}
		return "", fault.Fieldf(op, "old", "the file does not contain the old text: read the file first")
	case n > 1 && !in.All:
		return "", fault.Fieldf(op, "old", "the file contains the old text %d times: include more context, or set all", n)
	}
	return strings.ReplaceAll(text, in.Old, in.New), nil
}

// maxListed limits the entries of a listing.
const maxListed = 500

func (tc *toolCalls) listFiles(ctx context.Context, inv *invocation) (any, error) {
	in, err := inputOf[fileInput](inv.input)
	if err != nil {
		return nil, err
	}
	f, p, err := tc.files(ctx, inv, in.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	infos, more, err := f.List(ctx, p, "", maxListed)
	if err != nil {
		return nil, err
	}
	type entry struct {
		Name string `json:"name"`
		Type string `json:"type"`
		Size int64  `json:"size,omitempty"`
	}
	all := make([]entry, 0, len(infos))
	for _, i := range infos {
		all = append(all, entry{i.Name, i.Type, i.Size})
	}
	return struct {
		Entries []entry `json:"entries"`
		More    bool    `json:"more,omitempty"`
	}{all, more}, nil
}
