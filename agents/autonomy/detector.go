package autonomy

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"glasshouse/policy"
)

// A StepKind is the kind of a step of a run.
type StepKind string

const (
	ModelStep   StepKind = "model"   // the model answered; starts a turn
	ToolStep    StepKind = "tool"    // a tool call has returned
	MessageStep StepKind = "message" // the agent wrote a message
)

// A Step is one step of a run's step log.
type Step struct {
	At     time.Time
	Kind   StepKind
	Name   string // name of the tool
	Input  string // digest
	Output string // digest
	Error  string // error class; "": success
	Tokens int64  // tokens used by the model

	Workspace string // digest of the files after the step; "": unknown
	Progress  bool   // other evidence of progress: a test passes, a task is done
	Wait      bool   // the call only waits; see WaitsOnly
}

// DetectorConfig is the configuration of a Detector.
type DetectorConfig struct {
	Ladders map[Sign]Ladder // nil: the ladders of Level
	Level   policy.Level    // 0: 1
	Window  int             // number of calls within which a repetition counts; 0: 40
	Waits   []string        // tools that only wait, in addition to those of WaitsOnly
}

// A Detector detects agents that loop or make no progress. Its state depends only on the
// steps, so replaying the step log of a run restores it. It is not safe for concurrent use.
//
// Polling is not a loop. The count of a call restarts when its result changes, when the
// workspace reaches a new state, and after a call that only waits. Calls at increasing
// intervals are not counted. Equal calls within one turn count once.
type Detector struct {
	ladders map[Sign]Ladder
	window  int
	waits   []string

	turn          int
	hasModelSteps bool // there are model steps, which start turns
	callCount     int  // number of calls

	calls  map[call]*callStats
	inTurn map[call]bool // calls of the current turn
	errors map[failure]int

	pos    int               // index in recent
	recent [16]outcome       // ring buffer of calls, for cycles
	filled int               // valid entries in recent
	runs   [maxCycle + 1]int // runs[p]: number of consecutive calls equal to the one p before

	texts      int  // messages since the last call
	workspace  bool // workspace digests are available
	last       string
	digests    map[string]bool // workspace digests seen
	idleTurns  int             // turns since progress
	turnWaited bool            // the current turn had a waiting call
	tokens     int64           // tokens since progress

	reported map[reportKey]Rung // highest rung reported
}

const (
	maxCycle   = 6
	maxEntries = 4096 // entries per map, which is pruned when full
)

type call struct{ name, input string }

type outcome struct {
	call
	output, err string
}

type failure struct{ name, class string }

type reportKey struct {
	sign Sign
	call call
}

// A callStats holds the repetitions of one call.
type callStats struct {
	output, err string
	count       int // repetitions with this result
	index       int // index of the last call
	last        time.Time
	gap         time.Duration // between the last two calls
}

// NewDetector returns a Detector without steps.
func NewDetector(cfg DetectorConfig) *Detector {
	if cfg.Ladders == nil {
		cfg.Ladders = Ladders[validLevel(cfg.Level)]
	}
	d := &Detector{ladders: cfg.Ladders, window: positiveOr(cfg.Window, 40), waits: cfg.Waits, digests: map[string]bool{}, reported: map[reportKey]Rung{}}
	d.reset()
	return d
}

// reset clears the counts after progress.
func (d *Detector) reset() {
	d.calls, d.inTurn, d.errors = map[call]*callStats{}, map[call]bool{}, map[failure]int{}
	d.reported = map[reportKey]Rung{}
	d.resetCycles()
	d.texts, d.idleTurns, d.tokens = 0, 0, 0
}

// resetCycles keeps earlier calls from being part of a cycle.
func (d *Detector) resetCycles() {
	d.filled, d.runs = 0, [maxCycle + 1]int{}
}

// Step adds a step and returns new findings. Each sign is reported once per rung.
func (d *Detector) Step(s Step) []Finding {
	if d.progress(s) {
		d.reset()
	}
	d.tokens += s.Tokens
	var found []Finding
	switch s.Kind {
	case ModelStep:
		found = d.model()
	case ToolStep:
		found = d.tool(s)
	case MessageStep:
		d.texts++
		found = d.report(found, Monologue, call{}, d.texts)
	}
	if d.workspace {
		found = d.report(found, Burn, call{}, int(d.tokens/1000))
	}
	return found
}

// progress reports whether a step shows progress.
func (d *Detector) progress(s Step) bool {
	if s.Workspace == "" || s.Workspace == d.last {
		return s.Progress
	}
	first := !d.workspace
	d.workspace, d.last = true, s.Workspace
	isNew := !d.digests[s.Workspace]
	if len(d.digests) >= maxEntries {
		clear(d.digests)
	}
	d.digests[s.Workspace] = true
	return s.Progress || isNew && !first
}

