package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// OpenSession opens a session. If the session exists, it is returned.
type OpenSession struct {
	ID     string            `json:"id,omitempty" description:"1 to 128 letters, digits and ._:-; generated if omitted."`
	Name   string            `json:"name,omitempty" description:"Display name, also used by siblings to address the session."`
	Group  string            `json:"group,omitempty" description:"Name of a group. Sessions in the same group are siblings. Default: no group."`
	Jail   id.Jail           `json:"jail,omitempty" description:"The jail for all runs of the session. Default: each run gets its own jail."`
	Agent  *RunAgent         `json:"agent,omitempty" description:"Default agent of the session's runs."`
	Budget map[string]int64  `json:"budget,omitempty" description:"Budget shared by all runs of the session, by dimension."`
	Labels map[string]string `json:"labels,omitempty"`
	Allow  []string          `json:"allow,omitempty" description:"Data classes that the session's agents may read in plain text. Other classified data is replaced by handles."`
}

// Session is a conversation with an agent, or the identity of a jail at the gateway.
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

// RunBudget is the budget of a run or session.
type RunBudget struct {
	Limits    map[string]int64 `json:"limits" required:"true" description:"Limits by dimension."`
	Consumed  map[string]int64 `json:"run-budget-consumed" required:"true" description:"Consumption by dimension."`
	Remaining map[string]int64 `json:"run-budget-remaining" required:"true" description:"Remaining budget by dimension."`
}

// Meta is additional data that clients attach to a request. Only session_id is
// evaluated.
type Meta map[string]any

// SendMessage sends a message to a session's agent.
type SendMessage struct {
	Session string   `json:"session_id,omitempty"`
	Meta    Meta     `json:"meta,omitempty" description:"Its session_id is used if session_id is omitted."`
	Text    string   `json:"text" required:"true"`
	Labels  []string `json:"labels,omitempty" description:"Data classes of the text."`
}

// Message is a message of a session.
type Message struct {
	ID        id.Message `json:"id" required:"true"`
	Session   string     `json:"session_id" required:"true"`
	Seq       int64      `json:"seq" required:"true" description:"Position in the session."`
	Direction string     `json:"direction" required:"true" enum:"in,out" description:"in: to the agent. out: from the agent."`
	Run       id.Run     `json:"run,omitempty"`
	From      string     `json:"from,omitempty" description:"The sender."`
	Text      string     `json:"text" required:"true" description:"The text. Personal and secret data is replaced by handles."`
	Labels    []string   `json:"labels,omitempty" description:"Data classes of the text."`
	At        time.Time  `json:"at" required:"true"`
}

// RunAgent selects and configures the agent of a run. In JSON it is an object, or a
// string that contains only the preset.
type RunAgent struct {
	Preset   string            `json:"preset,omitempty" description:"builtin, claude, codex, opencode, gemini or shell. Default: the daemon's default preset."`
	Model    string            `json:"model,omitempty" description:"The model. Default: the daemon's default model."`
	Protocol string            `json:"protocol,omitempty" enum:"run,acp" description:"How the daemon communicates with the agent. run (the default): command line. acp: Agent Client Protocol."`
	Spawner  string            `json:"spawner,omitempty" enum:"jail,bwrap,process" description:"What the agent process runs in. Default: the daemon's default spawner."`
	Argv     []string          `json:"argv,omitempty" description:"For preset shell: the command to run. For other presets: additional arguments."`
	Env      map[string]string `json:"env,omitempty" description:"Additional environment variables."`
	Skills   []string          `json:"skills,omitempty" description:"Skills of the agent. The capabilities of the skills become its tools."`
	Level    int               `json:"level,omitempty" minimum:"0" maximum:"3" description:"Autonomy level: 1 guided, 2 intelligent, 3 full."`

	PolicyAgent string `json:"policy_agent,omitempty" maxLength:"128" description:"The agent name for which the permission files are evaluated. Default: policy.agent of the jail, or the default agent of the files."`

	Jail   *CreateJail `json:"jail,omitempty" description:"The jail to create for the run."`
	Keep   bool        `json:"keep,omitempty" description:"Keep the created jail when the run ends."`
	Timers *RunTimers  `json:"timers,omitempty" description:"Time limits. Default: those of the autonomy level."`
	Saves  *RunSaves   `json:"saves,omitempty" description:"Automatic checkpoints. Default: the daemon's configuration."`
}

