package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// Request and response bodies of the agent endpoint, which the gateway serves in each jail.

// Whoami identifies the agent that uses an agent endpoint.
type Whoami struct {
	Jail     id.Jail   `json:"jail,omitempty"`
	Session  string    `json:"session"`
	Run      id.Run    `json:"run,omitempty"`
	Agent    string    `json:"agent,omitempty"`
	Level    int       `json:"level" description:"Autonomy level."`
	Group    string    `json:"group,omitempty"`
	Siblings []Sibling `json:"siblings"`
}

// Sibling is another session in the same group.
type Sibling struct {
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	Session string `json:"session"`
}

// OwnRun is the run of the calling agent.
type OwnRun struct {
	Run           id.Run          `json:"run"`
	Session       string          `json:"session"`
	Goal          string          `json:"goal"`
	State         string          `json:"state"`
	Agent         string          `json:"agent"`
	Model         string          `json:"model,omitempty"`
	Budget        OwnBudget       `json:"budget"`
	ContextTokens int64           `json:"context_tokens" description:"Size of the model's context window, in tokens."`
	Checkpoint    *OwnCheckpoint  `json:"checkpoint"`
	InboxAfter    int64           `json:"inbox_after" description:"Sequence number of the last message that was read."`
	Until         json.RawMessage `json:"until,omitempty"`
	Skills        string          `json:"skills,omitempty" description:"Text of the agent's skills."`
}

// OwnBudget is the budget of the run.
type OwnBudget struct {
	Limits    map[string]int64 `json:"limits"`
	Consumed  map[string]int64 `json:"consumed"`
	Remaining map[string]int64 `json:"remaining"`
}

// OwnCheckpoint is the state that the agent saved last.
type OwnCheckpoint struct {
	ID    id.Checkpoint   `json:"id"`
	State json.RawMessage `json:"state"`
}

// Tools are the tools of an agent.
type Tools struct {
	Tools []Tool `json:"tools"`
}

// Tool is a tool definition in the form that models use.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Kind        string          `json:"kind"`
}

// UseTool calls a tool. The key makes the call idempotent.
type UseTool struct {
	Key   string          `json:"key" required:"true" description:"Idempotency key. A repeated call with the same key returns the first result."`
	Tool  string          `json:"tool" required:"true"`
	Input json.RawMessage `json:"input,omitempty"`
}

// UseCapability calls a capability.
type UseCapability struct {
	Input json.RawMessage `json:"input,omitempty"`
	Key   string          `json:"key,omitempty" description:"Idempotency key. A repeated call with the same key returns the first result."`
}

// UsedTool is the result of a tool call.
type UsedTool struct {
	State  string          `json:"state" enum:"done,failed,refused"`
	Output json.RawMessage `json:"output,omitempty"`
	Error  *CallError      `json:"error,omitempty"`
}

// OwnState is the state that an agent saves.
type OwnState struct {
	State  json.RawMessage `json:"state" required:"true"`
	Reason string          `json:"reason,omitempty"`
}

// OwnCheckpointed confirms that the state was saved.
type OwnCheckpointed struct {
	Checkpoint id.Checkpoint `json:"checkpoint"`
}

// Heartbeat is the response to a heartbeat of an agent.
type Heartbeat struct {
	State string `json:"state"`
	Stop  bool   `json:"stop" description:"The agent must stop."`
}

// Inbox contains messages to an agent.
type Inbox struct {
	Messages []InboxMessage `json:"messages"`
	After    int64          `json:"after" description:"Pass as 'after' to get later messages."`
}

// InboxMessage is a message to an agent.
type InboxMessage struct {
	Seq    int64    `json:"seq"`
	From   string   `json:"from,omitempty"`
	Text   string   `json:"text"`
	Labels []string `json:"labels,omitempty" description:"Data classes of the text."`
}

// NewMessage sends a message from the agent to the subscribers of the session.
type NewMessage struct {
	Text string `json:"text" required:"true"`
	Key  string `json:"key,omitempty"`
}

// SentMessage confirms that a message was stored.
type SentMessage struct {
	ID id.Message `json:"id"`
}

