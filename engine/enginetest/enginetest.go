// Package enginetest is the contract of engine.Engine as tests.
//
// An engine's whole test is a call of Run. What is tested is what those who call
// capabilities can see; they are tried on the probe, a capability that does what its
// input says, which each engine's test writes in what that engine runs:
//
//	{:do "echo" …}     answers its input
//	{:do "fail"}       fails, and says "on purpose"
//	{:do "garble"}     answers what cannot be read
//	{:do "flood"}      answers without end
//	{:do "spin"}       computes without end
//	{:do "wait"}       waits without end, and computes nothing
//	{:do "eat"}        takes memory without end
//	{:do "remember"}   counts in its memory how often it was called: {"count" n}
//	{:do "note"}       makes a file a byte longer: {"count" how long it is}
//	{:do "fill" :n n}  writes n megabytes to a file, and fails if it cannot
//	{:do "touch"}      tries to write the file "file" of its first mount: {"errno" n}
//	{:do "call"}       calls test.other with {"x" 1}, and answers what that answers
package enginetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/engine"
	"glasshouse/manifest"
	"glasshouse/rtfs/form"
)

// Options is what a run of the suite has to know of the engine.
type Options struct {
	// Install installs the probe as change wants its manifest. Whenever it is
	// called it is another version of the same capability.
	Install func(t *testing.T, change func(c *manifest.Capability)) *engine.Installed

	// Without names clauses that are left out, which another run checks and this one
	// would only repeat.
	Without []string

	// Lacks names clauses of the contract that this engine cannot hold, each with
	// the reason. A clause is the name of a test below Run's. One that is named and
	// does not exist fails the run, so that no excuse outlives its cause.
	Lacks map[string]string
}

// Run checks the engine that open returns against the contract documented on
// engine.Engine. open is called once for each daemon that a clause has: two calls
// with the same t are two daemons one after the other, which find each other's files.
func Run(t *testing.T, open func(t *testing.T) engine.Engine, opts Options) {
	s := &suite{open: open, opts: opts}
	s.clause(t, "WhatGoesInComesOut", s.whatGoesInComesOut)
	s.clause(t, "AFailureSaysWhatItIs", s.aFailureSaysWhatItIs)
	s.clause(t, "AnAnswerThatCannotBeRead", s.anAnswerThatCannotBeRead)
	s.clause(t, "AnAnswerWithoutEnd", s.anAnswerWithoutEnd)
	s.clause(t, "ATimeoutKills", s.aTimeoutKills)
	s.clause(t, "WaitingIsKilledToo", s.waitingIsKilledToo)
	s.clause(t, "TheCallerGivesUp", s.theCallerGivesUp)
	s.clause(t, "MemoryRunsOut", s.memoryRunsOut)
	s.clause(t, "FiftyAtOnce", s.fiftyAtOnce)
	s.clause(t, "NothingIsLeftInMemory", s.nothingIsLeftInMemory)
	s.clause(t, "EphemeralFilesAreGone", s.ephemeralFilesAreGone)
	s.clause(t, "SessionFilesAreTheSessions", s.sessionFilesAreTheSessions)
	s.clause(t, "PersistentFilesStay", s.persistentFilesStay)
	s.clause(t, "NoMoreThanTheQuota", s.noMoreThanTheQuota)
	s.clause(t, "AMountIsShownOnly", s.aMountIsShownOnly)
	s.clause(t, "CallingOthers", s.callingOthers)
	s.clause(t, "ANewVersion", s.aNewVersion)
	s.clause(t, "WarmIsNoDifferent", s.warmIsNoDifferent)
	s.clause(t, "CloseLeavesNothing", s.closeLeavesNothing)

	if filtered() {
		return // not every clause has had its turn
	}
	for name, reason := range opts.Lacks {
		if !slices.Contains(s.clauses, name) {
			t.Errorf("Options.Lacks excuses %q (%s), which is no clause of the contract", name, reason)
		}
	}
}

// A suite is one run of the contract.
type suite struct {
	open    func(t *testing.T) engine.Engine
	opts    Options
	clauses []string
}

