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
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
	"glasshouse/policy"
)

// A Tool is something that an agent may use, as a model is told of it.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Kind        string          `json:"kind"` // file, exec, capability, autonomy
}

// A builtinTool is a tool of the gateway's own: what it does, what is asked before, and how.
type builtinTool struct {
	Tool
	// question is what is decided before it is done; its action "" is nothing.
	question func(input json.RawMessage) (policy.Question, error)
	preview func(g *Gateway, ctx context.Context, d *invocation) json.RawMessage // what a person who is asked is shown of it; nil is nothing
	do       func(g *Gateway, ctx context.Context, d *invocation) (any, error)
	waitsForPeer    bool // for a sibling: who waits so is neither idle nor slow
}

// A invocation is one use of a tool.
type invocation struct {
	caller   Caller
	key   string // the same for the same use
	input json.RawMessage
	ref   string // under which its effect is found again: the id of a command
	saveRef  func(ctx context.Context, ref string) error
	retry bool  // it was begun before, and nobody knows how far it came
	entry int64 // of the chain that it comes from
}

// maxToolText bounds what a tool tells of a file or a stream: a model reads it.
const maxToolText = 64 << 10

// inJail reports whether it is done in the agent's jail.
func (w *builtinTool) inJail() bool { return w.Kind == "exec" || w.Kind == "file" }

var builtinTools = []builtinTool{
	{
		Tool: Tool{"bash", "Run a command line in the workspace and wait for it. Returns exit code, stdout and stderr.", objectSchema(`
			"command": {"type": "string"},
			"description": {"type": "string", "description": "what it is for, in a few words"},
			"cwd": {"type": "string", "description": "default: the workspace"},
			"timeout_ms": {"type": "integer", "minimum": 1, "maximum": 3600000, "description": "default 120000"}`, "command"), "exec"},
		question: questionFrom(policy.ActionRun, func(in *commandInput) string { return in.Command }),
		do:       (*Gateway).runCommand,
	},
	{
		Tool: Tool{"read_file", "Read a text file. A long one is read in parts.", objectSchema(`
			"path": {"type": "string"},
			"offset": {"type": "integer", "minimum": 0, "description": "in bytes"},
			"limit": {"type": "integer", "minimum": 1, "maximum": 65536}`, "path"), "file"},
		question: questionFrom(policy.ActionRead, func(in *fileInput) string { return in.Path }),
		do:       (*Gateway).readFile,
	},
	{
		Tool: Tool{"write_file", "Write a text file, in place of what was there.", objectSchema(`
			"path": {"type": "string"},
			"text": {"type": "string"}`, "path", "text"), "file"},
		question: questionFrom(policy.ActionEdit, func(in *fileInput) string { return in.Path }),
		preview: (*Gateway).previewWrite,
		do:       (*Gateway).writeFile,
	},
	{
		Tool: Tool{"edit_file", "Replace a piece of a text file. The old text must occur exactly once, or say all.", objectSchema(`
			"path": {"type": "string"},
			"old": {"type": "string"},
			"new": {"type": "string"},
			"all": {"type": "boolean"}`, "path", "old", "new"), "file"},
		question: questionFrom(policy.ActionEdit, func(in *editInput) string { return in.Path }),
		preview: (*Gateway).previewEdit,
		do:       (*Gateway).editFile,
	},
	{
		Tool: Tool{"list_files", "List a directory.", objectSchema(`
			"path": {"type": "string", "description": "default: the workspace"}`), "file"},
		question: questionFrom(policy.ActionRead, func(in *fileInput) string { return cmp.Or(in.Path, ".") }),
		do:       (*Gateway).listFiles,
	},
}

// objectSchema is the JSON Schema of an object.
func objectSchema(properties string, required ...string) json.RawMessage {
	need, _ := json.Marshal(append([]string{}, required...))
	var b bytes.Buffer
	if err := json.Compact(&b, fmt.Appendf(nil, `{"type": "object", "properties": {%s}, "required": %s, "additionalProperties": false}`, properties, need)); err != nil {
		panic(err) // the schemas are written here
	}
	return b.Bytes()
}