// Finish reports that the goal is reached.
type Finish struct {
	Result json.RawMessage `json:"result,omitempty"`
	Key    string          `json:"key,omitempty"`
}

// Finished is the state of the run after Finish or GiveUp.
type Finished struct {
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
}

// GiveUp reports that the goal cannot be reached.
type GiveUp struct {
	Error string `json:"error" required:"true"`
}

// DecideTool requests a policy decision about one of the agent's own tools.
type DecideTool struct {
	Tool string          `json:"tool" required:"true"`
	Args json.RawMessage `json:"args,omitempty"`
}

// DecidedTool is the policy decision.
type DecidedTool struct {
	Effect string `json:"effect" enum:"allow,deny"`
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	Rule   string `json:"rule,omitempty"`
	By     string `json:"by,omitempty"`
}

// RecordedAction confirms that a reported action was logged and returns the policy's result for
// it.
type RecordedAction struct {
	Recorded   bool     `json:"recorded"`
	Allow      bool     `json:"allow"`
	Tag        string   `json:"tag"`
	Reason     string   `json:"reason,omitempty"`
	Complaints []string `json:"complaints,omitempty" description:"Parts of the request body that could not be used."`
}

// Coordinate is a request to a sibling.
type Coordinate struct {
	Action         string `json:"action" required:"true" description:"What the sibling is asked to do."`
	Context        string `json:"context,omitempty" description:"Additional information for the sibling."`
	From           string `json:"fromSandboxId,omitempty" description:"Ignored. The daemon identifies the sender by the endpoint."`
	ReplyTimeoutMS *int64 `json:"reply_timeout_ms,omitempty" description:"How long to wait for the answer, in milliseconds; 0 does not wait. Default 5 minutes."`
}

// Coordinated is the state of a request to a sibling.
type Coordinated struct {
	Request      id.Request `json:"request,omitempty"`
	State        string     `json:"state" enum:"queued,delivered,answered,failed,expired,refused"`
	To           string     `json:"to,omitempty"`
	Answer       string     `json:"answer,omitempty"`
	Reason       string     `json:"reason,omitempty"`
	Remedy       string     `json:"remedy,omitempty"`
	RetryAfterMS int64      `json:"retry_after_ms,omitempty" description:"When the request may be repeated, in milliseconds."`
	Position     int        `json:"place,omitempty" description:"Position in the queue."`
}

// SiblingRequests are pending requests from siblings.
type SiblingRequests struct {
	Requests []SiblingRequest `json:"requests"`
}

// SiblingRequest is a request from a sibling.
type SiblingRequest struct {
	Request  id.Request `json:"request"`
	From     string     `json:"from"`
	Action   string     `json:"action"`
	Context  string     `json:"context,omitempty"`
	Again    bool       `json:"again,omitempty" description:"The request was delivered before."`
	Deadline time.Time  `json:"deadline" description:"When the request expires."`
}

// ReplySibling answers a request of a sibling.
type ReplySibling struct {
	Answer string `json:"answer" required:"true"`
}

// Resources is the result of a resource request.
type Resources struct {
	State        string     `json:"state" enum:"applied,refused,failed"`
	Why          string     `json:"why,omitempty"`
	Remedy       string     `json:"remedy,omitempty"`
	By           string     `json:"by,omitempty"`
	CPU          float64    `json:"cpu,omitempty"`
	MemoryMB     int64      `json:"memory_mb,omitempty" description:"Memory in MiB."`
	DiskMB       int64      `json:"disk_mb,omitempty" description:"Disk space in MiB."`
	PIDs         int64      `json:"pids,omitempty"`
	Until        *time.Time `json:"until,omitempty" description:"When a temporary change ends."`
	RetryAfterMS int64      `json:"retry_after_ms,omitempty" description:"When the request may be repeated, in milliseconds."`
}

// NewTask adds a task to the backlog.
type NewTask struct {
	Title       string `json:"title" required:"true"`
	Description string `json:"description,omitempty"`
	Priority    string `json:"priority,omitempty" enum:"low,medium,high,urgent"`
}

// TaskCreated confirms that the task is in the backlog.
type TaskCreated struct {
	Created bool   `json:"created"`
	TaskID  string `json:"taskId"`
	Path    string `json:"path"`
}
