package mcp

import (
	"context"
	"encoding/base64"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/fault"
)

// Jails are the jail operations of one caller. The implementation checks permissions.
type Jails interface {
	Create(ctx context.Context, n NewJail) (Jail, error)
	List(ctx context.Context) ([]Jail, error)
	Exec(ctx context.Context, c Command) (Ended, error)
	Snapshot(ctx context.Context, jail, name string) (Snapshot, error)
	Branch(ctx context.Context, from string, count int) ([]Jail, error) // branches a jail or a snapshot
	ReadFile(ctx context.Context, jail, path string, offset, limit int64) (data []byte, size int64, err error)
	WriteFile(ctx context.Context, jail, path string, data []byte) error
	Delete(ctx context.Context, jail string) error
}

// A NewJail describes a jail to create and start. Empty fields have defaults.
type NewJail struct {
	Name     string            `json:"name,omitempty" jsonschema:"a name for people"`
	Image    string            `json:"image,omitempty" jsonschema:"an OCI image such as python:3.12-slim; without one a plain Debian"`
	Network  string            `json:"network,omitempty" jsonschema:"isolated (the default) or proxy, which reaches allowed_hosts"`
	Hosts    []string          `json:"allowed_hosts,omitempty" jsonschema:"the hosts that a jail with network proxy may reach"`
	Env      map[string]string `json:"env,omitempty" jsonschema:"the environment of every command"`
	MemoryMB int64             `json:"memory_mb,omitempty"`
	DiskMB   int64             `json:"disk_mb,omitempty"`
}

// A Jail is the current state of a jail.
type Jail struct {
	ID    string `json:"id"`
	Name  string `json:"name,omitempty"`
	State string `json:"state" jsonschema:"created, starting, running, paused, stopped or failed"`
	Image string `json:"image,omitempty"`
}

// A Command is run in a jail until it exits.
type Command struct {
	Jail      string            `json:"jail" jsonschema:"the jail's id"`
	Argv      []string          `json:"argv,omitempty" jsonschema:"the program and its arguments; or give cmd"`
	Cmd       string            `json:"cmd,omitempty" jsonschema:"a line for /bin/sh; or give argv"`
	Cwd       string            `json:"cwd,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Stdin     string            `json:"stdin,omitempty"`
	TimeoutMS int64             `json:"timeout_ms,omitempty" jsonschema:"after that it is killed with all that it has started"`
}

// Ended is the result of a command.
type Ended struct {
	ExitCode  int    `json:"exit_code"`
	Signal    string `json:"signal,omitempty" jsonschema:"which ended it, if one did"`
	TimedOut  bool   `json:"timed_out,omitempty"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated,omitempty" jsonschema:"not all that was written is here"`
}

// A Snapshot describes a snapshot of a jail.
type Snapshot struct {
	ID     string `json:"id"`
	Jail   string `json:"jail"`
	Name   string `json:"name,omitempty"`
	Memory bool   `json:"memory" jsonschema:"its processes are part of it, not its files alone"`
}

type (
	none   struct{}
	byJail struct {
		Jail string `json:"jail" jsonschema:"the jail's id"`
	}
	jailList struct {
		Jails []Jail `json:"jails"`
	}
	toSnapshot struct {
		Jail string `json:"jail" jsonschema:"the jail's id"`
		Name string `json:"name,omitempty" jsonschema:"a name for people"`
	}
	toBranch struct {
		From  string `json:"from" jsonschema:"the id of a jail or of a snapshot"`
		Count int    `json:"count,omitempty" jsonschema:"how many jails to make; 1 if left out"`
	}
	toRead struct {
		Jail   string `json:"jail" jsonschema:"the jail's id"`
		Path   string `json:"path"`
		Offset int64  `json:"offset,omitempty"`
		Limit  int64  `json:"limit,omitempty" jsonschema:"bytes; 262144 if left out, which is also the most"`
	}
	content struct {
		Content  string `json:"content"`
		Encoding string `json:"encoding" jsonschema:"utf-8 or base64"`
		Size     int64  `json:"size" jsonschema:"of the whole file, in bytes"`
		More     bool   `json:"more,omitempty" jsonschema:"the file has more data after this part"`
	}
	toWrite struct {
		Jail     string `json:"jail" jsonschema:"the jail's id"`
		Path     string `json:"path"`
		Content  string `json:"content"`
		Encoding string `json:"encoding,omitempty" jsonschema:"of content: utf-8 (the default) or base64"`
	}
	written struct {
		Size int `json:"size"`
	}
)

