// Package acp drives an agent that speaks the Agent Client Protocol.
//
// The agent is a stranger: it says what it is about to do, and asks. Drive carries
// its questions to a Host, which decides, and what it tells to the Host, which
// records it. What an agent does without asking nobody here can hold; it shows in
// the record as a call that was never asked about.
package acp

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// A Host decides and records for one agent. Update is called for one thing at a time,
// in the order of the agent's messages; Decide may be called while other calls of it
// wait. An error of any of them ends the session: an agent that cannot be judged or
// recorded does not go on.
//
// What it is told and asked has a place in the agent's output, by which it is known
// again: a Host that is a Keeper is told some of it once more after a kill.
type Host interface {
	// Decide says whether the agent may make this one call. It may wait for a
	// person. Its context ends when the session is cancelled, and when the agent
	// takes its question back.
	Decide(ctx context.Context, call ToolCall) (Verdict, error)

	// Update tells what the agent said and did.
	Update(ctx context.Context, u Update) error

	// Next is asked at the end of each turn for what the agent is to be told
	// next: messages that came meanwhile, or why it is not done yet. No text ends
	// the session. It may wait; its context ends when the agent does.
	Next(ctx context.Context, t Turn) (prompt string, err error)
}

// Files is a Host that reads and writes files for the agent. It judges each of them
// itself. A Host without it has the agent use its own.
type Files interface {
	// ReadFile returns lines of a file. The first line is 1; no limit is all.
	ReadFile(ctx context.Context, at int64, path string, line, limit int) (string, error)
	WriteFile(ctx context.Context, at int64, path, content string) error
}

// Terminals is a Host that runs commands for the agent. It judges each of them
// itself. Terminals that the agent does not release are the Host's to end.
type Terminals interface {
	CreateTerminal(ctx context.Context, at int64, c Command) (terminal string, err error)
	TerminalOutput(ctx context.Context, terminal string) (Output, error)
	WaitTerminal(ctx context.Context, terminal string) (Exit, error)
	KillTerminal(ctx context.Context, terminal string) error
	ReleaseTerminal(ctx context.Context, terminal string) error
}

// A Command is what an agent wants run.
type Command struct {
	Argv  []string
	Env   []string // K=V
	Cwd   string
	Limit int // of the output that is kept, its end; 0 is the Host's own
}

// Output is what a terminal has shown so far.
type Output struct {
	Text      string
	Truncated bool
	Exit      *Exit // nil while it runs
}

// Exit is how a command ended.
type Exit struct {
	Code   int
	Signal string // if one ended it
}

// A ToolCall is what an agent wants to do, in its own words. Kind and Title are for
// people. What counts is what follows from the input: where Command is set a command
// runs, whatever Kind says.
type ToolCall struct {
	ID      string
	At      int64  // where it was told of first
	AskedAt int64  // where it is asked about
	Kind    string // read, edit, delete, move, search, execute, think, fetch, switch_mode, other
	Title   string
	Tool    string          // its name, where the agent says it
	Input   json.RawMessage // the tool's own; nil if the agent does not show it

	Command string   // the line that a shell would run
	Titled  bool     // it is only the Title, as the agent shows no input: it may be shortened, or words for people
	Cwd     string   // where, if it says
	Paths   []string // files that it is about
	URL     string   // what it fetches
}

// A Verdict answers a call.
type Verdict struct {
	Allow  bool
	Reason string // of a refusal, for the agent
}

// An Event is what an Update tells.
type Event string

const (
	Message   Event = "message"   // Text: what the agent says, until it does something
	Thought   Event = "thought"   // Text: what it thinks, the same
	Announced Event = "announced" // Call: it is about to; nothing is done yet, whatever status the agent gives it
	Refused   Event = "refused"   // Call, Reason: it was told no
	Ended     Event = "ended"     // Call, Outcome: it says that this is over, or its turn is
	Planned   Event = "planned"   // Plan: the whole of it, each time
	Spent     Event = "spent"     // Usage: by its own count
)

// An Update is one thing that an agent told. The fields that are set follow from
// the Event.
type Update struct {
	Event   Event
	At      int64
	Text    string
	Reason  string
	Call    ToolCall
	Outcome Outcome
	Plan    []Step
	Usage   Usage
}

// Outcome is how a call ended, and by what right.
type Outcome struct {
	Done    bool // the agent says that it worked
	Asked   bool // and had asked before
	Refused bool // and had been told no: done all the same, it broke its word
	Output  string
}

// A Step is one of a plan.
type Step struct {
	Text   string
	Status string // pending, in_progress, completed
}

// Usage is what an agent counted. The model gateway's own numbers are what is paid.
type Usage struct {
	Context      int // tokens in use
	ContextSize  int
	InputTokens  int
	OutputTokens int
	Cost         float64
	Currency     string // of the cost: USD
}

// A Turn is what became of one prompt.
type Turn struct {
	Stop    string    // end_turn, max_tokens, max_turn_requests, refusal, cancelled
	Text    string    // what the agent said in it, its end if it was long
	Refused []Refusal // what it was told no to
	AtNo    bool      // it did and said nothing after the last of them: some agents end their turn there
}

// A Refusal is a call that was not allowed, and why.
type Refusal struct {
	Call   ToolCall
	Reason string
}

// A Server is one of the Model Context Protocol that the agent is to use, over
// streamable HTTP.
type Server struct{ Name, URL string }

// Options say what is to be done.
type Options struct {
	Cwd     string   // of the session, absolute, as the agent sees it
	Prompt  string   // the first; empty asks Next for it
	Servers []Server // an agent that takes none is Unsupported, unless
	Spare   bool     // it goes without them

	// Meta is told with each session that is opened, in the agent's own words.
	Meta map[string]any

	// Resume is a session of this agent to go on with, from Result.Session, and GoOn
	// what it is told then in place of Prompt. An agent that cannot, or does not have
	// it any more, begins a new one.
	Resume, GoOn string

	From  *Position   // of the same agent, which has worked on; nil: it was just started
	Still sync.Locker // held from when a Position is kept with something to send until the agent was given that; nil: nobody minds

	// Quiet is how long the agent may say nothing while nobody is asked anything.
	// Default: ten minutes.
	Quiet time.Duration

	// Grace is how long it may take to stop when the context ends. Default: ten
	// seconds.
	Grace time.Duration
}

// Result is what became of a session.
type Result struct {
	Session string // the agent's own name for it
	Agent   string // what it calls itself: "OpenCode 1.18.33"
	Turns   int
	Last    Turn
	Usage   Usage
}