// clause runs one clause of the contract, unless the engine lacks what it takes.
func (s *suite) clause(t *testing.T, name string, f func(t *testing.T)) {
	s.clauses = append(s.clauses, name)
	if slices.Contains(s.opts.Without, name) {
		return
	}
	t.Run(name, func(t *testing.T) {
		if reason, ok := s.opts.Lacks[name]; ok {
			t.Logf("the engine lacks this: %s", reason)
			return
		}
		f(t)
	})
}

// patience is how long anything may take that is to come to its end.
const patience = time.Minute

// A caller calls one capability in one engine.
type caller struct {
	t       *testing.T
	engine  engine.Engine
	probe   *engine.Installed
	session string
	host    engine.Host
}

// caller opens an engine with the probe in it.
func (s *suite) caller(t *testing.T, change func(c *manifest.Capability)) *caller {
	t.Helper()
	e := s.open(t)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	if change == nil {
		change = func(*manifest.Capability) {}
	}
	return (&caller{t: t, engine: e}).with(s.opts.Install(t, change))
}

// with returns a caller of another capability in the same engine.
func (c *caller) with(probe *engine.Installed) *caller {
	c.t.Helper()
	if err := c.engine.Prepare(c.t.Context(), probe); err != nil {
		c.t.Fatalf("Prepare: %v", err)
	}
	return &caller{t: c.t, engine: c.engine, probe: probe}
}

// in returns a caller in a session.
func (c *caller) in(session string) *caller {
	other := *c
	other.session = session
	return &other
}

func (c *caller) request(do string, more ...form.Value) *engine.Call {
	input := form.NewMap(append([]form.Value{form.Keyword("do"), do}, more...)...)
	return &engine.Call{ID: "c-1", Capability: c.probe, Input: input, Session: c.session, Host: c.host}
}

func (c *caller) call(do string, more ...form.Value) (engine.Result, error) {
	return c.engine.Call(c.t.Context(), c.request(do, more...))
}

// ask calls the probe, which must answer a map.
func (c *caller) ask(do string, more ...form.Value) *form.Map {
	c.t.Helper()
	r, err := c.call(do, more...)
	if err != nil {
		c.t.Fatalf("%s: %v", do, err)
	}
	m, ok := r.Output.(*form.Map)
	if !ok {
		c.t.Fatalf("%s: answered %s, want a map", do, form.Text(r.Output))
	}
	return m
}

// count is the number that the probe answers.
func (c *caller) count(do string, more ...form.Value) int64 {
	c.t.Helper()
	return number(c.t, c.ask(do, more...), "count")
}

func number(t *testing.T, m *form.Map, name string) int64 {
	t.Helper()
	n, ok := field(m, name).(int64)
	if !ok {
		t.Fatalf("there is no number %s in %s", name, form.Text(m))
	}
	return n
}

// field is that of a name, which is a string where no type says that it is a keyword.
func field(m *form.Map, name string) form.Value {
	if v, ok := m.Get(name); ok {
		return v
	}
	v, _ := m.Get(form.Keyword(name))
	return v
}

// fails calls the probe, which must fail in this way.
func (c *caller) fails(want engine.Kind, do string, more ...form.Value) *engine.Failure {
	c.t.Helper()
	_, err := c.call(do, more...)
	return c.is(want, do, err)
}

func (c *caller) is(want engine.Kind, do string, err error) *engine.Failure {
	c.t.Helper()
	f, ok := err.(*engine.Failure)
	if !ok || f.Kind != want {
		c.t.Fatalf("%s: %v, want a failure of kind %s", do, err, want)
	}
	if strings.TrimSpace(f.Reason) == "" {
		c.t.Errorf("%s: it does not say why", do)
	}
	return f
}

// works fails the test if the probe does not answer as ever.
func (c *caller) works(when string) {
	c.t.Helper()
	if r, err := c.call("echo"); err != nil {
		c.t.Errorf("%s: %v", when, err)
	} else if m, ok := r.Output.(*form.Map); !ok || field(m, "do") != form.Value("echo") {
		c.t.Errorf("%s: it answered %s", when, form.Text(r.Output))
	}
}