// maxRead bounds one jail_read_file, because models read the result.
const maxRead = 256 << 10

func (s *Server) addJails(j Jails) {
	no, yes := false, true
	safe := &sdk.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: &no, OpenWorldHint: &no}
	changes := &sdk.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &no}
	destroys := &sdk.ToolAnnotations{DestructiveHint: &yes, OpenWorldHint: &no}

	addJail(s, "jail_create", changes, "Create and start a jail: an isolated Linux environment with files and limits of its own.", j.Create)
	addJail(s, "jail_list", safe, "List the jails there are.", func(ctx context.Context, _ none) (jailList, error) {
		all, err := j.List(ctx)
		return jailList{append([]Jail{}, all...)}, err
	})
	addJail(s, "jail_exec", destroys, "Run a command in a jail, and return what it wrote and how it ended.", j.Exec)
	addJail(s, "jail_snapshot", changes, "Take a snapshot of a jail: its files, and its processes if it runs.", func(ctx context.Context, in toSnapshot) (Snapshot, error) {
		return j.Snapshot(ctx, in.Jail, in.Name)
	})
	addJail(s, "jail_branch", changes, "Branch (fork) new jails from a jail or a snapshot.", func(ctx context.Context, in toBranch) (jailList, error) {
		all, err := j.Branch(ctx, in.From, max(1, in.Count))
		return jailList{append([]Jail{}, all...)}, err
	})
	addJail(s, "jail_read_file", safe, "Read a file of a jail.", func(ctx context.Context, in toRead) (content, error) {
		return readFile(ctx, j, in)
	})
	addJail(s, "jail_write_file", destroys, "Write a file of a jail whole.", func(ctx context.Context, in toWrite) (written, error) {
		return writeFile(ctx, j, in)
	})
	addJail(s, "jail_delete", destroys, "End a jail and remove its files.", func(ctx context.Context, in byJail) (none, error) {
		return none{}, j.Delete(ctx, in.Jail)
	})
}

// addJail adds a tool whose schemas are derived from Go types.
func addJail[In, Out any](s *Server, name string, hints *sdk.ToolAnnotations, description string, do func(context.Context, In) (Out, error)) {
	s.own = append(s.own, name)
	sdk.AddTool(s.sdk, &sdk.Tool{Name: name, Description: description, Annotations: hints}, func(ctx context.Context, req *sdk.CallToolRequest, in In) (*sdk.CallToolResult, Out, error) {
		ctx, done := s.begin(ctx, req)
		defer done()
		out, err := do(ctx, in)
		if err != nil {
			err = tell(ctx, err)
		}
		return nil, out, err
	})
}

func readFile(ctx context.Context, j Jails, in toRead) (content, error) {
	if in.Limit <= 0 || in.Limit > maxRead {
		in.Limit = maxRead
	}
	data, size, err := j.ReadFile(ctx, in.Jail, in.Path, max(0, in.Offset), in.Limit)
	if err != nil {
		return content{}, err
	}
	c := content{Content: string(data), Encoding: "utf-8", Size: size, More: max(0, in.Offset)+int64(len(data)) < size}
	if !utf8.Valid(data) {
		c.Content, c.Encoding = base64.StdEncoding.EncodeToString(data), "base64"
	}
	return c, nil
}

func writeFile(ctx context.Context, j Jails, in toWrite) (written, error) {
	data := []byte(in.Content)
	switch in.Encoding {
	case "", "utf-8":
	case "base64":
		var err error
		if data, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return written{}, fault.Fieldf("mcp.WriteFile", "content", "%v", err)
		}
	default:
		return written{}, fault.Fieldf("mcp.WriteFile", "encoding", "%.40q is neither utf-8 nor base64", in.Encoding)
	}
	return written{len(data)}, j.WriteFile(ctx, in.Jail, in.Path, data)
}
