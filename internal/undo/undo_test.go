package undo_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/internal/undo"
)

func TestRunUndoesNewestFirstAndOnce(t *testing.T) {
	var u undo.Stack
	var got []string
	for _, what := range []string{"disk", "mount", "cgroup"} {
		u.Push(what, func() error { got = append(got, what); return nil })
	}
	for range 2 {
		if err := u.Run(); err != nil {
			t.Errorf("Run = %v", err)
		}
	}
	if diff := cmp.Diff([]string{"cgroup", "mount", "disk"}, got); diff != "" {
		t.Errorf("undone (-want +got):\n%s", diff)
	}
}

func TestFailedStepDoesNotStopOthers(t *testing.T) {
	var u undo.Stack
	busy := errors.New("busy")
	undone := false
	u.Push("remove the directory", func() error { undone = true; return nil })
	u.Push("unmount", func() error { return busy })

	err := u.Run()
	if !errors.Is(err, busy) || !strings.Contains(err.Error(), "unmount") {
		t.Errorf("Run = %v, want the error with the step's name", err)
	}
	if !undone {
		t.Error("the older step was not undone")
	}
}

func TestKeepDiscardsSteps(t *testing.T) {
	var u undo.Stack
	u.Push("x", func() error { t.Error("undone after Keep"); return nil })
	u.Keep()
	if err := u.Run(); err != nil {
		t.Error(err)
	}
}

func TestConcurrentPush(t *testing.T) {
	var u undo.Stack
	var wg sync.WaitGroup
	n := 0
	for range 100 {
		wg.Go(func() { u.Push("count", func() error { n++; return nil }) })
	}
	wg.Wait()
	if err := u.Run(); err != nil || n != 100 {
		t.Errorf("Run = %v after %d of 100 steps", err, n)
	}
}