// RunTimers are the time limits that the watchdog enforces for a run.
type RunTimers struct {
	WallMS int64 `json:"wall_ms,omitempty" minimum:"0" description:"Total time in milliseconds, excluding the time in which the run waits for people."`
	IdleMS int64 `json:"idle_ms,omitempty" minimum:"0" description:"Time without activity, in milliseconds."`
	StepMS int64 `json:"step_ms,omitempty" minimum:"0" description:"Time for one step, in milliseconds."`
}

// RunSaves configures automatic checkpoints. None is taken if the run has not changed
// since the last one.
type RunSaves struct {
	Steps   int   `json:"steps,omitempty" minimum:"0" description:"Take a checkpoint after this many steps."`
	EveryMS int64 `json:"every_ms,omitempty" minimum:"0" description:"Take a checkpoint after this many milliseconds, at least 1000."`
}

// UnmarshalJSON decodes an object, or a string that contains only the preset.
func (a *RunAgent) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*a = RunAgent{}
		return json.Unmarshal(b, &a.Preset)
	}
	type plain RunAgent
	return json.Unmarshal(b, (*plain)(a))
}

// StartRun starts a run now, at a given time, or on a schedule.
type StartRun struct {
	Goal     string           `json:"goal" required:"true" description:"The goal, in natural language."`
	Session  string           `json:"session_id,omitempty" description:"The session, which is created if it does not exist. Default: a new session."`
	Meta     Meta             `json:"meta,omitempty" description:"Its session_id is used if session_id is omitted."`
	Agent    *RunAgent        `json:"agent,omitempty" description:"The agent. Default: the session's agent, or the daemon's default."`
	Budget   map[string]int64 `json:"budget,omitempty" description:"Limits by dimension: steps, wall-clock-ms, llm-tokens, cost-micros, network-bytes, sandbox-cpu-ms, storage-bytes."`
	OnExceed string           `json:"on_exceed,omitempty" enum:"pause,stop" description:"Action when a limit is reached. pause (the default): the run can be resumed with a larger budget."`
	Until    json.RawMessage  `json:"until,omitempty" description:"Completion condition: \"manual\", {\"capability\": id}, {\"and\": […]}, {\"or\": […]}, {\"not\": …} or {\"rtfs\": expression over the run}. Default: the agent reports completion."`
	Parent   id.Run           `json:"parent,omitempty" description:"Parent run. This run consumes the parent's budget and is cancelled with it."`

	Schedule  string     `json:"schedule,omitempty" minLength:"1" description:"Cron expression with five fields, or six with leading seconds; or @hourly and similar; or @every 10m."`
	TimeZone  string     `json:"time_zone,omitempty" description:"Time zone of the schedule. Default: UTC."`
	NextRunAt *time.Time `json:"next_run_at,omitempty" description:"Without a schedule: the time of the run. With a schedule: the earliest time of the first run."`
	Missed    string     `json:"missed,omitempty" enum:"skip,once,all" description:"Policy for due times that passed while the scheduler was not running: skip them, run once, or run all. Default: once."`
	Overlap   string     `json:"overlap,omitempty" enum:"skip,queue,allow" description:"Policy for a due time at which the previous run is still active: skip it, queue it, or allow both runs. Default: skip."`
	JitterMS  int64      `json:"jitter_ms,omitempty" minimum:"0" description:"Maximum delay of each due time, in milliseconds. It spreads schedules that are due at the same time."`
}

