package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// What agents say and hear at the gateway in their jail.

// Whoami is who is at a door.
type Whoami struct {
	Jail     id.Jail   `json:"jail,omitempty"`
	Session  string    `json:"session"`
	Run      id.Run    `json:"run,omitempty"`
	Agent    string    `json:"agent,omitempty"`
	Level    int       `json:"level"`
	Group    string    `json:"group,omitempty"`
	Siblings []Sibling `json:"siblings"`
}

// Sibling is another of the same group.
type Sibling struct {
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	Session string `json:"session"`
}

// OwnRun is the run that an agent is at.
type OwnRun struct {
	Run           id.Run          `json:"run"`
	Session       string          `json:"session"`
	Goal          string          `json:"goal"`
	State         string          `json:"state"`
	Agent         string          `json:"agent"`
	Model         string          `json:"model,omitempty"`
	Budget        OwnBudget       `json:"budget"`
	ContextTokens int64           `json:"context_tokens"`
	Checkpoint    *OwnCheckpoint  `json:"checkpoint"`
	InboxAfter    int64           `json:"inbox_after"`
	Until         json.RawMessage `json:"until,omitempty"`
	Skills        string          `json:"skills,omitempty" description:"What it is taught."`
}

// OwnBudget is what a run may spend, and has.
type OwnBudget struct {
	Limits    map[string]int64 `json:"limits"`
	Consumed  map[string]int64 `json:"consumed"`
	Remaining map[string]int64 `json:"remaining"`
}

// OwnCheckpoint is what an agent kept of itself.
type OwnCheckpoint struct {
	ID    id.Checkpoint   `json:"id"`
	State json.RawMessage `json:"state"`
}

// Tools are those of an agent.
type Tools struct {
	Tools []Tool `json:"tools"`
}

// Tool is one of them, as a model is told of it.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Kind        string          `json:"kind"`
}

// UseTool asks for a tool to be used, once for each key.
type UseTool struct {
	Key   string          `json:"key" required:"true"`
	Tool  string          `json:"tool" required:"true"`
	Input json.RawMessage `json:"input,omitempty"`
}

// UseCapability asks for a capability to be called.
type UseCapability struct {
	Input json.RawMessage `json:"input,omitempty"`
	Key   string          `json:"key,omitempty"`
}

// UsedTool is what came of it.
type UsedTool struct {
	State  string          `json:"state" enum:"done,failed,refused"`
	Output json.RawMessage `json:"output,omitempty"`
	Error  *CallError      `json:"error,omitempty"`
}

// OwnState is what an agent says of itself.
type OwnState struct {
	State  json.RawMessage `json:"state" required:"true"`
	Reason string          `json:"reason,omitempty"`
}

// OwnCheckpointed says that it is kept.
type OwnCheckpointed struct {
	Checkpoint id.Checkpoint `json:"checkpoint"`
}

// Heartbeat answers one.
type Heartbeat struct {
	State string `json:"state"`
	Stop  bool   `json:"stop"`
}

// Inbox is what an agent is told.
type Inbox struct {
	Messages []Told `json:"messages"`
	After    int64  `json:"after"`
}

// Told is one thing of it.
type Told struct {
	Seq    int64    `json:"seq"`
	From   string   `json:"from,omitempty"`
	Text   string   `json:"text"`
	Labels []string `json:"labels,omitempty"`
}

// Say is something for whoever follows the session.
type Say struct {
	Text string `json:"text" required:"true"`
	Key  string `json:"key,omitempty"`
}

// Said says that it is kept.
type Said struct {
	ID id.Message `json:"id"`
}

// Finish says that a goal is reached.
type Finish struct {
	Result json.RawMessage `json:"result,omitempty"`
	Key    string          `json:"key,omitempty"`
}

// Finished is what became of a run.
type Finished struct {
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
}

// GiveUp says that a goal cannot be reached.
type GiveUp struct {
	Error string `json:"error" required:"true"`
}

// DecideTool asks whether an agent may use a tool of its own.
type DecideTool struct {
	Tool string          `json:"tool" required:"true"`
	Args json.RawMessage `json:"args,omitempty"`
}

// DecidedTool is the answer.
type DecidedTool struct {
	Effect string `json:"effect" enum:"allow,deny"`
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	Rule   string `json:"rule,omitempty"`
	By     string `json:"by,omitempty"`
}

// Noted says that what an agent is about to do is on record, and what the rules say.
type Noted struct {
	Recorded   bool     `json:"recorded"`
	Allow      bool     `json:"allow"`
	Tag        string   `json:"tag"`
	Reason     string   `json:"reason,omitempty"`
	Complaints []string `json:"complaints,omitempty" description:"What of the body could not be used."`
}

// Coordinate is what is asked of a sibling.
type Coordinate struct {
	Action         string `json:"action" required:"true"`
	Context        string `json:"context,omitempty"`
	From           string `json:"fromSandboxId,omitempty" description:"Not looked at: who asks is known."`
	ReplyTimeoutMS *int64 `json:"reply_timeout_ms,omitempty" description:"How long to wait for the answer; 0: not. Default 5 minutes."`
}

// Coordinated is what became of it.
type Coordinated struct {
	Request      id.Request `json:"request,omitempty"`
	State        string     `json:"state" enum:"queued,delivered,answered,failed,expired,refused"`
	To           string     `json:"to,omitempty"`
	Answer       string     `json:"answer,omitempty"`
	Reason       string     `json:"reason,omitempty"`
	Remedy       string     `json:"remedy,omitempty"`
	RetryAfterMS int64      `json:"retry_after_ms,omitempty"`
	Place        int        `json:"place,omitempty"`
}

// Errands are what siblings ask of an agent.
type Errands struct {
	Requests []Errand `json:"requests"`
}

// Errand is one of them.
type Errand struct {
	Request  id.Request `json:"request"`
	From     string     `json:"from"`
	Action   string     `json:"action"`
	Context  string     `json:"context,omitempty"`
	Again    bool       `json:"again,omitempty"`
	Deadline time.Time  `json:"deadline"`
}

// ReplySibling answers one.
type ReplySibling struct {
	Answer string `json:"answer" required:"true"`
}

// Resources is what a jail may use, after it was asked for more or less.
type Resources struct {
	State        string     `json:"state" enum:"applied,refused,failed"`
	Why          string     `json:"why,omitempty"`
	Remedy       string     `json:"remedy,omitempty"`
	By           string     `json:"by,omitempty"`
	CPU          float64    `json:"cpu,omitempty"`
	MemoryMB     int64      `json:"memory_mb,omitempty" description:"MiB."`
	DiskMB       int64      `json:"disk_mb,omitempty" description:"MiB."`
	PIDs         int64      `json:"pids,omitempty"`
	Until        *time.Time `json:"until,omitempty"`
	RetryAfterMS int64      `json:"retry_after_ms,omitempty"`
}

// NewTask is something to be done later.
type NewTask struct {
	Title       string `json:"title" required:"true"`
	Description string `json:"description,omitempty"`
	Priority    string `json:"priority,omitempty" enum:"low,medium,high,urgent"`
}

// TaskCreated says that it is in the backlog.
type TaskCreated struct {
	Created bool   `json:"created"`
	TaskID  string `json:"taskId"`
	Path    string `json:"path"`
}
