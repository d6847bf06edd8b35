package wire

import (
	"time"

	"glasshouse/id"
)

// ExecRequest runs a command. Exactly one of argv and cmd is set.
type ExecRequest struct {
	Argv        []string          `json:"argv,omitempty" description:"The command and its arguments."`
	Cmd         string            `json:"cmd,omitempty" description:"A line for /bin/sh."`
	Env         map[string]string `json:"env,omitempty" description:"Added to the jail's environment."`
	Cwd         string            `json:"cwd,omitempty"`
	User        string            `json:"user,omitempty"`
	Stdin       string            `json:"stdin,omitempty" description:"What the command reads."`
	StdinBase64 bool              `json:"stdin_base64,omitempty" description:"stdin is base64."`
	StdinOpen   bool              `json:"stdin_open,omitempty" description:"Keep standard input open after stdin, for POST …/stdin."`
	TimeoutMS   int64             `json:"timeout_ms,omitempty" minimum:"0" description:"Then the whole process group is killed."`
	Stream      bool              `json:"stream,omitempty" description:"Answer with server-sent events: start, output, exit."`
	Lossless    bool              `json:"lossless,omitempty" description:"With stream: let a slow reader slow the command down, rather than lose output. A stream that ends without the event exit or error was cut off, as one is whose reader takes nothing for 5 minutes; GET /jails/{id}/execs/{exec} with Last-Event-ID continues it."`
	Detach      bool              `json:"detach,omitempty" description:"Answer as soon as the command runs."`
	PTY         *Size             `json:"pty,omitempty" description:"Run on a terminal of this size."`
	KeepBytes   int               `json:"keep_bytes,omitempty" minimum:"0" maximum:"16777216" description:"Output kept in the jail for readers that come later. Default 1 MiB."`
}

// Size is a terminal's.
type Size struct {
	Cols uint16 `json:"cols" required:"true" minimum:"1"`
	Rows uint16 `json:"rows" required:"true" minimum:"1"`
}

// Exec is a command that runs or ran in a jail.
type Exec struct {
	ID          id.Exec    `json:"id" required:"true"`
	Argv        []string   `json:"argv,omitempty"`
	PID         int        `json:"pid,omitempty" description:"Inside the jail."`
	PTY         bool       `json:"pty,omitempty"`
	Running     bool       `json:"running"`
	ExitCode    *int       `json:"exit_code,omitempty" description:"128 plus the signal's number if one ended it. Absent while it runs."`
	Signal      string     `json:"signal,omitempty" description:"The signal that ended it, such as KILL."`
	TimedOut    bool       `json:"timed_out,omitempty"`
	Stdout      string     `json:"stdout,omitempty" description:"Where the answer carries output."`
	Stderr      string     `json:"stderr,omitempty"`
	Encoding    string     `json:"encoding,omitempty" enum:"base64" description:"base64 if stdout or stderr is not UTF-8; then both are encoded so."`
	StdoutBytes int64      `json:"stdout_bytes" description:"Written so far, kept or not."`
	StderrBytes int64      `json:"stderr_bytes"`
	Truncated   bool       `json:"truncated,omitempty" description:"stdout and stderr do not hold all that was written."`
	Oldest      int64      `json:"oldest" description:"Offset of the first output byte still kept."`
	Next        int64      `json:"next" description:"Offset that the next output byte will have."`
	StartedAt   time.Time  `json:"started_at"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	DurationMS  int64      `json:"duration_ms,omitempty"`
}

// The events of an exec's stream. Each output event's id is the offset of the
// byte after it, so a reader that sends it back as Last-Event-ID goes on where
// it was.
const (
	EventStart  = "start"  // an Exec, first
	EventOutput = "output" // an Output
	EventExit   = "exit"   // an Exec, last
	EventError  = "error"  // a Problem, last
)

// Output is a piece of what a command wrote. Offsets count the bytes of both
// streams together.
type Output struct {
	Stream string `json:"stream" required:"true" enum:"stdout,stderr"`
	Offset int64  `json:"offset" required:"true"`
	Lost   int64  `json:"lost,omitempty" description:"Bytes just before offset that were no longer kept."`
	Data   []byte `json:"data" required:"true" description:"Base64."`
}

// Signal is sent to a command's process group.
type Signal struct {
	Signal string `json:"signal" required:"true" description:"Such as INT, TERM, KILL or a number."`
}

// TerminalControl is a text frame that the client of a terminal sends. One
// field is set.
type TerminalControl struct {
	Resize *Size  `json:"resize,omitempty"`
	Signal string `json:"signal,omitempty"`
}

// TerminalEvent is a text frame that the daemon sends to a terminal. One field
// is set.
type TerminalEvent struct {
	Exec  *Exec    `json:"exec,omitempty" description:"First: the command on this terminal; pass its id as exec= to come back to it."`
	Lost  int64    `json:"lost,omitempty" description:"Bytes of output before the next frame that were no longer kept."`
	Exit  *Exec    `json:"exit,omitempty" description:"Last: how the command ended."`
	Error *Problem `json:"error,omitempty"`
}
