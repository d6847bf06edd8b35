// Package killtest runs a part of a test in a separate process, so that the test can kill it.
package killtest

import (
	"bufio"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"testing"
	"time"
)

// variable marks a process that Start has started.
const variable = "GLASSHOUSE_KILLTEST"

// Main runs the tests, or program in a process that Start has started. It is called by TestMain.
func Main(m *testing.M, program func(args []string) error) {
	if !Started() {
		os.Exit(m.Run())
	}
	os.Unsetenv(variable)
	if err := program(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Started reports whether Start has started this process.
func Started() bool { return os.Getenv(variable) != "" }

// A Process runs the program that the test binary passes to Main.
type Process struct {
	t     testing.TB
	cmd   *exec.Cmd
	lines *bufio.Scanner
	read  int
}

// Start starts the program with arguments. The process is killed at the end of the test at the
// latest.
func Start(t testing.TB, args ...any) *Process {
	t.Helper()
	p := &Process{t: t, cmd: exec.Command("/proc/self/exe")}
	for _, a := range args {
		p.cmd.Args = append(p.cmd.Args, fmt.Sprint(a))
	}
	p.cmd.Env = append(os.Environ(), variable+"=1")
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	p.lines = bufio.NewScanner(out)
	return p
}

// Lines yields the lines of the program's output that have not been read, until the process ends.
// After a kill these are the lines that are left in the pipe; the last one can be incomplete.
func (p *Process) Lines() iter.Seq[string] {
	return func(yield func(string) bool) {
		for p.lines.Scan() {
			p.read++
			if !yield(p.lines.Text()) {
				return
			}
		}
	}
}

// Kill kills the process without waiting for its end.
func (p *Process) Kill() { p.cmd.Process.Kill() }

// End waits for the end of the process, and reports whether it was killed and otherwise why it
// failed.
func (p *Process) End() (killed bool, err error) {
	for range p.Lines() {
	}
	err = p.cmd.Wait()
	return !p.cmd.ProcessState.Exited(), err
}

// Wait waits for the end of the process, and fails the test unless it was killed.
func (p *Process) Wait() {
	p.t.Helper()
	if killed, err := p.End(); !killed {
		p.t.Fatalf("the process ended by itself after %d lines: %v", p.read, err)
	}
}

// KillAfter passes each line of the output to see, kills the process when some time has passed
// after line n, and waits for its end.
func (p *Process) KillAfter(n int, delay time.Duration, see func(line string)) {
	p.t.Helper()
	for line := range p.Lines() {
		see(line)
		if p.read == n {
			time.AfterFunc(delay, p.Kill)
		}
	}
	p.Wait()
}