// Run is the pursuit of one goal in a session.
type Run struct {
	ID         id.Run          `json:"id" required:"true"`
	Session    string          `json:"session_id" required:"true"`
	Parent     id.Run          `json:"parent,omitempty"`
	Goal       string          `json:"goal" required:"true"`
	State      string          `json:"state" required:"true" enum:"scheduled,active,paused,done,failed,cancelled" description:"scheduled: waits for its start time. paused: see why."`
	Why        string          `json:"why,omitempty" enum:"approval,checkpoint,schedule,event,budget,watchdog,operator" description:"Why the run is paused."`
	Reason     string          `json:"reason,omitempty" description:"Explanation of the state."`
	Agent      RunAgent        `json:"agent" required:"true"`
	Jail       id.Jail         `json:"jail,omitempty"`
	Schedule   id.Schedule     `json:"schedule,omitempty"`
	NextRunAt  *time.Time      `json:"next_run_at,omitempty" description:"When a scheduled run starts."`
	Budget     RunBudget       `json:"budget" required:"true"`
	Until      json.RawMessage `json:"until,omitempty" description:"The completion condition."`
	Result     string          `json:"result,omitempty" description:"The result that the agent reported."`
	Error      string          `json:"error,omitempty"`
	Steps      int64           `json:"steps" required:"true" description:"Number of steps so far."`
	Restarts   int             `json:"restarts,omitempty" description:"How often the agent was restarted."`
	Checkpoint id.Checkpoint   `json:"checkpoint,omitempty" description:"The last checkpoint."`

	RemoteCheckpoint id.Checkpoint `json:"remote_checkpoint,omitempty" description:"The newest checkpoint whose snapshot is in the object store. If the host is lost, another daemon continues the run from it."`
	Of               id.Run        `json:"of,omitempty" description:"The run that this run was branched from."`
	Branch           int           `json:"branch,omitempty"`
	Created          time.Time     `json:"created" required:"true"`
	Started          *time.Time    `json:"started,omitempty"`
	Ended            *time.Time    `json:"ended,omitempty"`
}

// RunAction is a step of a run: a call of a model, tool or capability.
type RunAction struct {
	N      int64           `json:"n" required:"true" description:"Step number."`
	Key    string          `json:"key" required:"true" description:"Idempotency key of the step."`
	Kind   string          `json:"kind" required:"true"`
	Name   string          `json:"name" required:"true"`
	State  string          `json:"state" required:"true" enum:"begun,done,failed,refused"`
	Input  json.RawMessage `json:"input,omitempty"`
	Output json.RawMessage `json:"output,omitempty"`
	Label  string          `json:"label,omitempty" description:"Data class of the output."`
	Began  time.Time       `json:"began" required:"true"`
	Ended  *time.Time      `json:"ended,omitempty"`
	Entry  int64           `json:"entry,omitempty" description:"Number of the audit log entry that records the step."`
}

// TakeCheckpoint takes a checkpoint of a run. The request body is optional.
type TakeCheckpoint struct {
	Reason string `json:"reason,omitempty"`
	Pause  bool   `json:"pause,omitempty" description:"Pause the run until it is resumed."`
}

// Checkpoint is the saved state of a run.
type Checkpoint struct {
	ID       id.Checkpoint   `json:"id" required:"true"`
	Run      id.Run          `json:"run" required:"true"`
	N        int64           `json:"n" required:"true" description:"Number of the checkpoint in the run."`
	At       time.Time       `json:"at" required:"true"`
	Reason   string          `json:"reason,omitempty"`
	Auto     bool            `json:"auto,omitempty" description:"The checkpoint was taken automatically. It is deleted when there are enough newer ones."`
	Steps    int64           `json:"steps" required:"true" description:"Number of steps that the run had made."`
	Snapshot id.Snapshot     `json:"snapshot,omitempty" description:"Snapshot of the run's jail."`
	State    json.RawMessage `json:"state,omitempty" description:"State that the agent saved. Only in the response for a single checkpoint."`
	Digest   string          `json:"digest" required:"true"`
	Entry    int64           `json:"entry,omitempty" description:"Number of the audit log entry that records the checkpoint."`
}

