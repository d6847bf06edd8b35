package autonomy

import (
	"cmp"
	"fmt"
	"time"

	"glasshouse/internal/text"
	"glasshouse/policy"
)

// A Rung is a level of response to a finding, in increasing order.
type Rung int

const (
	NoResponse Rung = iota
	Observe         // record the finding
	Warn            // warn the agent with its next result
	AskFirst        // pause the run until an approval
	Stop            // snapshot the jail and stop the run
)

func (r Rung) String() string {
	return [...]string{"nothing", "observe", "warn", "ask", "stop"}[r]
}

// MarshalText returns the name of the rung.
func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// A Sign is a kind of behavior that indicates a loop or missing progress.
type Sign string

const (
	Repeat    Sign = "repeat"    // the same call with the same result
	Cycle     Sign = "cycle"     // a repeated sequence of two to six calls
	Monologue Sign = "monologue" // messages without a call
	Errors    Sign = "errors"    // the same tool fails with the same error
	Stalled   Sign = "stalled"   // turns that do not change the workspace
	Burn      Sign = "burn"      // thousands of tokens without progress
)

// A Ladder holds the count at which each rung is reached; 0: never.
type Ladder struct {
	Observe, Warn, Ask, Stop int
}

// rung returns the highest rung that a count reaches.
func (l Ladder) rung(n int) Rung {
	switch {
	case l.Stop > 0 && n >= l.Stop:
		return Stop
	case l.Ask > 0 && n >= l.Ask:
		return AskFirst
	case l.Warn > 0 && n >= l.Warn:
		return Warn
	case l.Observe > 0 && n >= l.Observe:
		return Observe
	}
	return NoResponse
}

// Ladders are the default ladders per autonomy level. Counts are calls for repeat and errors,
// rounds for cycle, messages for monologue, turns for stalled, and thousands of tokens for
// burn.
//
// Level 1 requests approval before it stops a run. Level 3 never does: an agent that continues
// after the warning is stopped and can be resumed from the snapshot.
var Ladders = map[policy.Level]map[Sign]Ladder{
	policy.Guided: {
		Repeat:    {2, 3, 4, 8},
		Cycle:     {2, 3, 4, 8},
		Monologue: {2, 3, 5, 10},
		Errors:    {3, 4, 6, 12},
		Stalled:   {10, 15, 25, 60},
		Burn:      {100, 200, 400, 1500},
	},
	policy.Intelligent: {
		Repeat:    {2, 3, 5, 8},
		Cycle:     {2, 3, 5, 8},
		Monologue: {2, 4, 6, 10},
		Errors:    {3, 5, 8, 12},
		Stalled:   {10, 20, 40, 80},
		Burn:      {100, 300, 600, 2000},
	},
	policy.Full: {
		Repeat:    {2, 3, 0, 6},
		Cycle:     {2, 3, 0, 6},
		Monologue: {2, 4, 0, 8},
		Errors:    {3, 5, 0, 10},
		Stalled:   {10, 20, 0, 60},
		Burn:      {100, 300, 0, 1000},
	},
}

// Timers are time limits of a run. A field that is 0 disables the limit.
type Timers struct {
	Wall   time.Duration `json:"wall,omitempty"`   // total, without the time spent waiting for approvals
	Idle   time.Duration `json:"idle,omitempty"`   // between two steps
	Step   time.Duration `json:"step,omitempty"`   // for one step
	Beat   time.Duration `json:"beat,omitempty"`   // interval of heartbeats, for agents that send them
	Missed int           `json:"missed,omitempty"` // number of missing heartbeats after which the agent is restarted
}

// WithDefaults returns t with zero fields filled from o.
func (t Timers) WithDefaults(o Timers) Timers {
	return Timers{
		Wall: cmp.Or(t.Wall, o.Wall), Idle: cmp.Or(t.Idle, o.Idle), Step: cmp.Or(t.Step, o.Step),
		Beat: cmp.Or(t.Beat, o.Beat), Missed: cmp.Or(t.Missed, o.Missed),
	}
}

// TimersOf are the default timers per autonomy level.
var TimersOf = map[policy.Level]Timers{
	policy.Guided:      {Wall: 2 * time.Hour, Idle: 10 * time.Minute, Step: 20 * time.Minute, Beat: 5 * time.Second, Missed: 6},
	policy.Intelligent: {Wall: 4 * time.Hour, Idle: 15 * time.Minute, Step: 30 * time.Minute, Beat: 5 * time.Second, Missed: 6},
	policy.Full:        {Wall: 12 * time.Hour, Idle: 15 * time.Minute, Step: time.Hour, Beat: 5 * time.Second, Missed: 6},
}

// A Finding is a detected sign and the rung that its count reaches.
type Finding struct {
	Sign  Sign   `json:"sign"`
	Rung  Rung   `json:"rung"`
	Count int    `json:"count"`
	Name  string `json:"name,omitempty"` // name of the tool
	Text  string `json:"text"`           // for agents and people
}

// text returns the description and the advice.
func (f Finding) text() string {
	name := text.Visible(text.Clip(f.Name, 60))
	switch f.Sign {
	case Repeat:
		return fmt.Sprintf("%s was called %d times with the same input and returned nothing new. Try something else, or report what is missing.", name, f.Count)
	case Cycle:
		return fmt.Sprintf("the same sequence of calls was made %d times with the same results. Stop, and report what you are waiting for or what is missing.", f.Count)
	case Monologue:
		return fmt.Sprintf("%d messages in a row without a tool call. Call a tool, or finish the run.", f.Count)
	case Errors:
		return fmt.Sprintf("%s failed %d times with the same error. Read the error, and try another approach or report what is missing.", name, f.Count)
	case Stalled:
		return fmt.Sprintf("%d turns did not change the workspace. List the remaining work, and do it or finish the run.", f.Count)
	}
	return fmt.Sprintf("%d thousand tokens were used without progress. List the remaining work, and do it or finish the run.", f.Count)
}
