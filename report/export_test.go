package report

import "glasshouse/event"

// A Fold is a report in the making, to look at what it holds.
type Fold struct{ f *fold }

func NewFold() Fold               { return Fold{newFold(Options{})} }
func (f Fold) Add(e *event.Event) { f.f.add(e) }
func (f Fold) Report() *Report    { return f.f.report() }

// EveryForTest has a past keep frames so often.
func (p *Past) EveryForTest(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scenes.every, p.files.every = n, n
}

// FramesForTest is how many frames of files are kept, and what they weigh.
func (p *Past) FramesForTest() (n, weight int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.files.list {
		weight += f.weight
	}
	return len(p.files.list), weight
}

// Literal is literal.
var Literal = literal
