package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// Approval is a question that waits, or waited, for a person. Its text is made
// visible: what would hide or reorder it is spelled out.
type Approval struct {
	ID       id.Approval       `json:"id" required:"true"`
	Jail     id.Jail           `json:"jail,omitempty"`
	State    string            `json:"state" required:"true" enum:"pending,answered,expired,withdrawn"`
	Tier     string            `json:"tier" required:"true" enum:"preapproved,standard,elevated" description:"Who it takes to allow it: nobody, a person, or one who types the phrase, or two."`
	Title    string            `json:"title" required:"true" description:"Short; never all there is to see."`
	What     string            `json:"what" required:"true" description:"All of what would be done."`
	Who      string            `json:"who" required:"true"`
	Details  []string          `json:"details,omitempty"`
	Why      string            `json:"why" required:"true"`
	Rule     string            `json:"rule" required:"true" description:"That says to ask."`
	Writes   map[string]string `json:"writes,omitempty" description:"The rule that allowing it for longer than once would write, by scope."`
	Phrase   string            `json:"phrase,omitempty" description:"To type, to allow it alone."`
	First    string            `json:"first,omitempty" description:"Who has allowed it, if it takes two."`
	Context  string            `json:"context,omitempty"`
	Diff     string            `json:"diff,omitempty" description:"What would change, as diff -u writes it: of a file as it was when it was asked."`
	NoDiff   string            `json:"no_diff,omitempty" description:"Why there is no diff."`
	Before   []json.RawMessage `json:"before,omitempty" description:"With last=N: the last records of the jail before, as docs/events.md has them, oldest first."`
	Question Question          `json:"question" required:"true" description:"As it was asked."`
	Created  time.Time         `json:"created_at" required:"true"`
	Expires  time.Time         `json:"expires_at" required:"true"`
	Settled  *time.Time        `json:"settled_at,omitempty"`
	Outcome  string            `json:"outcome,omitempty" description:"Why it is no longer pending."`
	Waiting  int               `json:"waiting,omitempty" description:"How many wait for it now."`
	Answer   *ApprovalAnswer   `json:"answer,omitempty"`
	Entry    int64             `json:"entry,omitempty" description:"Of the chain, in which its end is recorded."`
}

// ApprovalAnswer is what a person said.
type ApprovalAnswer struct {
	Answer   string    `json:"answer" required:"true" enum:"allow,deny,modify"`
	Scope    string    `json:"scope" required:"true" enum:"once,session,always"`
	Reason   string    `json:"reason,omitempty"`
	Resource string    `json:"resource,omitempty"`
	By       string    `json:"by" required:"true"`
	Channel  string    `json:"channel" required:"true"`
	At       time.Time `json:"at" required:"true"`
}

// AnswerApproval answers a question. The first answer counts.
type AnswerApproval struct {
	Answer   string `json:"answer" required:"true" enum:"allow,deny,modify"`
	Scope    string `json:"scope,omitempty" enum:"once,session,always" description:"How long it holds: for this request (the default), until the jail or the daemon ends, or with the policy of the jail."`
	Reason   string `json:"reason,omitempty" description:"The agent reads it."`
	Resource string `json:"resource,omitempty" description:"With modify: what is allowed in the place of what was asked."`
	Typed    string `json:"typed,omitempty" description:"The phrase, if it takes one."`
}

// ApprovalEvent is something that happened to a request.
type ApprovalEvent struct {
	Kind     string    `json:"kind" required:"true" enum:"asked,seconded,answered,expired,withdrawn,refused"`
	At       time.Time `json:"at" required:"true"`
	Approval Approval  `json:"approval" required:"true"`
}

// DeadNotice is a notice that could not be delivered.
type DeadNotice struct {
	ID       string          `json:"id" required:"true"`
	Approval id.Approval     `json:"approval" required:"true"`
	Channel  string          `json:"channel" required:"true"`
	Kind     string          `json:"kind" required:"true"`
	Created  time.Time       `json:"created_at" required:"true"`
	Attempts int             `json:"attempts" required:"true"`
	Error    string          `json:"error,omitempty"`
	Body     json.RawMessage `json:"body,omitempty"`
}
