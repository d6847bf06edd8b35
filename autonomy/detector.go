package autonomy

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"glasshouse/policy"
)

// A StepKind is what a step of a run was.
type StepKind string

const (
	ModelStep   StepKind = "model"   // the model answered: a turn begins
	ToolStep    StepKind = "tool"    // a tool was called, and has returned
	MessageStep StepKind = "message" // the agent said something, to people
)

// A Step is one thing that a run did, as its journal has it.
type Step struct {
	At     time.Time
	Kind   StepKind
	Name   string // of the tool
	Input  string // digest
	Output string // digest
	Error  string // its class; "": it went well
	Tokens int64  // that the model took

	Workspace string // digest of the files after the step; "": not known
	Progress  bool   // something else says that it went on: a test passes, a task is done
	Wait      bool   // the call does nothing but wait; WaitsOnly tells
}

// DetectorConfig is what a Detector goes by.
type DetectorConfig struct {
	Ladders map[Sign]Ladder // nil: those of Level
	Level   policy.Level    // 0 is 1
	Window  int             // how many calls back a repetition counts; 0 is 40
	Waits   []string        // tools that do nothing but wait, beside those that WaitsOnly knows
}

// A Detector finds agents that are lost. It is a pure function of the steps it
// was shown: shown the journal of a run again, it is where it was. It is not
// safe for concurrent use.
//
// To look again is not to be lost. A call whose result is another than before
// counts anew; so does every call once the workspace is as it never was before,
// after a call that only waits, and when it comes back at ever longer intervals.
// Calls of one turn that are the same are one.
type Detector struct {
	ladders map[Sign]Ladder
	window  int
	waits   []string

	turn   int
	models bool // turns are known by answers of the model
	at     int  // how many calls there were

	calls  map[call]*seen
	inTurn map[call]bool // those of the turn so far
	errors map[failure]int

	pos    int                   // in recent
	recent [16]outcome           // a ring of the calls, for cycles
	filled int                   // how many of them count
	runs   [longestCycle + 1]int // for how many calls each was as the one so many before

	said      int  // texts since a call
	workspace bool // digests of it are known
	last      string
	known     map[string]bool // digests there were
	idleTurns int             // since progress
	waited    bool            // in this turn
	burnt     int64           // tokens since progress

	told map[told]Rung // what was said of it already
}

const (
	longestCycle = 6
	mostKnown    = 4096 // digests of the workspace, and so on, before memory is made free
)

type call struct{ name, input string }

type outcome struct {
	call
	output, err string
}

type failure struct{ name, class string }

type told struct {
	sign Sign
	what call
}

// A seen is what is known of one call.
type seen struct {
	output, err string
	n           int // with this result
	at          int // the number of the last one
	when        time.Time
	gap         time.Duration // between the last two
}

// NewDetector returns a Detector that has seen nothing.
func NewDetector(cfg DetectorConfig) *Detector {
	if cfg.Ladders == nil {
		cfg.Ladders = Ladders[levelOr(cfg.Level)]
	}
	d := &Detector{ladders: cfg.Ladders, window: or(cfg.Window, 40), waits: cfg.Waits, known: map[string]bool{}, told: map[told]Rung{}}
	d.forget()
	return d
}

// forget is what progress does: what was before says nothing about what comes.
func (d *Detector) forget() {
	d.calls, d.inTurn, d.errors = map[call]*seen{}, map[call]bool{}, map[failure]int{}
	d.told = map[told]Rung{}
	d.barrier()
	d.said, d.idleTurns, d.burnt = 0, 0, 0
}

// barrier keeps what was from being a part of a cycle.
func (d *Detector) barrier() {
	d.filled, d.runs = 0, [longestCycle + 1]int{}
}

// Step shows the Detector one step, and returns what it finds that it has not
// said before: each sign once for each rung.
func (d *Detector) Step(s Step) []Finding {
	if d.progress(s) {
		d.forget()
	}
	d.burnt += s.Tokens
	var found []Finding
	switch s.Kind {
	case ModelStep:
		found = d.model()
	case ToolStep:
		found = d.tool(s)
	case MessageStep:
		d.said++
		found = d.find(found, Monologue, call{}, d.said)
	}
	if d.workspace {
		found = d.find(found, Burn, call{}, int(d.burnt/1000))
	}
	return found
}

// progress reports whether a step shows that the run goes on.
func (d *Detector) progress(s Step) bool {
	if s.Workspace == "" || s.Workspace == d.last {
		return s.Progress
	}
	first := !d.workspace
	d.workspace, d.last = true, s.Workspace
	fresh := !d.known[s.Workspace]
	if len(d.known) >= mostKnown {
		clear(d.known)
	}
	d.known[s.Workspace] = true
	return s.Progress || fresh && !first
}

// model begins a turn.
func (d *Detector) model() []Finding {
	d.models = true
	return d.nextTurn()
}

