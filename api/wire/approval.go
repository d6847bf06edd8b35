package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// Approval is an approval request. Its text is escaped: control characters and
// characters that hide or reorder text are spelled out.
type Approval struct {
	ID       id.Approval       `json:"id" required:"true"`
	Jail     id.Jail           `json:"jail,omitempty" description:"The jail that the request concerns."`
	Node     string            `json:"node,omitempty" description:"Name of the node with the jail, in lists of all nodes."`
	State    string            `json:"state" required:"true" enum:"pending,answered,expired,withdrawn" description:"pending: not answered yet. withdrawn: the caller or an operator withdrew the request."`
	Tier     string            `json:"tier" required:"true" enum:"preapproved,standard,elevated" description:"Who must approve: preapproved needs no person, standard needs one person, elevated needs one person who types the confirmation phrase, or two persons."`
	Title    string            `json:"title" required:"true" description:"Short summary. It may omit details; see what."`
	What     string            `json:"what" required:"true" description:"Complete text of the action."`
	Who      string            `json:"who" required:"true" description:"The agent or caller that requests the action."`
	Details  []string          `json:"details,omitempty" description:"Further facts about the action."`
	Why      string            `json:"why" required:"true" description:"Why approval is required."`
	Rule     string            `json:"rule" required:"true" description:"The rule that requires approval."`
	Writes   map[string]string `json:"writes,omitempty" description:"The policy rule that an approval for longer than once adds, by scope."`
	Phrase   string            `json:"phrase,omitempty" description:"The confirmation phrase. An approver who types it needs no second approver."`
	First    string            `json:"first,omitempty" description:"The first approver, if two are required and one has approved."`
	Context  string            `json:"context,omitempty" description:"Additional information for the decision, such as preceding actions."`
	Diff     string            `json:"diff,omitempty" description:"Unified diff (diff -u) of the proposed change, against the file at the time of the request."`
	NoDiff   string            `json:"no_diff,omitempty" description:"Why there is no diff."`
	Before   []json.RawMessage `json:"before,omitempty" description:"With last=N: the last N events of the jail before the request, oldest first. docs/reference/events.md describes them."`
	Question Question          `json:"question" required:"true" description:"The policy question, as submitted."`
	Created  time.Time         `json:"created_at" required:"true"`
	Expires  time.Time         `json:"expires_at" required:"true" description:"When the request expires if it is not answered."`
	Settled  *time.Time        `json:"settled_at,omitempty" description:"When the request was answered, withdrawn or expired."`
	Outcome  string            `json:"outcome,omitempty" description:"Why the request is no longer pending."`
	Waiting  int               `json:"waiting,omitempty" description:"Number of callers that wait for the answer now."`
	Answer   *ApprovalAnswer   `json:"answer,omitempty" description:"The answer, if the request was answered."`
	Entry    int64             `json:"entry,omitempty" description:"Number of the audit log entry that records the outcome."`
}

// ApprovalAnswer is a person's answer to an approval request.
type ApprovalAnswer struct {
	Answer   string    `json:"answer" required:"true" enum:"allow,deny,modify"`
	Scope    string    `json:"scope" required:"true" enum:"once,session,always" description:"How long the answer applies: once, for the session, or always."`
	Reason   string    `json:"reason,omitempty"`
	Resource string    `json:"resource,omitempty" description:"With answer modify: the resource that is allowed instead."`
	By       string    `json:"by" required:"true" description:"Name of the person."`
	Channel  string    `json:"channel" required:"true" description:"How the answer was given: api, cli or link."`
	At       time.Time `json:"at" required:"true"`
}

// AnswerApproval answers an approval request. Only the first answer takes effect.
type AnswerApproval struct {
	Answer   string `json:"answer" required:"true" enum:"allow,deny,modify"`
	Scope    string `json:"scope,omitempty" enum:"once,session,always" description:"How long the answer applies. once (the default): this request. session: until the jail or the daemon stops. always: it is added to the jail's policy."`
	Reason   string `json:"reason,omitempty" description:"The reason, which is shown to the agent."`
	Resource string `json:"resource,omitempty" description:"With answer modify: the resource to allow instead of the requested one."`
	Typed    string `json:"typed,omitempty" description:"The confirmation phrase, if one is required."`
}

// ApprovalEvent is a state change of an approval request.
type ApprovalEvent struct {
	Kind     string    `json:"kind" required:"true" enum:"asked,seconded,answered,expired,withdrawn,refused" description:"seconded: the first of two approvers approved. refused: the jail has too many pending requests, so the request was not queued."`
	At       time.Time `json:"at" required:"true"`
	Approval Approval  `json:"approval" required:"true"`
}

// DeadNotice is a notification that could not be delivered.
type DeadNotice struct {
	ID       string          `json:"id" required:"true"`
	Approval id.Approval     `json:"approval" required:"true"`
	Channel  string          `json:"channel" required:"true" description:"The notification channel."`
	Kind     string          `json:"kind" required:"true"`
	Created  time.Time       `json:"created_at" required:"true"`
	Attempts int             `json:"attempts" required:"true"`
	Error    string          `json:"error,omitempty" description:"Error of the last attempt."`
	Body     json.RawMessage `json:"body,omitempty" description:"The content of the notification."`
}