// ResumeRun resumes a run. The request body is optional.
type ResumeRun struct {
	Checkpoint id.Checkpoint    `json:"checkpoint,omitempty" description:"Checkpoint to restore. Default: a paused run continues where it was paused; other runs use their last checkpoint."`
	Branch     int              `json:"branch,omitempty" minimum:"0" maximum:"64" description:"Create this many new runs from the checkpoint and leave this run unchanged."`
	Budget     map[string]int64 `json:"budget,omitempty" description:"New limits, by dimension."`
}

// Resumed lists the resumed runs.
type Resumed struct {
	Runs []Run `json:"runs" required:"true"`
}

// MoveRun changes the state of a run manually.
type MoveRun struct {
	State  string `json:"state" required:"true" enum:"active,paused,done,failed,cancelled"`
	Reason string `json:"reason,omitempty"`
	Result string `json:"result,omitempty"`
}

// RunEvent is an event of a session.
type RunEvent struct {
	Seq     int64           `json:"seq" required:"true" description:"Number of the event."`
	Session string          `json:"session_id" required:"true"`
	Run     id.Run          `json:"run,omitempty"`
	Kind    string          `json:"kind" required:"true"`
	Body    json.RawMessage `json:"body,omitempty" description:"Details, which depend on the kind."`
	At      time.Time       `json:"at" required:"true"`
}

// Schedule starts runs at due times.
type Schedule struct {
	ID        id.Schedule `json:"id" required:"true"`
	Session   string      `json:"session_id" required:"true"`
	Goal      string      `json:"goal" required:"true"`
	Cron      string      `json:"schedule,omitempty" description:"The cron expression."`
	TimeZone  string      `json:"time_zone,omitempty"`
	Missed    string      `json:"missed" required:"true" description:"Policy for missed due times: skip, once or all."`
	Overlap   string      `json:"overlap" required:"true" description:"Policy for overlapping runs: skip, queue or allow."`
	JitterMS  int64       `json:"jitter_ms,omitempty" description:"Maximum delay of each due time, in milliseconds."`
	Paused    bool        `json:"paused,omitempty"`
	NextRunAt *time.Time  `json:"next_run_at,omitempty" description:"The next due time."`
	Waiting   *time.Time  `json:"waiting,omitempty" description:"A due time that is queued until the previous run ends."`
	Last      *time.Time  `json:"last,omitempty" description:"The due time that last started a run."`
	Error     string      `json:"error,omitempty" description:"Why the last due time failed to start a run. Cleared by the next success."`
	Fired     int64       `json:"fired" required:"true" description:"Number of due times that started a run."`
	Left      int64       `json:"left_out" required:"true" description:"Number of due times that were missed and not made up for."`
	Skipped   int64       `json:"skipped" required:"true" description:"Number of due times that were skipped because the previous run was still active."`
	Failed    int64       `json:"failed" required:"true" description:"Number of due times that failed after all retries."`
	Next      []time.Time `json:"next,omitempty" description:"The next ten due times. Only in the response for a single schedule."`
	Created   time.Time   `json:"created" required:"true"`
}

// EditSchedule changes when a schedule starts runs. Omitted fields are unchanged.
type EditSchedule struct {
	Cron     *string `json:"schedule,omitempty" description:"Cron expression, as in POST /runs."`
	TimeZone *string `json:"time_zone,omitempty"`
	Missed   *string `json:"missed,omitempty" enum:"skip,once,all"`
	Overlap  *string `json:"overlap,omitempty" enum:"skip,queue,allow"`
	JitterMS *int64  `json:"jitter_ms,omitempty" minimum:"0"`
}

// Times are due times of a schedule.
type Times struct {
	Times []time.Time `json:"times" required:"true" description:"The due times."`
}
