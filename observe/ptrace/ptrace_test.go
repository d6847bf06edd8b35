package ptrace_test

import (
	"testing"

	"glasshouse/event"
	"glasshouse/observe/ptrace"
)

func TestTheHostCanTrace(t *testing.T) {
	src := &ptrace.Source{}
	if err := src.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestEveryCallIsRecordedOnce(t *testing.T) {
	j := newJail(t)
	l, w := watch(t, j, event.Selection{})
	j.sh("$SELF getppid 5000")
	drain(t, w)
	if got := len(l.all(called("getppid"))); got < 5000 || got > 5002 {
		t.Errorf("%d records of 5000 calls", got)
	}
	t.Log(l)
}
