package report

import "glasshouse/observe/event"

// A Fold exposes a report under construction.
type Fold struct{ f *fold }

func NewFold() Fold               { return Fold{newFold(Options{})} }
func (f Fold) Add(e *event.Event) { f.f.add(e) }
func (f Fold) Report() *Report    { return f.f.report() }

// EveryForTest sets the number of events between frames.
func (p *Past) EveryForTest(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.procStates.interval, p.files.interval = n, n
}

// FramesForTest returns the number and the total weight of the file frames.
func (p *Past) FramesForTest() (n, weight int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.files.list {
		weight += f.weight
	}
	return len(p.files.list), weight
}

// Literal exports literal.
var Literal = literal
