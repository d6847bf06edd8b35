// Package backendtest is the conformance suite of jail.Backend.
//
// To test a backend, call Run. The suite tests what the users of a jail and of its host can
// observe: the view of a command inside, leftovers on the host, and file ownership. It does not
// test how a backend achieves it.
package backendtest

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/jail"
)

// Options describes the backend for a run of the suite.
type Options struct {
	Runtime string // runtime in each Plan

	// IDs overrides the host id range that the suite gives to each jail.
	IDs *jail.IDRange

	// Differs names clauses of the contract that this backend may violate, each with the reason.
	// A clause is the name of a test below Run's, as go test prints it: "Attacks/mount-proc". A
	// name that does not exist fails the run, so that no exception outlives its cause.
	Differs map[string]string

	// Checkpoint restricts the run to the clauses of jail.Checkpointer, for a backend whose
	// other clauses another run checks.
	Checkpoint bool

	// Without excludes clauses and their subtests, because another run checks them.
	Without []string
}

// Thorough enables long and repetitive tests, such as the whole contract with each backend in
// each configuration.
var Thorough = os.Getenv("GLASSHOUSE_TEST") == "all"

// moments returns at how many moments of an operation the suite kills something: n, a third of
// it, or with -short a sixth.
func moments(n int) int {
	switch {
	case Thorough:
		return n
	case testing.Short():
		return n / 6
	}
	return n / 3
}

// Repeats skips a test with -short, because it checks with another program or user what other
// tests check as well.
func Repeats(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("repeats other tests: runs without -short")
	}
}

// Run checks the backend that open returns against the contract documented on jail.Backend. Run
// calls open once for each daemon that a scenario simulates. A later daemon must find the jails
// that an earlier one has left running.
func Run(t *testing.T, open func(t *testing.T) jail.Backend, opts Options) {
	if childMakes(t, open) {
		return
	}
	b := open(t)
	switch err := b.Probe(t.Context()); {
	case errors.Is(err, fault.Unsupported):
		t.Skipf("%v (remedy: %s)", err, fault.RemedyOf(err))
	case err != nil:
		t.Fatalf("Probe was inconclusive: %v", err)
	}
	s := &suite{open: open, backend: b, opts: opts, lower: Rootfs(t), init: Init(t)}
	for name, reason := range b.Lacks() {
		t.Logf("lacks %s: %s", name, reason)
	}

	if opts.Checkpoint {
		s.clause(t, "Checkpoint", s.checkpoint)
		return
	}
	s.clause(t, "CreatedJailAnswers", s.createdJailAnswers)
	s.clause(t, "Inside", s.inside)
	s.clause(t, "Owners", s.owners)
	s.clause(t, "WritesLandInTheUpper", s.writesLandInTheUpper)
	s.clause(t, "Workspace", s.workspace)
	s.clause(t, "Mounts", s.mounts)
	s.clause(t, "FreezeAndThaw", s.freezeAndThaw)
	s.clause(t, "KillLeavesNoProcess", s.killLeavesNoProcess)
	s.clause(t, "DoneClosesWhenInitDies", s.doneClosesWhenInitDies)
	s.clause(t, "OpenFindsTheJailAgain", s.openFindsTheJailAgain)
	s.clause(t, "CleanAfterEveryDeath", s.cleanAfterEveryDeath)
	s.clause(t, "CleanInTheMiddleOfCreate", s.cleanInTheMiddleOfCreate)
	s.clause(t, "FailedCreateLeavesNothing", s.failedCreateLeavesNothing)
	s.clause(t, "WhatItLacksItRefuses", s.whatItLacksItRefuses)
	s.clause(t, "LimitsChange", s.limitsChange)
	s.clause(t, "StoppedJailStartsAgain", s.stoppedJailStartsAgain)
	s.clause(t, "MountShowsAStoppedJail", s.mountShowsAStoppedJail)
	s.clause(t, "Secrets", s.secrets)
	s.clause(t, "Changes", s.changesTellWhatTheJailDid)
	s.clause(t, "Limits", s.limits)
	s.clause(t, "StatsArePlausible", s.statsArePlausible)
	s.clause(t, "TwoJailsStayApart", s.twoJailsStayApart)
	s.clause(t, "TwentyAtOnce", s.twentyAtOnce)
	s.clause(t, "Attacks", s.attacks)
	s.clause(t, "Checkpoint", s.checkpoint)

	if filtered() {
		return // not all clauses have run
	}
	for name, reason := range opts.Differs {
		if !slices.Contains(s.clauses, name) && !slices.ContainsFunc(opts.Without, func(left string) bool { return strings.HasPrefix(name+"/", left+"/") }) {
			t.Errorf("Options.Differs excuses %q (%s), which is no clause of the contract", name, reason)
		}
	}
}

// A suite is one run of the contract.
type suite struct {
	open    func(t *testing.T) jail.Backend
	backend jail.Backend
	opts    Options
	lower   string
	init    string
	clauses []string // the clauses that ran, relative to the name of Run's test
	prefix  string

	restored bool // new jails are created by Restore
}

// clause runs one clause of the contract, unless the backend may differ.
func (s *suite) clause(t *testing.T, name string, f func(t *testing.T)) {
	outer := s.prefix
	full := outer + name
	if slices.Contains(s.opts.Without, full) {
		return
	}
	s.clauses = append(s.clauses, full)
	t.Run(name, func(t *testing.T) {
		if reason, ok := s.opts.Differs[contract(full)]; ok {
			t.Skipf("allowed to differ: %s", reason)
		}
		s.prefix = full + "/"
		defer func() { s.prefix = outer }()
		f(t)
	})
}

// lacks skips the test if the backend reports that it lacks a feature.
func (s *suite) lacks(t *testing.T, thing string) {
	t.Helper()
	if reason, ok := s.backend.Lacks()[thing]; ok {
		t.Skipf("lacks %s: %s", thing, reason)
	}
}
