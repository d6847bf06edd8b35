// Package undo rolls back the completed steps of an operation that failed.
//
// Each step that acquires a resource pushes its inverse. If the operation fails, Run calls the
// inverses, newest first. After success, Keep discards them:
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

// A Stack holds the inverses of completed steps. The zero value is empty and ready to use. It is
// safe for concurrent use, so independent steps can run concurrently.
type Stack struct {
	mu sync.Mutex
	// +checklocks:mu
	steps []step // oldest first
}

type step struct {
	what string
	f    func() error
}

// Push adds f, the inverse of the last step. what describes f in errors, such as "unmount the
// volume".
func (s *Stack) Push(what string, f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, step{what, f})
}

// Run calls all functions, newest first, and removes them from the stack. If one fails, Run still
// calls the others.
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

// Keep removes all functions from the stack without calling them.
func (s *Stack) Keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = nil
}
