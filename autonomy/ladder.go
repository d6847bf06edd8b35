package autonomy

import (
	"cmp"
	"fmt"
	"time"

	"glasshouse/internal/text"
	"glasshouse/policy"
)

// A Rung is how hard something is taken, from nothing up.
type Rung int

const (
	Nothing  Rung = iota
	Observe       // it is recorded
	Warn          // the agent is told, with its next result
	AskFirst      // the run waits for a person
	Stop          // the jail is snapshotted, and the run stopped
)

func (r Rung) String() string {
	return [...]string{"nothing", "observe", "warn", "ask", "stop"}[r]
}

// MarshalText writes a Rung as its word.
func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// A Sign is something that agents which are lost do.
type Sign string

const (
	Repeat    Sign = "repeat"    // the same call with the same result
	Cycle     Sign = "cycle"     // two to six calls, round and round
	Monologue Sign = "monologue" // text after text, and no call
	Errors    Sign = "errors"    // the same tool fails in the same way
	Stalled   Sign = "stalled"   // turns that leave the workspace as it was
	Burn      Sign = "burn"      // thousands of tokens without progress
)

// A Ladder says at which count which rung is reached. 0: it is not.
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
	return Nothing
}

// Ladders is what signs lead to at the three levels of autonomy. Counts are of
// calls for repeat and errors, of rounds for cycle, of texts for monologue, of
// turns for stalled, and of thousands of tokens for burn.
//
// At level 1 a person is asked before anything is stopped. At level 3 nobody is:
// an agent that does not heed the warning is stopped, and can be resumed from
// the snapshot.
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

// Timers are how long a run may take for things. A field that is 0 is not
// looked at.
type Timers struct {
	Wall   time.Duration `json:"wall,omitempty"`   // altogether, without the time in which it waited for a person
	Idle   time.Duration `json:"idle,omitempty"`   // between two things that it does
	Step   time.Duration `json:"step,omitempty"`   // for one of them
	Beat   time.Duration `json:"beat,omitempty"`   // between two heartbeats, of agents that send them
	Missed int           `json:"missed,omitempty"` // of which so many may be missing
}

// Over returns t with what it does not say filled in from o.
func (t Timers) Over(o Timers) Timers {
	return Timers{
		Wall: cmp.Or(t.Wall, o.Wall), Idle: cmp.Or(t.Idle, o.Idle), Step: cmp.Or(t.Step, o.Step),
		Beat: cmp.Or(t.Beat, o.Beat), Missed: cmp.Or(t.Missed, o.Missed),
	}
}

// TimersOf is what the watchdog allows at the three levels of autonomy, if a run
// says nothing else.
var TimersOf = map[policy.Level]Timers{
	policy.Guided:      {Wall: 2 * time.Hour, Idle: 10 * time.Minute, Step: 20 * time.Minute, Beat: 5 * time.Second, Missed: 6},
	policy.Intelligent: {Wall: 4 * time.Hour, Idle: 15 * time.Minute, Step: 30 * time.Minute, Beat: 5 * time.Second, Missed: 6},
	policy.Full:        {Wall: 12 * time.Hour, Idle: 15 * time.Minute, Step: time.Hour, Beat: 5 * time.Second, Missed: 6},
}

// A Finding is a sign, and what it leads to.
type Finding struct {
	Sign  Sign   `json:"sign"`
	Rung  Rung   `json:"rung"`
	Count int    `json:"count"`
	Name  string `json:"name,omitempty"` // of the tool
	Text  string `json:"text"`           // for the agent, and for people
}

// text says what was found, and what to do else.
func (f Finding) text() string {
	name := text.Visible(text.Clip(f.Name, 60))
	switch f.Sign {
	case Repeat:
		return fmt.Sprintf("%s was called %d times with the same input, and nothing came of it that was new. Do something else, or say what is missing.", name, f.Count)
	case Cycle:
		return fmt.Sprintf("the same few calls were made %d times in the same order, with the same results. Stop, and say what you are waiting for or what is missing.", f.Count)
	case Monologue:
		return fmt.Sprintf("%d texts in a row without a call. Call a tool, or finish the run.", f.Count)
	case Errors:
		return fmt.Sprintf("%s failed %d times in the same way. Read the error, and try another way or say what is missing.", name, f.Count)
	case Stalled:
		return fmt.Sprintf("%d turns have left the workspace as it was. Say what is left to do, and do it or finish the run.", f.Count)
	}
	return fmt.Sprintf("%d thousand tokens were used without progress. Say what is left to do, and do it or finish the run.", f.Count)
}
