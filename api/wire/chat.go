package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// OpenSession opens a session, or finds the one of that name.
type OpenSession struct {
	ID     string            `json:"id,omitempty" description:"1 to 128 letters, digits and ._:-; without it one is made."`
	Name   string            `json:"name,omitempty" description:"What siblings call it, and people."`
	Group  string            `json:"group,omitempty" description:"Whose members are its siblings. Default: nobody's."`
	Jail   id.Jail           `json:"jail,omitempty" description:"In which all its runs work. Default: each run gets a jail of its own."`
	Agent  *RunAgent         `json:"agent,omitempty" description:"Of runs that name none."`
	Budget map[string]int64  `json:"budget,omitempty" description:"What all its runs together may spend."`
	Labels map[string]string `json:"labels,omitempty"`
	Allow  []string          `json:"allow,omitempty" description:"Data classes that its agents may see as they are; of all else they get a handle."`
}

// Session is a conversation, or the identity of a sandbox.
type Session struct {
	ID      string            `json:"id" required:"true"`
	Name    string            `json:"name,omitempty"`
	Group   string            `json:"group,omitempty"`
	Jail    id.Jail           `json:"jail,omitempty"`
	State   string            `json:"state" required:"true" enum:"open,closed"`
	Agent   *RunAgent         `json:"agent,omitempty"`
	Budget  *RunBudget        `json:"budget,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Created time.Time         `json:"created" required:"true"`
	Closed  *time.Time        `json:"closed,omitempty"`
}

// RunBudget is what a run or a session may spend, and has.
type RunBudget struct {
	Limits    map[string]int64 `json:"limits" required:"true"`
	Consumed  map[string]int64 `json:"run-budget-consumed" required:"true"`
	Remaining map[string]int64 `json:"run-budget-remaining" required:"true"`
}

// Meta is what callers put beside a request. session_id is looked at.
type Meta map[string]any

// SendMessage tells a session's agent something.
type SendMessage struct {
	Session string   `json:"session_id,omitempty"`
	Meta    Meta     `json:"meta,omitempty" description:"Its session_id counts where there is no other."`
	Text    string   `json:"text" required:"true"`
	Labels  []string `json:"labels,omitempty" description:"Data classes of what is in the text."`
}

// Message is one of a session.
type Message struct {
	ID        id.Message `json:"id" required:"true"`
	Session   string     `json:"session_id" required:"true"`
	Seq       int64      `json:"seq" required:"true"`
	Direction string     `json:"direction" required:"true" enum:"in,out" description:"in: to the agent. out: from it."`
	Run       id.Run     `json:"run,omitempty"`
	From      string     `json:"from,omitempty"`
	Text      string     `json:"text" required:"true" description:"What is personal or secret is a handle in its place."`
	Labels    []string   `json:"labels,omitempty"`
	At        time.Time  `json:"at" required:"true"`
}

// RunAgent says who pursues a goal. As JSON it is this, or the preset's name alone.
type RunAgent struct {
	Preset   string            `json:"preset,omitempty" description:"builtin, claude, codex, opencode, gemini or shell. Default: the daemon's."`
	Model    string            `json:"model,omitempty" description:"Default: the daemon's."`
	Protocol string            `json:"protocol,omitempty" enum:"run,acp" description:"How the agent is spoken to: run, by its command line, or acp, by the Agent Client Protocol. Default: run."`
	Spawner  string            `json:"spawner,omitempty" enum:"jail,bwrap,process" description:"What the agent runs in. Default: the daemon's."`
	Argv     []string          `json:"argv,omitempty" description:"Of the preset shell: what is run. Of others: added."`
	Env      map[string]string `json:"env,omitempty"`
	Skills   []string          `json:"skills,omitempty" description:"That it is taught, and whose capabilities are its tools."`
	Level    int               `json:"level,omitempty" minimum:"0" maximum:"3" description:"Of autonomy: 1 guided, 2 intelligent, 3 full."`

	PolicyAgent string `json:"policy_agent,omitempty" maxLength:"128" description:"The agent of the permission files whose rules apply to the run. Default: policy.agent of the jail, or else the default agent of the files."`

	Jail   *CreateJail `json:"jail,omitempty" description:"The jail that is made for it."`
	Keep   bool        `json:"keep,omitempty" description:"Its jail stays when the run has ended."`
	Timers *RunTimers  `json:"timers,omitempty" description:"How long it may take for things. Default: as its level has it."`
	Saves  *RunSaves   `json:"saves,omitempty" description:"When it is kept as it is without being asked. Default: the daemon's."`
}

// RunTimers is how long a run may take before the watchdog does something about it.
type RunTimers struct {
	WallMS int64 `json:"wall_ms,omitempty" minimum:"0" description:"Altogether, without the time in which it waits for people."`
	IdleMS int64 `json:"idle_ms,omitempty" minimum:"0" description:"For nothing at all."`
	StepMS int64 `json:"step_ms,omitempty" minimum:"0" description:"For one step."`
}

// RunSaves is when checkpoints are taken unasked, if anything has changed.
type RunSaves struct {
	Steps   int   `json:"steps,omitempty" minimum:"0" description:"After so many steps."`
	EveryMS int64 `json:"every_ms,omitempty" minimum:"0" description:"After so long; a second at least."`
}

// UnmarshalJSON takes the name of a preset as well.
func (a *RunAgent) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*a = RunAgent{}
		return json.Unmarshal(b, &a.Preset)
	}
	type plain RunAgent
	return json.Unmarshal(b, (*plain)(a))
}

// StartRun asks for a goal to be pursued: now, at a time, or again and again.
type StartRun struct {
	Goal     string           `json:"goal" required:"true"`
	Session  string           `json:"session_id,omitempty" description:"Opened if it is not there. Without it, a new one."`
	Meta     Meta             `json:"meta,omitempty" description:"Its session_id counts where there is no other."`
	Agent    *RunAgent        `json:"agent,omitempty"`
	Budget   map[string]int64 `json:"budget,omitempty" description:"By dimension: steps, wall-clock-ms, llm-tokens, cost-micros, network-bytes, sandbox-cpu-ms, storage-bytes."`
	OnExceed string           `json:"on_exceed,omitempty" enum:"pause,stop" description:"What happens when a limit is reached. Default: pause, for more to be given."`
	Until    json.RawMessage  `json:"until,omitempty" description:"When it is done: \"manual\", {\"capability\": id}, {\"and\": […]}, {\"or\": […]}, {\"not\": …} or {\"rtfs\": expression over the run}. Default: when the agent says so."`
	Parent   id.Run           `json:"parent,omitempty" description:"Of which it is a part: from whose budget it draws, and with which it is cancelled."`

	Schedule  string     `json:"schedule,omitempty" minLength:"1" description:"Cron, with five or six fields, the first of six being seconds; @hourly and its like; @every 10m."`
	TimeZone  string     `json:"time_zone,omitempty" description:"Of the schedule. Default: UTC."`
	NextRunAt *time.Time `json:"next_run_at,omitempty" description:"Without a schedule: once, then. With one: not before."`
	Missed    string     `json:"missed,omitempty" enum:"skip,once,all" description:"What becomes of times that passed while nobody looked. Default: once."`
	Overlap   string     `json:"overlap,omitempty" enum:"skip,queue,allow" description:"What becomes of a time when the run before is still at work. Default: skip."`
	JitterMS  int64      `json:"jitter_ms,omitempty" minimum:"0"`
}

// Run is one goal pursued in a session.
type Run struct {
	ID         id.Run          `json:"id" required:"true"`
	Session    string          `json:"session_id" required:"true"`
	Parent     id.Run          `json:"parent,omitempty"`
	Goal       string          `json:"goal" required:"true"`
	State      string          `json:"state" required:"true" enum:"scheduled,active,paused,done,failed,cancelled"`
	Why        string          `json:"why,omitempty" enum:"approval,checkpoint,schedule,event,budget,watchdog,operator" description:"Of a run that is paused."`
	Reason     string          `json:"reason,omitempty"`
	Agent      RunAgent        `json:"agent" required:"true"`
	Jail       id.Jail         `json:"jail,omitempty"`
	Schedule   id.Schedule     `json:"schedule,omitempty"`
	NextRunAt  *time.Time      `json:"next_run_at,omitempty"`
	Budget     RunBudget       `json:"budget" required:"true"`
	Until      json.RawMessage `json:"until,omitempty"`
	Result     string          `json:"result,omitempty"`
	Error      string          `json:"error,omitempty"`
	Steps      int64           `json:"steps" required:"true"`
	Restarts   int             `json:"restarts,omitempty"`
	Checkpoint id.Checkpoint   `json:"checkpoint,omitempty" description:"The last."`
	Of         id.Run          `json:"of,omitempty" description:"Of which it is a branch."`
	Branch     int             `json:"branch,omitempty"`
	Created    time.Time       `json:"created" required:"true"`
	Started    *time.Time      `json:"started,omitempty"`
	Ended      *time.Time      `json:"ended,omitempty"`
}

// RunAction is one step of a run: a call of a model, of a tool, of a capability.
type RunAction struct {
	N      int64           `json:"n" required:"true"`
	Key    string          `json:"key" required:"true"`
	Kind   string          `json:"kind" required:"true"`
	Name   string          `json:"name" required:"true"`
	State  string          `json:"state" required:"true" enum:"begun,done,failed,refused"`
	Input  json.RawMessage `json:"input,omitempty"`
	Output json.RawMessage `json:"output,omitempty"`
	Label  string          `json:"label,omitempty"`
	Began  time.Time       `json:"began" required:"true"`
	Ended  *time.Time      `json:"ended,omitempty"`
	Entry  int64           `json:"entry,omitempty" description:"Of the chain."`
}

// TakeCheckpoint keeps a run as it is. It may be left out.
type TakeCheckpoint struct {
	Reason string `json:"reason,omitempty"`
	Pause  bool   `json:"pause,omitempty" description:"The run waits to be resumed."`
}

// Checkpoint is a run as it was at one moment.
type Checkpoint struct {
	ID       id.Checkpoint   `json:"id" required:"true"`
	Run      id.Run          `json:"run" required:"true"`
	N        int64           `json:"n" required:"true"`
	At       time.Time       `json:"at" required:"true"`
	Reason   string          `json:"reason,omitempty"`
	Auto     bool            `json:"auto,omitempty" description:"Nobody asked for it: it is forgotten when there are enough newer ones."`
	Steps    int64           `json:"steps" required:"true" description:"How far the run had come."`
	Snapshot id.Snapshot     `json:"snapshot,omitempty" description:"Of its jail."`
	State    json.RawMessage `json:"state,omitempty" description:"What the agent keeps of itself; of one checkpoint only."`
	Digest   string          `json:"digest" required:"true"`
	Entry    int64           `json:"entry,omitempty" description:"Of the chain."`
}

// ResumeRun has a run go on. It may be left out.
type ResumeRun struct {
	Checkpoint id.Checkpoint    `json:"checkpoint,omitempty" description:"Default: of a paused run the moment it was paused at, else its last."`
	Branch     int              `json:"branch,omitempty" minimum:"0" maximum:"64" description:"Make so many new runs that go on from there, and leave this one as it is."`
	Budget     map[string]int64 `json:"budget,omitempty" description:"New limits."`
}

// Resumed is what goes on.
type Resumed struct {
	Runs []Run `json:"runs" required:"true"`
}

// MoveRun changes a run's state by hand.
type MoveRun struct {
	State  string `json:"state" required:"true" enum:"active,paused,done,failed,cancelled"`
	Reason string `json:"reason,omitempty"`
	Result string `json:"result,omitempty"`
}

// RunEvent is one thing that happened in a session.
type RunEvent struct {
	Seq     int64           `json:"seq" required:"true"`
	Session string          `json:"session_id" required:"true"`
	Run     id.Run          `json:"run,omitempty"`
	Kind    string          `json:"kind" required:"true"`
	Body    json.RawMessage `json:"body,omitempty"`
	At      time.Time       `json:"at" required:"true"`
}

// Schedule says when runs are made.
type Schedule struct {
	ID        id.Schedule `json:"id" required:"true"`
	Session   string      `json:"session_id" required:"true"`
	Goal      string      `json:"goal" required:"true"`
	Cron      string      `json:"schedule,omitempty"`
	TimeZone  string      `json:"time_zone,omitempty"`
	Missed    string      `json:"missed" required:"true"`
	Overlap   string      `json:"overlap" required:"true"`
	JitterMS  int64       `json:"jitter_ms,omitempty"`
	Paused    bool        `json:"paused,omitempty"`
	NextRunAt *time.Time  `json:"next_run_at,omitempty"`
	Waiting   *time.Time  `json:"waiting,omitempty" description:"A due time that waits for the run before it to end."`
	Last      *time.Time  `json:"last,omitempty" description:"The due time that fired last."`
	Error     string      `json:"error,omitempty" description:"Why the last due time could not fire. Gone when one has."`
	Fired     int64       `json:"fired" required:"true" description:"Due times that made a run."`
	Left      int64       `json:"left_out" required:"true" description:"Due times that passed while nobody looked, and were left out."`
	Skipped   int64       `json:"skipped" required:"true" description:"Due times that were passed over because the run before was still at work."`
	Failed    int64       `json:"failed" required:"true" description:"Due times that were tried and given up."`
	Next      []time.Time `json:"next,omitempty" description:"The next ten times; of one schedule only."`
	Created   time.Time   `json:"created" required:"true"`
}

// EditSchedule changes when a schedule makes runs. What is not named stays.
type EditSchedule struct {
	Cron     *string `json:"schedule,omitempty" description:"As of a run that is started."`
	TimeZone *string `json:"time_zone,omitempty"`
	Missed   *string `json:"missed,omitempty" enum:"skip,once,all"`
	Overlap  *string `json:"overlap,omitempty" enum:"skip,queue,allow"`
	JitterMS *int64  `json:"jitter_ms,omitempty" minimum:"0"`
}

// Times are when something is due.
type Times struct {
	Times []time.Time `json:"times" required:"true"`
}
