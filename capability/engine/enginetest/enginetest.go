// Package enginetest tests implementations of engine.Engine against its contract.
//
// The test of an engine calls Run. The contract covers behaviour that callers of capabilities
// can observe. It is tested with the probe, a capability that executes the command in its
// input. The test of each engine provides the probe for its runtime. The commands are:
//
//	{:do "echo" …}     return the input
//	{:do "fail"}       fail with the message "on purpose"
//	{:do "garble"}     return an output that cannot be decoded
//	{:do "flood"}      write an endless output
//	{:do "spin"}       compute endlessly
//	{:do "wait"}       block endlessly without computing
//	{:do "eat"}        allocate memory endlessly
//	{:do "remember"}   count the calls in memory: {"count" n}
//	{:do "note"}       append a byte to a file: {"count" size of the file}
//	{:do "fill" :n n}  write n megabytes to a file; fail if a write fails
//	{:do "touch"}      write to the file "file" of the first mount: {"errno" n}
//	{:do "call"}       call test.other with {"x" 1} and return its output
package enginetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
)

// Options describes the engine under test.
type Options struct {
	// Install installs the probe with the manifest that change has modified. Each call
	// installs a new version of the same capability.
	Install func(t *testing.T, change func(c *manifest.Capability)) *engine.Installed

	// Without names clauses that are skipped because another run checks them for the same
	// engine.
	Without []string

	// Lacks names clauses of the contract that the engine cannot satisfy, with the reason.
	// A clause is the name of a subtest of Run. A name that does not exist fails the test,
	// so that obsolete exceptions are found.
	Lacks map[string]string
}

// Run checks the engine that open returns against the contract of engine.Engine. open is
// called for each start of a daemon in a clause. Two calls with the same t represent a restart
// of the daemon, so the second engine must use the files of the first.
func Run(t *testing.T, open func(t *testing.T) engine.Engine, opts Options) {
	s := &suite{open: open, opts: opts}
	s.clause(t, "EncodesInputAndOutput", s.encodesInputAndOutput)
	s.clause(t, "ReportsFailure", s.reportsFailure)
	s.clause(t, "RejectsInvalidOutput", s.rejectsInvalidOutput)
	s.clause(t, "LimitsOutput", s.limitsOutput)
	s.clause(t, "TimeoutKillsBusyCall", s.timeoutKillsBusyCall)
	s.clause(t, "TimeoutKillsWaitingCall", s.timeoutKillsWaitingCall)
	s.clause(t, "CallerCancels", s.callerCancels)
	s.clause(t, "MemoryLimit", s.memoryLimit)
	s.clause(t, "FiftyConcurrentCalls", s.fiftyConcurrentCalls)
	s.clause(t, "CallsShareNoMemory", s.callsShareNoMemory)
	s.clause(t, "EphemeralFilesAreRemoved", s.ephemeralFilesAreRemoved)
	s.clause(t, "SessionFiles", s.sessionFiles)
	s.clause(t, "PersistentFiles", s.persistentFiles)
	s.clause(t, "DiskQuota", s.diskQuota)
	s.clause(t, "Mounts", s.mounts)
	s.clause(t, "NestedCalls", s.nestedCalls)
	s.clause(t, "NewVersion", s.newVersion)
	s.clause(t, "WarmCalls", s.warmCalls)
	s.clause(t, "CloseReleasesResources", s.closeReleasesResources)

	if filtered() {
		return // -run may have skipped clauses
	}
	for name, reason := range opts.Lacks {
		if !slices.Contains(s.clauses, name) {
			t.Errorf("Options.Lacks names %q (%s), which is not a clause of the contract", name, reason)
		}
	}
}

// A suite is one run of the contract.
type suite struct {
	open    func(t *testing.T) engine.Engine
	opts    Options
	clauses []string
}

// clause runs one clause of the contract, unless it is in Options.Without or Options.Lacks.
func (s *suite) clause(t *testing.T, name string, f func(t *testing.T)) {
	s.clauses = append(s.clauses, name)
	if slices.Contains(s.opts.Without, name) {
		return
	}
	t.Run(name, func(t *testing.T) {
		if reason, ok := s.opts.Lacks[name]; ok {
			t.Logf("not supported by the engine: %s", reason)
			return
		}
		f(t)
	})
}

// patience is the timeout of operations that must end.
const patience = time.Minute

// A caller calls one version of the probe in one engine.
type caller struct {
	t       *testing.T
	engine  engine.Engine
	probe   *engine.Installed
	session string
	host    engine.Host
}

// caller opens an engine and installs the probe.
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

// ask calls the probe, which must return a map.
func (c *caller) ask(do string, more ...form.Value) *form.Map {
	c.t.Helper()
	r, err := c.call(do, more...)
	if err != nil {
		c.t.Fatalf("%s: %v", do, err)
	}
	m, ok := r.Output.(*form.Map)
	if !ok {
		c.t.Fatalf("%s: output = %s, want a map", do, form.Text(r.Output))
	}
	return m
}

// count calls the probe and returns the field count of its output.
func (c *caller) count(do string, more ...form.Value) int64 {
	c.t.Helper()
	return number(c.t, c.ask(do, more...), "count")
}

func number(t *testing.T, m *form.Map, name string) int64 {
	t.Helper()
	n, ok := field(m, name).(int64)
	if !ok {
		t.Fatalf("no integer %s in %s", name, form.Text(m))
	}
	return n
}

// field returns a field of an output. Its key is a string, or a keyword if the output has a
// declared type.
func field(m *form.Map, name string) form.Value {
	if v, ok := m.Get(name); ok {
		return v
	}
	v, _ := m.Get(form.Keyword(name))
	return v
}

// fails calls the probe, which must fail with a Failure of kind want.
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
		c.t.Errorf("%s: the failure has no reason", do)
	}
	return f
}

// works fails the test unless the probe succeeds.
func (c *caller) works(when string) {
	c.t.Helper()
	if r, err := c.call("echo"); err != nil {
		c.t.Errorf("%s: %v", when, err)
	} else if m, ok := r.Output.(*form.Map); !ok || field(m, "do") != form.Value("echo") {
		c.t.Errorf("%s: output = %s", when, form.Text(r.Output))
	}
}
