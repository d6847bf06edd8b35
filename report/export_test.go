package report

import "glasshouse/event"

// A Fold is a report in the making, to look at what it holds.
type Fold struct{ f *fold }

func NewFold() Fold               { return Fold{newFold(Options{})} }
func (f Fold) Add(e *event.Event) { f.f.add(e) }
func (f Fold) Report() *Report    { return f.f.report() }
