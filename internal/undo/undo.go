// Package undo takes back the steps of a work that failed half-way.
//
// Each step that acquires something pushes its inverse. If the work fails they
// run, newest first; once it has succeeded, Keep forgets them:
//
//	var u undo.Stack
//	defer func() { err = errors.Join(err, u.Run()) }()
//
//	dir, err := mount()
//	if err != nil {
//		return err
//	}
//	u.Push("unmount", func() error { return unmount(dir) })
//	…
//	u.Keep()
package undo

import (
	"errors"
	"fmt"
	"sync"
)

// A Stack is the inverses of what was done so far. Its zero value is empty and
// ready. It is safe for concurrent use, so that steps which do not depend on
// each other can be taken at once.
type Stack struct {
	mu sync.Mutex
	// +checklocks:mu
	steps []step // oldest first
}

type step struct {
	what string
	f    func() error
}

// Push adds f, which undoes the step just taken. What names it in errors:
// "unmount the volume".
func (s *Stack) Push(what string, f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, step{what, f})
}

// Run undoes everything, newest first, and forgets it. A step that fails does
// not keep the older ones from being undone.
func (s *Stack) Run() error {
	s.mu.Lock()
	steps := s.steps
	s.steps = nil
	s.mu.Unlock()

	var errs []error
	for i := len(steps) - 1; i >= 0; i-- {
		if err := steps[i].f(); err != nil {
			errs = append(errs, fmt.Errorf("undo: %s: %w", steps[i].what, err))
		}
	}
	return errors.Join(errs...)
}

// Keep forgets everything: what was done stays.
func (s *Stack) Keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = nil
}
