package ptrace_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/observetest"
	"glasshouse/observe/ptrace"
)

// A served jail starts the suite's programs itself, because processes that enter a jail from
// outside are not traced.
type served struct {
	*jail
	socket string
}

func newServed(t *testing.T) observetest.Jail {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "init.sock")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return served{newJailOf(t, self, "serve", socket), socket}
}

func (s served) Target(sel event.Selection) observe.Target { return s.target(sel) }

func (s served) Command(argv ...string) *exec.Cmd {
	return exec.Command(s.self, append([]string{"ask", s.socket}, argv...)...)
}

func (s served) Work(name string, args ...string) *exec.Cmd {
	return s.Command(append([]string{s.self, name}, args...)...)
}

func TestContract(t *testing.T) {
	observetest.Run(t, observetest.Suite{
		Open: func(t *testing.T) observe.Source { return &ptrace.Source{} },
		Jail: newServed,
	})
}