// questionFrom makes a question of an input.
func questionFrom[T any](action string, resource func(*T) string) func(json.RawMessage) (policy.Question, error) {
	return func(raw json.RawMessage) (policy.Question, error) {
		in, err := inputOf[T](raw)
		if err != nil {
			return policy.Question{}, err
		}
		return policy.Question{Action: action, Resource: resource(in)}, nil
	}
}

// inputOf reads an input. A model that misspells a word is told.
func inputOf[T any](raw json.RawMessage) (*T, error) {
	in := new(T)
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(in); err != nil {
		return nil, fault.New(fault.Invalid, "gateway.Call", "", fmt.Errorf("the input: %w", err))
	}
	return in, nil
}

type commandInput struct {
	Command     string `json:"command"`
	Description string `json:"description,omitempty"`
	Cwd         string `json:"cwd,omitempty"`
	TimeoutMS   int64  `json:"timeout_ms,omitempty"`
}

// commandOutput is what came of a command.
type commandOutput struct {
	ExitCode  int    `json:"exit_code"`
	Signal    string `json:"signal,omitempty"`
	TimedOut  bool   `json:"timed_out,omitempty"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated,omitempty"`
}

const defaultCommandTimeout = 2 * time.Minute

// runCommand runs a command once: its name is on record before it is started, so that
// whoever comes back finds it, running or ended.
func (g *Gateway) runCommand(ctx context.Context, d *invocation) (any, error) {
	in, err := inputOf[commandInput](d.input)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(in.Command) == "" {
		return nil, fault.Fieldf("gateway.Call", "command", "it is empty")
	}
	x := id.Exec(d.ref)
	if x == "" {
		x = id.NewExec()
		if err := d.saveRef(ctx, string(x)); err != nil {
			return nil, err
		}
	}
	timeout := time.Duration(in.TimeoutMS) * time.Millisecond
	if timeout <= 0 {
		timeout = defaultCommandTimeout
	}
	_, _, err = g.cfg.Jails.Exec(ctx, d.caller.Jail, jail.ExecRequest{ID: x, Cmd: in.Command, Cwd: in.Cwd, Timeout: timeout, Env: callerEnv(d.caller)}, nil)
	if err != nil && !errors.Is(err, fault.Conflict) {
		return nil, err
	}
	out, serr := g.outputOf(ctx, d.caller.Jail, x)
	if serr != nil {
		return nil, errors.Join(err, serr)
	}
	return out, nil
}

// outputOf waits for a command to end, and returns the beginning and the end of what
// it wrote.
func (g *Gateway) outputOf(ctx context.Context, jid id.Jail, x id.Exec) (*commandOutput, error) {
	var stdout, stderr truncatedOutput
	each := func(c protocol.Chunk) error {
		if c.Stream == protocol.Stderr {
			stderr.Write(c.Data)
		} else {
			stdout.Write(c.Data)
		}
		return nil
	}
	status, err := g.follow(ctx, jid, x, each)
	if err != nil {
		return nil, err
	}
	out := &commandOutput{ExitCode: status.Code, Signal: status.Signal, TimedOut: status.TimedOut}
	out.Stdout, out.Truncated = stdout.text(status.Stdout)
	var lost bool
	out.Stderr, lost = stderr.text(status.Stderr)
	out.Truncated = out.Truncated || lost
	return out, nil
}

// follow gives what a command writes to each until it has ended.
func (g *Gateway) follow(ctx context.Context, jid id.Jail, x id.Exec, each func(protocol.Chunk) error) (protocol.ExecStatus, error) {
	s, err := g.cfg.Jails.Attach(ctx, jid, x, control.AttachOptions{From: -1, Follow: true})
	if err != nil { // its jail may have ended: what it wrote is kept
		return g.cfg.Jails.Output(ctx, jid, x, each)
	}
	defer s.Close()
	for {
		c, err := s.Next()
		if errors.Is(err, io.EOF) {
			return s.Status(), nil
		}
		if err != nil {
			return protocol.ExecStatus{}, err
		}
		if err := each(c); err != nil {
			return protocol.ExecStatus{}, err
		}
	}
}

