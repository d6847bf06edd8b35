// Package acp drives an agent that speaks the Agent Client Protocol (ACP).
//
// The agent is untrusted. It announces tool calls and requests permission for them. Drive
// passes permission requests to a Host, which decides, and updates to the Host, which
// records them. This package cannot prevent a call for which the agent requests no
// permission. Such a call is recorded with Outcome.Asked unset.
package acp

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// A Host decides and records for one agent. Calls of Update are sequential and in the order
// of the agent's messages. Calls of Decide may be concurrent. An error of any method ends
// the session, because an agent must not continue without decisions and records.
//
// Updates and requests are identified by their byte offset in the agent's output. A Host
// that implements PositionStore receives some of them twice if the daemon was killed, with the
// same offsets.
type Host interface {
	// Decide reports whether the agent may make this call. It may block until a person
	// answers. Its context ends when the session is cancelled and when the agent cancels
	// the request.
	Decide(ctx context.Context, call ToolCall) (Verdict, error)

	// Update records a message or an action of the agent.
	Update(ctx context.Context, u Update) error

	// Next returns the prompt of the next turn, for example new messages, or the reason
	// why the work is not complete. It is called at the end of each turn. An empty prompt
	// ends the session. Next may block; its context ends when the agent exits.
	Next(ctx context.Context, t Turn) (prompt string, err error)
}

// Files is implemented by a Host that reads and writes files for the agent. The Host checks
// each access itself. With any other Host the agent accesses files directly.
type Files interface {
	// ReadFile returns limit lines of a file, starting at line, which counts from 1. If
	// limit is 0 it returns all remaining lines.
	ReadFile(ctx context.Context, at int64, path string, line, limit int) (string, error)
	WriteFile(ctx context.Context, at int64, path, content string) error
}

// Terminals is implemented by a Host that runs commands for the agent. The Host checks each
// command itself, and ends the terminals that the agent does not release.
type Terminals interface {
	CreateTerminal(ctx context.Context, at int64, c Command) (terminal string, err error)
	TerminalOutput(ctx context.Context, terminal string) (Output, error)
	WaitTerminal(ctx context.Context, terminal string) (Exit, error)
	KillTerminal(ctx context.Context, terminal string) error
	ReleaseTerminal(ctx context.Context, terminal string) error
}

// A Command is a command that an agent requests to run.
type Command struct {
	Argv  []string
	Env   []string // K=V
	Cwd   string
	Limit int // bytes kept of the end of the output; 0 is the Host's default
}

// Output is the output of a terminal so far.
type Output struct {
	Text      string
	Truncated bool
	Exit      *Exit // nil while the command runs
}

// Exit is the exit status of a command.
type Exit struct {
	Code   int
	Signal string // the signal that ended it, or empty
}

// A ToolCall is a tool call as the agent describes it. Kind and Title are for display. The fields
// derived from the input are decisive: if Command is set the call runs a command, regardless of
// Kind.
type ToolCall struct {
	ID      string
	At      int64  // offset of its first mention
	AskedAt int64  // offset of the permission request
	Kind    string // read, edit, delete, move, search, execute, think, fetch, switch_mode, other
	Title   string
	Tool    string          // name of the tool, if the agent states it
	Input   json.RawMessage // input of the tool; nil if the agent omits it

	Command          string   // command line for a shell
	CommandFromTitle bool     // Command is a copy of Title, which may be shortened or prose; Input is absent
	Cwd              string   // working directory, if stated
	Paths            []string // files that the call reads or changes
	URL              string   // URL that the call fetches
}

// A Verdict is the decision about a call.
type Verdict struct {
	Allow  bool
	Reason string // reason of a denial, for the agent
}

// An Event is the type of an Update.
type Event string

const (
	Message       Event = "message"   // Text: consecutive output of the agent
	Thought       Event = "thought"   // Text: consecutive reasoning of the agent
	Announced     Event = "announced" // Call: not yet run, regardless of the status that the agent reports
	Refused       Event = "refused"   // Call, Reason: permission was denied
	Ended         Event = "ended"     // Call, Outcome: the agent reports the end, or its turn ended
	PlanChanged   Event = "planned"   // Plan: the complete current plan
	UsageReported Event = "spent"     // Usage: as counted by the agent
)

// An Update is a message or an action of the agent. Event determines which fields are set.
type Update struct {
	Event   Event
	At      int64 // offset in the agent's output
	Text    string
	Reason  string
	Call    ToolCall
	Outcome Outcome
	Plan    []Step
	Usage   Usage
}

// Outcome is the end of a call and the decision about it.
type Outcome struct {
	Done    bool // the agent reports success
	Asked   bool // the agent had requested permission
	Refused bool // permission was denied; with Done set, the agent ignored the denial
	Output  string
}

// A Step is a step of a plan.
type Step struct {
	Text   string
	Status string // pending, in_progress, completed
}

// Usage is the usage that the agent reports. Billing uses the model gateway's numbers.
type Usage struct {
	Context      int // tokens in use
	ContextSize  int
	InputTokens  int
	OutputTokens int
	Cost         float64
	Currency     string // currency of Cost, for example USD
}

// A Turn is the result of one prompt.
type Turn struct {
	Stop    string    // end_turn, max_tokens, max_turn_requests, refusal, cancelled
	Text    string    // the agent's output in the turn; of a long one, the end
	Refused []Refusal // calls that were denied
	AtNo    bool      // the turn ended right after the last denial, as some agents do
}

// A Refusal is a denied call and the reason.
type Refusal struct {
	Call   ToolCall
	Reason string
}

// A Server is a Model Context Protocol (MCP) server for the agent, reached over streamable
// HTTP.
type Server struct{ Name, URL string }

// Options configure a session.
type Options struct {
	Cwd                    string   // working directory of the session, absolute, as the agent sees it
	Prompt                 string   // first prompt; if empty, Host.Next provides it
	Servers                []Server // MCP servers for the agent
	OmitUnsupportedServers bool     // omit Servers if unsupported, instead of returning fault.Unsupported

	// Meta is the agent-specific _meta field of the requests that open a session.
	Meta map[string]any

	// Resume is the Result.Session to resume. ResumePrompt then replaces Prompt. If the agent
	// cannot resume sessions, or no longer has this one, it starts a new session.
	Resume, ResumePrompt string

	From *Position // last position of this running agent; nil: the agent was just started

	// SendLock is held from the moment a Position with an outgoing line is saved until the
	// line is written to the agent. It may be nil.
	SendLock sync.Locker

	// SilenceTimeout is the maximum time without output of the agent while no decision, tool call
	// or Host call is pending. Default: ten minutes.
	SilenceTimeout time.Duration

	// StopTimeout is the time that the agent has to stop when the context ends. Default: ten
	// seconds.
	StopTimeout time.Duration
}

// Result describes a session after Drive has returned.
type Result struct {
	Session string // session ID of the agent
	Agent   string // name and version that the agent reports, for example "OpenCode 1.18.33"
	Turns   int
	Last    Turn
	Usage   Usage
}
