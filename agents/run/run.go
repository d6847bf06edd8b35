// Package run stores the work of agents: sessions, their incoming and outgoing messages, runs
// that pursue a goal, the step log (journal) of each run, checkpoints, and the event stream of
// all changes.
//
// A method returns only after its change is stored. Each change is one transaction of the
// Store: the objects, their events, and the records for the causal chain (the audit log). The
// records are appended to the chain before the method returns. If the process is killed in
// between, the next Manager appends them.
//
// One Manager at a time supervises the runs of a session. It has claimed the session, because
// the runs spend from one budget in that Manager's memory. The claim is valid as long as the
// process has its lease (see Node). Any Manager of the same Store may make all other changes.
package run

import (
	"encoding/json"
	"time"

	"glasshouse/capability/budget"
	"glasshouse/capability/manifest"
	"glasshouse/id"
)

// A Run is one goal pursued in a session.
type Run struct {
	ID      id.Run `json:"id"`
	Session string `json:"session"`
	Parent  id.Run `json:"parent,omitempty"`
	Depth   int    `json:"depth,omitempty"` // number of ancestors

	Goal string `json:"goal"` // may be a handle: see Manager.Text
	Details

	State     State     `json:"state"`
	Why       Why       `json:"why,omitempty"`    // reason for being paused
	Reason    string    `json:"reason,omitempty"` // explanation of the state, for people
	Schedule  string    `json:"schedule,omitempty"`
	NextRunAt time.Time `json:"next_run_at,omitzero"` // when it is due, if it waits for a time

	Until    *Until       `json:"until,omitempty"` // condition for Done; nil: the agent decides
	Budget   budget.State `json:"budget"`
	OnExceed OnExceed     `json:"on_exceed"`
	Shortage *Shortage    `json:"short,omitempty"`  // the missing budget, if it is paused for that
	Warned   Warned       `json:"warned,omitempty"` // percentage of each limit that was reported as spent

	Result json.RawMessage `json:"result,omitempty"` // may be a handle
	Error  string          `json:"error,omitempty"`

	Steps         int64  `json:"steps"`             // number of steps begun
	StepLogDigest string `json:"journal,omitempty"` // digest of all ended steps, in the order of their ends

	Checkpoint  id.Checkpoint `json:"checkpoint,omitempty"` // the latest
	Checkpoints int64         `json:"checkpoints,omitempty"`

	BranchOf    id.Run        `json:"of,omitempty"`       // the run that it branched from
	BranchPoint id.Checkpoint `json:"from,omitempty"`     // the checkpoint of that run; "": its beginning
	Branch      int           `json:"branch,omitempty"`   // number of the branch among those of that run, from 1
	Branches    int           `json:"branches,omitempty"` // number of branches of this run

	Creator id.Token  `json:"creator,omitempty"` // token that its jail counts towards
	Key     string    `json:"key,omitempty"`     // idempotency key of its Request
	Created time.Time `json:"created"`
	Started time.Time `json:"started,omitzero"` // when it first became active
	Since   time.Time `json:"since,omitzero"`   // when it entered its state, or its time was renewed

	// Waited is the part of the time from Started to Since that does not count towards its
	// time limit: time spent waiting, and time before a renewal.
	Waited time.Duration `json:"waited,omitempty"`

	Worked time.Duration           `json:"worked,omitempty"` // active time until Since
	Meter  map[string]MeterReading `json:"meter,omitempty"`  // last charged readings, by the names of the counters

	Ended         time.Time `json:"ended,omitzero"`
	LastHeartbeat time.Time `json:"beat,omitzero"` // last sign of life of the agent, accurate to about 15 s

	Version      int64 `json:"version"`         // incremented by each change
	StateVersion int64 `json:"moved"`           // version at which it entered its state
	Entry        int64 `json:"entry,omitempty"` // entry of the causal chain that records its creation; 0: in the chain of another daemon

	Recorder string `json:"recorder,omitempty"` // the Holder of the chain with Entry
}

// Details are the fields of a run that its supervisor may change at any time with Update.
type Details struct {
	Agent          json.RawMessage `json:"agent,omitempty"` // the agent and its configuration; opaque to this package
	Jail           id.Jail         `json:"jail,omitempty"`
	Exec           id.Exec         `json:"exec,omitempty"`
	Restarts       int             `json:"restarts,omitempty"` // restarts of the agent without progress
	StepsAtRestart int64           `json:"stuck,omitempty"`    // value of Steps at the last restart of the agent
	RewindTarget   id.Checkpoint   `json:"goes_to,omitempty"`  // checkpoint of a rewind in progress
	Conversation   json.RawMessage `json:"talk,omitempty"`     // state of the conversation with the agent; opaque to this package

	// Rewound lists the rewinds of the run, oldest first.
	Rewound []Rewind `json:"rewound,omitempty"`

	Remote      id.Checkpoint `json:"remote,omitempty"`       // newest checkpoint whose snapshot is in the object store
	RemoteAfter int64         `json:"remote_after,omitempty"` // value of Checkpoints at the last rewind: newer ones do not contain undone steps

	// Recovery is set from the time when the jail was found lost, with everything on its host,
	// until it is replaced.
	Recovery *Recovery `json:"recovery,omitempty"`

	// FromStart reports that the jail was replaced by an empty one: until the next checkpoint, an
	// agent that restarts has no state, not even that of BranchPoint.
	FromStart bool `json:"from_start,omitempty"`
}

// A Rewind is a return to an earlier state. Steps after Steps do not count for later ones.
type Rewind struct {
	Steps int64 `json:"steps"` // value of Run.Steps at the checkpoint

	// Lost reports that only the jail returned to the earlier state, because it was lost. Steps
	// that have effects elsewhere still count.
	Lost bool `json:"lost,omitempty"`
}

// UnmarshalJSON also accepts a number, which earlier versions stored.
func (w *Rewind) UnmarshalJSON(text []byte) error {
	*w = Rewind{}
	if err := json.Unmarshal(text, &w.Steps); err == nil {
		return nil
	}
	type plain Rewind
	return json.Unmarshal(text, (*plain)(w))
}

// A Recovery is the replacement of a lost jail.
type Recovery struct {
	Checkpoint id.Checkpoint `json:"checkpoint,omitempty"` // whose snapshot becomes the new jail; "": the new jail is empty
	N          int           `json:"n"`                    // number among the recoveries and rewinds of the run, from 1
}

// A Request asks for a run.
type Request struct {
	Session   string           // created if it does not exist; "": a new one
	Parent    id.Run           // an unfinished run of the same session
	Goal      string           //
	Labels    []manifest.Label // data classification of the goal
	Agent     json.RawMessage  // nil: the session's
	Jail      id.Jail          // "": the session's
	Schedule  string           // schedule expression, for display
	NextRunAt time.Time        // not zero: the run is scheduled, else active
	Until     *Until
	Limits    budget.Amounts
	OnExceed  OnExceed // "": Pause
	By        string   // the requester: an operator or an agent
	Creator   id.Token // token that a new jail counts towards; "": that of the parent, or none
	Key       string   // idempotency key: the same key in the same session returns the same run
}

// Size limits, in bytes if not stated otherwise.
const (
	maxGoal   = 64 << 10
	maxAgent  = 64 << 10
	maxTalk   = 4 << 20
	maxReason = 2000
	maxName   = 200
	maxLabels = 50
	maxKey    = 256
	maxDepth  = 8 // nesting depth of runs
)