// model starts a turn.
func (d *Detector) model() []Finding {
	d.hasModelSteps = true
	return d.nextTurn()
}

func (d *Detector) nextTurn() []Finding {
	d.turn++
	clear(d.inTurn)
	if !d.turnWaited {
		d.idleTurns++
	}
	d.turnWaited = false
	if !d.workspace {
		return nil
	}
	return d.report(nil, Stalled, call{}, d.idleTurns)
}

func (d *Detector) tool(s Step) []Finding {
	var found []Finding
	if !d.hasModelSteps {
		found = d.nextTurn()
	}
	d.texts = 0
	d.callCount++
	if s.Wait || slices.Contains(d.waits, s.Name) || waitTools[s.Name] {
		d.turnWaited = true
		d.resetCycles()
		for _, c := range d.calls {
			c.count = 0 // the next call polls after the wait
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
	if len(d.calls) >= maxEntries {
		for k, v := range d.calls {
			if d.callCount-v.index > d.window {
				delete(d.calls, k)
			}
		}
	}
	stats := d.calls[c]
	if stats == nil {
		stats = &callStats{}
		d.calls[c] = stats
	}
	gap := s.At.Sub(stats.last)
	switch {
	case stats.count == 0 || d.callCount-stats.index > d.window || stats.output != s.Output || stats.err != s.Error:
		*stats = callStats{output: s.Output, err: s.Error, count: 1}
		delete(d.reported, reportKey{Repeat, c})
	case stats.backsOff(gap):
		stats.gap = gap
	default:
		stats.count, stats.gap = stats.count+1, gap
	}
	stats.index, stats.last = d.callCount, s.At
	return d.report(found, Repeat, c, stats.count)
}

// backsOff reports whether a call is repeated at increasing intervals, as a poll with backoff
// is. The minimum excludes the variation between responses of a model.
func (c *callStats) backsOff(gap time.Duration) bool {
	const least = 5 * time.Second
	return gap >= least && gap >= c.gap+c.gap/2 && c.gap > 0
}

func (d *Detector) failed(found []Finding, s Step) []Finding {
	if s.Error == "" {
		for f := range d.errors {
			if f.name == s.Name {
				delete(d.errors, f)
				delete(d.reported, reportKey{Errors, call{f.name, f.class}})
			}
		}
		return found
	}
	f := failure{s.Name, s.Error}
	if len(d.errors) >= maxEntries {
		clear(d.errors)
	}
	d.errors[f]++
	return d.report(found, Errors, call{f.name, f.class}, d.errors[f])
}

// cycled detects cycles with a period of two to six calls.
func (d *Detector) cycled(found []Finding, o outcome) []Finding {
	const ring = len(d.recent)
	d.pos++
	now := d.pos % ring
	for p := 1; p <= maxCycle; p++ {
		if d.filled >= p && d.recent[((now-p)%ring+ring)%ring] == o {
			d.runs[p]++
		} else {
			d.runs[p] = 0
		}
	}
	d.recent[now] = o
	d.filled = min(d.filled+1, ring)
	for p := 2; p <= maxCycle; p++ {
		if d.runs[p] < p || d.hasShorterPeriod(p) {
			continue
		}
		rounds := d.runs[p]/p + 1
		return d.report(found, Cycle, call{}, rounds)
	}
	delete(d.reported, reportKey{sign: Cycle})
	return found
}

// hasShorterPeriod reports whether a cycle of p calls consists of a shorter one. A repeated
// single call is not a cycle.
func (d *Detector) hasShorterPeriod(p int) bool {
	for q := 1; q < p; q++ {
		if p%q == 0 && d.runs[q] >= d.runs[p] {
			return true
		}
	}
	return false
}

// report adds a finding for a count, unless its rung was reported.
func (d *Detector) report(found []Finding, sign Sign, what call, n int) []Finding {
	ladder := d.ladders[sign]
	rung, key := ladder.rung(n), reportKey{sign, what}
	if rung <= d.reported[key] {
		return found
	}
	if len(d.reported) >= maxEntries {
		clear(d.reported)
	}
	d.reported[key] = rung
	f := Finding{Sign: sign, Rung: rung, Count: n, Name: what.name}
	f.Text = f.text()
	return append(found, f)
}

// waitTools are tools that only wait.
var waitTools = map[string]bool{"sleep": true, "wait": true, "wait_for": true, "wait_for_event": true, "delay": true}

// WaitsOnly reports whether a call only waits: a tool of waitTools, or a shell that only
// sleeps.
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
