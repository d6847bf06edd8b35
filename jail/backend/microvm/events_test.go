package microvm_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/microvm"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/guest"
	"glasshouse/observe/observetest"
)

// jailSocket is the environment variable that makes a process of this test run a program in the jail whose
// init has that socket.
const jailSocket = "GLASSHOUSE_MICROVM_TEST_SOCKET"

// work is the environment variable with the name of a work of package observetest.
const work = "GLASSHOUSE_OBSERVE_WORK"

func TestMain(m *testing.M) {
	if socket := os.Getenv(jailSocket); socket != "" {
		os.Exit(runInJail(socket))
	}
	observetest.Main(m)
}

func runInJail(socket string) int {
	e := protocol.Exec{ID: id.NewExec(), Argv: os.Args[1:], Env: []string{"PATH=/usr/bin:/bin", work + "=" + os.Getenv(work)}}
	stream, _, err := control.Dial(socket).Exec(context.Background(), e, &control.AttachOptions{Lossless: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stream.Close()
	for {
		chunk, err := stream.Next()
		if err == io.EOF {
			return stream.Status().Code
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Stdout.Write(chunk.Data)
	}
}

// A watched is a jail whose events are recorded. It implements observetest.Jail.
type watched struct {
	inst jail.Instance
	plan jail.Plan
}

// observable returns the plan of a jail with the works of package observetest.
func (h *host) observable(t *testing.T, b *microvm.Backend) jail.Plan {
	t.Helper()
	layer := filepath.Join(h.dir, "works")
	if _, err := os.Stat(layer); err != nil {
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(layer, "works"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(layer, "works/work"), self, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := h.plan(t, b)
	p.Lower = append([]string{layer}, p.Lower...)
	return p
}

func (h *host) watched(t *testing.T, b *microvm.Backend) *watched {
	t.Helper()
	p := h.observable(t, b)
	i, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	return &watched{i, p}
}

func (w *watched) Target(s event.Selection) observe.Target {
	info := w.inst.HostInfo()
	return observe.Target{Jail: w.plan.ID, Dir: w.plan.Dir, Guest: info.Guest, PID: w.inst.PID(), CgroupDir: info.CgroupDir, Selection: s, Events: info.Events}
}

func (w *watched) Command(argv ...string) *exec.Cmd {
	// The shell makes arguments that are not UTF-8, which init does not accept.
	script, args := "exec", []string{}
	for _, arg := range argv {
		if utf8.ValidString(arg) {
			args = append(args, arg)
			script += fmt.Sprintf(` "${%d}"`, len(args))
			continue
		}
		script += ` "$(printf '`
		for _, c := range []byte(arg) {
			script += fmt.Sprintf(`\%03o`, c)
		}
		script += `')"`
	}
	if len(args) < len(argv) {
		argv = append([]string{"sh", "-c", script, "sh"}, args...)
	}
	cmd := exec.Command(os.Args[0], argv...)
	cmd.Env = append(os.Environ(), jailSocket+"="+w.inst.Control())
	return cmd
}

func (w *watched) Work(name string, args ...string) *exec.Cmd {
	cmd := w.Command(append([]string{"/works/work"}, args...)...)
	cmd.Env = append(cmd.Env, work+"="+name)
	return cmd
}

// TestEventsContract runs the tests of sources in virtual machines.
func TestEventsContract(t *testing.T) {
	h := newHost(t)
	b := h.ready(t)
	observetest.Run(t, observetest.Suite{
		Open:   func(*testing.T) observe.Source { return guest.New(guest.Config{Dir: h.dir}) },
		Jail:   func(t *testing.T) observetest.Jail { return h.watched(t, b) },
		Pinned: true, // by the machine itself
		Slow:   true,
		Differs: map[string]string{
			"WhatGlasshouseDoesIsMarked": "a checkpoint of a machine executes nothing in its processes",
		},
	})
}
