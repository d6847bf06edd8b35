package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// A keeper sets up state and returns a function that checks it later. copied reports that the
// check runs in another jail than the set-up.
type keeper func(args []string) (check func(copied bool) error, err error)

// keepDir has the files through which keepers and the suite communicate.
const keepDir = "/tmp/keep"

// await waits until a file has a complete line and returns it.
func await(name string) (string, error) {
	for {
		b, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if line, ok := strings.CutSuffix(string(b), "\n"); ok {
			return line, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// same returns an error with the difference of two texts.
func same(was, is string) error {
	if was == is {
		return nil
	}
	var diff []string
	before, after := strings.Split(was, "\n"), strings.Split(is, "\n")
	for i := range max(len(before), len(after)) {
		b, a := "", ""
		if i < len(before) {
			b = before[i]
		}
		if i < len(after) {
			a = after[i]
		}
		if a != b {
			diff = append(diff, fmt.Sprintf("was %q, is %q", b, a))
		}
	}
	return errors.New(strings.Join(diff, "; "))
}

// want returns an error unless got equals want.
func want[T comparable](what string, got, want T) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("%s is %v, want %v", what, got, want)
}

// within returns an error if f takes longer than d.
func within(d time.Duration, what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		return fmt.Errorf("%s: timeout after %v", what, d)
	}
}
