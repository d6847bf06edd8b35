package wire

import (
	"time"

	"glasshouse/id"
)

// ExecRequest runs a command. Exactly one of argv and cmd must be set.
type ExecRequest struct {
	Argv        []string          `json:"argv,omitempty" description:"The command and its arguments."`
	Cmd         string            `json:"cmd,omitempty" description:"A command line for /bin/sh."`
	Env         map[string]string `json:"env,omitempty" description:"Environment variables, added to the jail's."`
	Cwd         string            `json:"cwd,omitempty" description:"Working directory. Default: the jail's working directory."`
	User        string            `json:"user,omitempty" description:"User of the command: a name, a uid, name:group or uid:gid. Default: the jail's user."`
	Stdin       string            `json:"stdin,omitempty" description:"Standard input of the command."`
	StdinBase64 bool              `json:"stdin_base64,omitempty" description:"stdin is base64."`
	StdinOpen   bool              `json:"stdin_open,omitempty" description:"Keep standard input open after stdin, for POST …/stdin."`
	TimeoutMS   int64             `json:"timeout_ms,omitempty" minimum:"0" description:"Timeout in milliseconds, after which the whole process group is killed."`
	Stream      bool              `json:"stream,omitempty" description:"Respond with server-sent events: start, output, exit."`
	Lossless    bool              `json:"lossless,omitempty" description:"With stream: block the command when the client reads slowly, instead of dropping output. A stream that ends without the event exit or error was interrupted, for example because the client read nothing for 5 minutes. Continue it with GET /jails/{id}/execs/{exec} and Last-Event-ID."`
	Detach      bool              `json:"detach,omitempty" description:"Respond as soon as the command has started."`
	PTY         *Size             `json:"pty,omitempty" description:"Run the command on a terminal of this size."`
	KeepBytes   int               `json:"keep_bytes,omitempty" minimum:"0" maximum:"16777216" description:"Number of output bytes buffered for later readers. Default 1 MiB."`
}

// Size is the size of a terminal.
type Size struct {
	Cols uint16 `json:"cols" required:"true" minimum:"1"`
	Rows uint16 `json:"rows" required:"true" minimum:"1"`
}

// Exec is a command that is running or has run in a jail.
type Exec struct {
	ID          id.Exec    `json:"id" required:"true"`
	Argv        []string   `json:"argv,omitempty"`
	PID         int        `json:"pid,omitempty" description:"PID inside the jail."`
	PTY         bool       `json:"pty,omitempty" description:"The command runs on a terminal."`
	Running     bool       `json:"running"`
	ExitCode    *int       `json:"exit_code,omitempty" description:"Exit status, or 128 plus the number of the signal that ended the command. Absent while it runs."`
	Signal      string     `json:"signal,omitempty" description:"The signal that ended the command, such as KILL."`
	TimedOut    bool       `json:"timed_out,omitempty" description:"The command was killed because of its timeout."`
	Stdout      string     `json:"stdout,omitempty" description:"Standard output, if the response includes output."`
	Stderr      string     `json:"stderr,omitempty" description:"Standard error, if the response includes output."`
	Encoding    string     `json:"encoding,omitempty" enum:"base64" description:"base64 if stdout or stderr is not valid UTF-8; then both are base64-encoded."`
	StdoutBytes int64      `json:"stdout_bytes" description:"Bytes written so far, including discarded ones."`
	StderrBytes int64      `json:"stderr_bytes" description:"Bytes written so far, including discarded ones."`
	Truncated   bool       `json:"truncated,omitempty" description:"stdout or stderr is incomplete because buffered output was discarded."`
	Oldest      int64      `json:"oldest" description:"Offset of the first buffered output byte."`
	Next        int64      `json:"next" description:"Offset of the next output byte."`
	StartedAt   time.Time  `json:"started_at"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	DurationMS  int64      `json:"duration_ms,omitempty" description:"Run time in milliseconds."`
}

// The events of the output stream of a command. The id of an output event is the offset of the
// byte after its data. A client that sends this id as Last-Event-ID resumes the stream there.
const (
	EventStart  = "start"  // first event; the data is an Exec
	EventOutput = "output" // the data is an Output
	EventExit   = "exit"   // last event; the data is an Exec
	EventError  = "error"  // last event; the data is a Problem
)

// Output is a chunk of a command's output. Offsets count the bytes of both streams
// together.
type Output struct {
	Stream string `json:"stream" required:"true" enum:"stdout,stderr"`
	Offset int64  `json:"offset" required:"true" description:"Offset of the first byte of data. Offsets count stdout and stderr together."`
	Lost   int64  `json:"lost,omitempty" description:"Number of bytes before offset that were discarded."`
	Data   []byte `json:"data" required:"true" description:"Output bytes, in base64."`
}

// Signal sends a signal to a command's process group.
type Signal struct {
	Signal string `json:"signal" required:"true" description:"Signal name, such as INT, TERM or KILL, or a number."`
}

// TerminalControl is a text frame from the client of a terminal to the daemon. Exactly one
// field must be set.
type TerminalControl struct {
	Resize *Size  `json:"resize,omitempty" description:"New size of the terminal."`
	Signal string `json:"signal,omitempty" description:"Signal to send to the command's process group."`
}

// TerminalEvent is a text frame from the daemon to the client of a terminal. Exactly one field
// is set.
type TerminalEvent struct {
	Exec  *Exec    `json:"exec,omitempty" description:"First frame: the command on this terminal. Pass its id as exec= to reconnect."`
	Lost  int64    `json:"lost,omitempty" description:"Number of output bytes before the next frame that were discarded."`
	Exit  *Exec    `json:"exit,omitempty" description:"Last frame: how the command ended."`
	Error *Problem `json:"error,omitempty" description:"Error of a control frame or of the terminal."`
}