func (d *Detector) nextTurn() []Finding {
	d.turn++
	clear(d.inTurn)
	if !d.waited {
		d.idleTurns++
	}
	d.waited = false
	if !d.workspace {
		return nil
	}
	return d.find(nil, Stalled, call{}, d.idleTurns)
}

func (d *Detector) tool(s Step) []Finding {
	var found []Finding
	if !d.models {
		found = d.nextTurn()
	}
	d.said = 0
	d.at++
	if s.Wait || slices.Contains(d.waits, s.Name) || waitTools[s.Name] {
		d.waited = true
		d.barrier()
		for _, c := range d.calls {
			c.n = 0 // what follows looks whether it was worth the wait
		}
		return found
	}
	c := call{s.Name, s.Input}
	if d.inTurn[c] {
		return found
	}
	d.inTurn[c] = true
	found = d.repeated(found, c, s)
	found = d.failed(found, s)
	return d.cycled(found, outcome{c, s.Output, s.Error})
}

func (d *Detector) repeated(found []Finding, c call, s Step) []Finding {
	if len(d.calls) >= mostKnown {
		for k, v := range d.calls {
			if d.at-v.at > d.window {
				delete(d.calls, k)
			}
		}
	}
	was := d.calls[c]
	if was == nil {
		was = &seen{}
		d.calls[c] = was
	}
	gap := s.At.Sub(was.when)
	switch {
	case was.n == 0 || d.at-was.at > d.window || was.output != s.Output || was.err != s.Error:
		*was = seen{output: s.Output, err: s.Error, n: 1}
		delete(d.told, told{Repeat, c})
	case was.backsOff(gap):
		was.gap = gap
	default:
		was.n, was.gap = was.n+1, gap
	}
	was.at, was.when = d.at, s.At
	return d.find(found, Repeat, c, was.n)
}

// backsOff reports whether a call comes back at longer intervals, as one does that polls
// something. Intervals between the answers of a model also vary, by less or within seconds.
func (c *seen) backsOff(gap time.Duration) bool {
	const least = 5 * time.Second
	return gap >= least && gap >= c.gap+c.gap/2 && c.gap > 0
}

func (d *Detector) failed(found []Finding, s Step) []Finding {
	if s.Error == "" {
		for f := range d.errors {
			if f.name == s.Name {
				delete(d.errors, f)
				delete(d.told, told{Errors, call{f.name, f.class}})
			}
		}
		return found
	}
	f := failure{s.Name, s.Error}
	if len(d.errors) >= mostKnown {
		clear(d.errors)
	}
	d.errors[f]++
	return d.find(found, Errors, call{f.name, f.class}, d.errors[f])
}

// cycled looks for a period of two to six calls.
func (d *Detector) cycled(found []Finding, o outcome) []Finding {
	const ring = len(d.recent)
	d.pos++
	now := d.pos % ring
	for p := 1; p <= longestCycle; p++ {
		if d.filled >= p && d.recent[((now-p)%ring+ring)%ring] == o {
			d.runs[p]++
		} else {
			d.runs[p] = 0
		}
	}
	d.recent[now] = o
	d.filled = min(d.filled+1, ring)
	for p := 2; p <= longestCycle; p++ {
		if d.runs[p] < p || d.shorter(p) {
			continue
		}
		rounds := d.runs[p]/p + 1
		return d.find(found, Cycle, call{}, rounds)
	}
	delete(d.told, told{sign: Cycle})
	return found
}

// shorter reports whether a cycle of p calls is one of fewer: the same call over
// and over is no cycle.
func (d *Detector) shorter(p int) bool {
	for q := 1; q < p; q++ {
		if p%q == 0 && d.runs[q] >= d.runs[p] {
			return true
		}
	}
	return false
}

// find adds what a count leads to, unless it was said before.
func (d *Detector) find(found []Finding, sign Sign, what call, n int) []Finding {
	ladder := d.ladders[sign]
	rung, key := ladder.rung(n), told{sign, what}
	if rung <= d.told[key] {
		return found
	}
	if len(d.told) >= mostKnown {
		clear(d.told)
	}
	d.told[key] = rung
	f := Finding{Sign: sign, Rung: rung, Count: n, Name: what.name}
	f.Text = f.text()
	return append(found, f)
}

// waitTools do nothing but wait, by their names.
var waitTools = map[string]bool{"sleep": true, "wait": true, "wait_for": true, "wait_for_event": true, "delay": true}

// WaitsOnly reports whether a call does nothing but wait: a tool that is known
// for it, or a shell that only sleeps.
func WaitsOnly(tool string, args json.RawMessage) bool {
	if waitTools[tool] {
		return true
	}
	if tool != "bash" && tool != "shell" {
		return false
	}
	line := ResourceOf(tool, args)
	words := strings.Fields(line)
	if len(words) == 0 || strings.ContainsAny(line, ";&|<>$`\\'\"(){}\n\r") {
		return false
	}
	return words[0] == "sleep" || words[0] == "wait"
}
