// Package run keeps what agents are put to work on: sessions, the messages that go
// in and out of them, runs that pursue a goal, the journal of their steps, their
// checkpoints, and the feed of all that happens to them.
//
// What is answered was kept before. Each change is one transaction of the Store: the
// record, its events in the feed, and what the causal chain is owed. The chain is
// paid before the change is answered; after a kill in between, the next Manager pays.
//
// A session's runs are supervised by one Manager at a time, which has a claim on the
// session for as long as it renews it: they draw from one budget, which is in that
// Manager's memory. Everything else may be done by any Manager of the same Store.
package run

import (
	"encoding/json"
	"time"

	"glasshouse/budget"
	"glasshouse/id"
	"glasshouse/manifest"
)

// A Run is one goal, pursued in a session.
type Run struct {
	ID      id.Run `json:"id"`
	Session string `json:"session"`
	Parent  id.Run `json:"parent,omitempty"`
	Depth   int    `json:"depth,omitempty"` // how many parents are above it

	Goal string `json:"goal"` // may be a handle: see Manager.Text
	Details

	State     State     `json:"state"`
	Why       Why       `json:"why,omitempty"`    // what it is paused for
	Reason    string    `json:"reason,omitempty"` // why it is in its state, for people
	Schedule  string    `json:"schedule,omitempty"`
	NextRunAt time.Time `json:"next_run_at,omitzero"` // when it is due, if it waits for a time

	Until    *Until       `json:"until,omitempty"` // what must hold before it is done; nil: its agent says when
	Budget   budget.State `json:"budget"`
	OnExceed OnExceed     `json:"on_exceed"`
	Short    *Shortage    `json:"short,omitempty"`  // of what it is paused for want
	Warned   Warned       `json:"warned,omitempty"` // how much of each limit is known to be spent

	Result json.RawMessage `json:"result,omitempty"` // may be a handle
	Error  string          `json:"error,omitempty"`

	Steps   int64  `json:"steps"`             // position of the journal: how many steps began
	Journal string `json:"journal,omitempty"` // digest of all steps that ended, in the order in which they did

	Checkpoint  id.Checkpoint `json:"checkpoint,omitempty"` // the last one
	Checkpoints int64         `json:"checkpoints,omitempty"`

	Of       id.Run        `json:"of,omitempty"`       // the run that it branched from
	From     id.Checkpoint `json:"from,omitempty"`     // and at which checkpoint; "": its beginning
	Branch   int           `json:"branch,omitempty"`   // which of that run's branches it is, from 1
	Branches int           `json:"branches,omitempty"` // how many it has itself

	Key     string    `json:"key,omitempty"` // that it was asked for with
	Created time.Time `json:"created"`
	Started time.Time `json:"started,omitzero"` // when it was active first
	Since   time.Time `json:"since,omitzero"`   // when it came to its state, or its time was renewed

	// Waited is how much of the time from Started until Since does not count as its
	// own: it waited, or somebody let it go on after its time was over.
	Waited time.Duration `json:"waited,omitempty"`

	Worked time.Duration   `json:"worked,omitempty"` // in which it was active, until Since
	Meter  map[string]Mark `json:"meter,omitempty"`  // how far counters were charged to it, by their names

	Ended time.Time `json:"ended,omitzero"`
	Beat  time.Time `json:"beat,omitzero"` // of its agent, to about 15 s

	Version int64 `json:"version"`         // one more with each change
	Moved   int64 `json:"moved"`           // the version at which it came to its state
	Entry   int64 `json:"entry,omitempty"` // of the causal chain, in which its beginning is recorded; 0: of another daemon's

	Recorder string `json:"recorder,omitempty"` // the Holder whose chain that is
}

// Details is what whoever supervises a run may write on it at any time.
type Details struct {
	Agent    json.RawMessage `json:"agent,omitempty"` // which, and how; nothing here reads it
	Jail     id.Jail         `json:"jail,omitempty"`
	Exec     id.Exec         `json:"exec,omitempty"`
	Restarts int             `json:"restarts,omitempty"` // of its agent, since it got further
	Stuck    int64           `json:"stuck,omitempty"`    // Steps when its agent was restarted last
	GoesTo   id.Checkpoint   `json:"goes_to,omitempty"`  // that it is being taken back to
	Talk     json.RawMessage `json:"talk,omitempty"`     // how far the conversation with its agent has come; nothing here reads it

	// Rewound is the positions of the journal that the run was taken back to, with
	// its jail: the steps after one do not count for what comes later.
	Rewound []int64 `json:"rewound,omitempty"`
}

// A Request asks for a run.
type Request struct {
	Session   string           // opened if it is not there; "": one of its own
	Parent    id.Run           // a run of the same session, which is not ended
	Goal      string           //
	Labels    []manifest.Label // of the goal
	Agent     json.RawMessage  // nil: the session's
	Jail      id.Jail          // "": the session's
	Schedule  string           // as its schedule is written; for who reads it
	NextRunAt time.Time        // not zero: it is scheduled, else it is active
	Until     *Until
	Limits    budget.Amounts
	OnExceed  OnExceed // "": Pause
	By        string   // who asks: an operator, an agent
	Key       string   // the same key in the same session is the same run
}

// What may be said of a run, in bytes.
const (
	maxGoal   = 64 << 10
	maxAgent  = 64 << 10
	maxTalk   = 4 << 20
	maxReason = 2000
	maxName   = 200
	maxLabels = 50
	maxKey    = 256
	maxDepth  = 8 // of runs in runs
)
