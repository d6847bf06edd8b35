package gvisor_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"glasshouse/jail"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/observetest"
)

func TestContract(t *testing.T) {
	h := newHarness(t)
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	dir := filepath.Join(h.dir, "works")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "work"), self, 0o755))
	observetest.Run(t, observetest.Suite{
		Open: func(*testing.T) observe.Source { return h.gvisor() },
		Jail: func(t *testing.T) observetest.Jail {
			return suiteJail{h.guest(t, func(p *jail.Plan) { p.Mounts = []jail.Mount{{Source: dir, Target: "/works"}} })}
		},
		Slow: true,
		Differs: map[string]string{
			"ArgumentsComeBackByteForByte":     "gVisor cannot send text that is not UTF-8; TestNonUTF8CannotHideCalls tests the remaining events",
			"AFileIsSeenFromItsMakingToItsEnd": "gVisor has no points with the paths of rename, link, chmod and unlink",
		},
	})
}

// A suiteJail is a gVisor jail on which the suite runs.
type suiteJail struct{ *guest }

func (c suiteJail) Target(s event.Selection) observe.Target {
	t := c.target
	t.Selection = s
	return t
}

// jailSocket is the environment variable that makes a process of this test run a program in the
// jail whose init has that socket.
const jailSocket = "GLASSHOUSE_GVISOR_TEST_SOCKET"

func (c suiteJail) Command(argv ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], argv...)
	cmd.Env = append(os.Environ(), jailSocket+"="+c.inst.Control())
	return cmd
}

// work is the environment variable with the name of a work of the suite.
const work = "GLASSHOUSE_OBSERVE_WORK"

func (c suiteJail) Work(name string, args ...string) *exec.Cmd {
	cmd := c.Command(append([]string{"/works/work"}, args...)...)
	cmd.Env = append(cmd.Env, work+"="+name)
	return cmd
}

func runInJail(socket string) int {
	out, code, err := run(context.Background(), socket, []string{work + "=" + os.Getenv(work)}, os.Args[1:])
	fmt.Print(out)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