// truncatedOutput keeps the beginning and the end of what is written to it.
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

// text is what was kept of a stream of at least so many bytes.
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

// files opens the files of the jail that a deed is done in, and makes a path of it of
// one that may be relative to the workspace.
func (g *Gateway) files(ctx context.Context, d *invocation, p string) (jail.Files, string, error) {
	if strings.Contains(p, "\x00") {
		return nil, "", fault.Fieldf("gateway.Call", "path", "a path has no NUL byte in it")
	}
	j, err := g.cfg.Jails.Get(ctx, d.caller.Jail)
	if err != nil {
		return nil, "", err
	}
	if !path.IsAbs(p) {
		p = path.Join(cmp.Or(j.Spec.Project(), "/"), p)
	}
	f, err := g.cfg.Jails.Files(ctx, d.caller.Jail)
	return f, p, err
}

func (g *Gateway) readFile(ctx context.Context, d *invocation) (any, error) {
	in, err := inputOf[fileInput](d.input)
	if err != nil {
		return nil, err
	}
	f, p, err := g.files(ctx, d, in.Path)
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
		return nil, err
	}
	return struct {
		Text string `json:"text"`
		Size int64  `json:"size"`
		More bool   `json:"more,omitempty"`
	}{strings.ToValidUTF8(string(text), "\uFFFD"), info.Size, in.Offset+int64(len(text)) < info.Size}, nil
}

func (g *Gateway) writeFile(ctx context.Context, d *invocation) (any, error) {
	in, err := inputOf[fileInput](d.input)
	if err != nil {
		return nil, err
	}
	f, p, err := g.files(ctx, d, in.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return putFile(ctx, f, p, []byte(in.Text))
}

// writeResult is what is told of a file that was.
type writeResult struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

func putFile(ctx context.Context, f jail.Files, p string, text []byte) (writeResult, error) {
	info, err := f.Write(ctx, p, bytes.NewReader(text), protocol.WriteOptions{Parents: true})
	return writeResult{info.Path, info.Size}, err
}

// maxEdited bounds a file that is edited.
const maxEdited = 8 << 20

func (g *Gateway) editFile(ctx context.Context, d *invocation) (any, error) {
	in, err := inputOf[editInput](d.input)
	if err != nil {
		return nil, err
	}
	f, p, err := g.files(ctx, d, in.Path)
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
		return nil, fault.Newf(fault.TooLarge, "gateway.Call", p, "%d bytes are too many to be edited; use a command", info.Size)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	next, err := replaceText(string(text), in, d.retry)
	if err != nil {
		return nil, err
	}
	return putFile(ctx, f, p, []byte(next))
}

func replaceText(text string, in *editInput, again bool) (string, error) {
	const op = "gateway.Call"
	n := strings.Count(text, in.Old)
	switch {
	case in.Old == "":
		return "", fault.Fieldf(op, "old", "it is empty: use write_file")
	case n == 0:
		if done := in.New != "" && strings.Contains(text, in.New); done && again {
			return text, nil
		} else if done {
			return "", fault.Fieldf(op, "old", "the file does not have it; it has the new text already")
		}
		return "", fault.Fieldf(op, "old", "the file does not have it: read the file first")
	case n > 1 && !in.All:
		return "", fault.Fieldf(op, "old", "the file has it %d times: say more of what is around it, or all", n)
	}
	return strings.ReplaceAll(text, in.Old, in.New), nil
}

// maxListed bounds a listing.
const maxListed = 500

func (g *Gateway) listFiles(ctx context.Context, d *invocation) (any, error) {
	in, err := inputOf[fileInput](d.input)
	if err != nil {
		return nil, err
	}
	f, p, err := g.files(ctx, d, in.Path)
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
