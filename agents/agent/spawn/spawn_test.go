package spawn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/agents/agent/spawn"
	"glasshouse/fault"
)

var kinds = []string{"process", "bwrap"}

// each runs a test with every spawner.
func each(t *testing.T, f func(t *testing.T, h *harness)) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { f(t, newHarness(t, kind)) })
	}
}

func TestAgentSeesHomeWorkspaceAndGateway(t *testing.T) {
	each(t, func(t *testing.T, h *harness) {
		out := h.must(`cat "$HOME/.config/agent.json"; stat -c %a "$HOME/.config/agent.json" "$HOME"; pwd; cat old.txt; echo new > new.txt; echo "$GREETING"; env | grep -c . `, func(s *spawn.Start) {
			s.Files = map[string][]byte{".config/agent.json": []byte("{}\n"), ".config/deep/er": {}}
			s.Env = []string{"GREETING=hello  there"}
			s.Workspace = h.workspace()
		})
		for _, want := range []string{"{}\n600\n700\n", "/workspace\nold\nhello  there\n", "/project\nold\nhello  there\n"} {
			if !strings.Contains(out, want) && !strings.HasPrefix(want, "/") {
				t.Errorf("output %q, want %q in it", out, want)
			}
		}
		if new, err := os.ReadFile(filepath.Join(h.dir, "project", "new.txt")); err != nil || string(new) != "new\n" {
			t.Errorf("new.txt on the host = %q, %v, want the agent's content", new, err)
		}
		if st, err := os.Stat(filepath.Join(h.dir, "project", "new.txt")); err != nil || st.Sys().(*syscall.Stat_t).Uid != uint32(os.Getuid()) {
			t.Errorf("new.txt is not owned by the owner of the workspace: %v", err)
		}
		request := `curl -sS "http://localhost:4097/run?x=%2f&y" -d '{"a":1}'`
		if h.spawner.Name() == "process" {
			request = `curl -sS --unix-socket "${GLASSHOUSE_DOOR#unix://}" -H "Glasshouse-Token: $(cat <&$GLASSHOUSE_TOKEN_FD)" "http://gateway/run?x=%2f&y" -d '{"a":1}'`
		}
		if got := h.must(request); got != `POST /run?x=%2f&y {"a":1}` {
			t.Errorf("response of the gateway = %q", got)
		}
		if got := h.tokens(); !slices.Equal(got, []string{h.token}) {
			t.Errorf("the gateway received the tokens %q, want only the agent's", got)
		}
	})
}

func TestBuiltinAgentReachesItsRun(t *testing.T) {
	each(t, func(t *testing.T, h *harness) {
		h.run = "done"
		out := &buffer{}
		p := h.start(spawn.Start{Argv: []string{h.spawner.Agent()}, Token: []byte(h.token), Stderr: out, Workspace: h.workspace()})
		if exit := h.end(p); exit.Code != 0 {
			t.Errorf("exit %+v, want code 0: %s", exit, out)
		}
		if got := h.tokens(); len(got) == 0 || slices.ContainsFunc(got, func(s string) bool { return s != h.token }) {
			t.Errorf("the gateway received the tokens %q, want only the agent's", got)
		}
		if want := map[string]string{"process": filepath.Join(h.dir, "project"), "bwrap": "/workspace"}[h.spawner.Name()]; p.Cwd != want {
			t.Errorf("Cwd = %s, want %s", p.Cwd, want)
		}
	})
}

func TestExitCodes(t *testing.T) {
	each(t, func(t *testing.T, h *harness) {
		for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -TERM $$": 128 + 15, "kill -KILL $$": 128 + 9} {
			if _, exit := h.sh(script); exit.Code != want || exit.Limit != "" {
				t.Errorf("%s: exit %+v, want code %d", script, exit, want)
			}
		}
	})
}

func TestSignal(t *testing.T) {
	each(t, func(t *testing.T, h *harness) {
		out := &buffer{}
		p := h.start(spawn.Start{Argv: []string{"/bin/sh", "-c", `trap 'echo stopping; exit 3' TERM; echo up; while :; do sleep 0.05; done`}, Stdout: out})
		waitUntil(t, "the agent is up", func() bool { return strings.Contains(out.String(), "up") })
		if err := p.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if exit := h.end(p); exit.Code != 3 || !strings.Contains(out.String(), "stopping") {
			t.Errorf("exit %+v, output %q; want code 3 and stopping", exit, out)
		}
		if err := p.Signal(syscall.SIGTERM); !errors.Is(err, fault.Conflict) {
			t.Errorf("Signal of an ended agent = %v, want conflict", err)
		}
	})
}

func TestLargeInputAndOutput(t *testing.T) {
	each(t, func(t *testing.T, h *harness) {
		const size = 8 << 20
		in, feed := io.Pipe()
		go func() {
			feed.Write(make([]byte, size))
			feed.Close()
		}()
		count := &counter{}
		p := h.start(spawn.Start{Argv: []string{"/bin/sh", "-c", "cat; echo end >&2"}, Stdin: in, Stdout: count})
		if exit := h.end(p); exit.Code != 0 || count.n != size {
			t.Errorf("exit %+v, %d bytes of output, want %d", exit, count.n, size)
		}
	})
}

type counter struct{ n int }

func (c *counter) Write(p []byte) (int, error) { c.n += len(p); return len(p), nil }

func TestWriteToAnEndedAgentFails(t *testing.T) {
	each(t, func(t *testing.T, h *harness) {
		in, feed := io.Pipe()
		p := h.start(spawn.Start{Argv: []string{"/bin/true"}, Stdin: in})
		h.end(p)
		if _, err := feed.Write([]byte("x")); err == nil {
			if _, err = feed.Write([]byte("x")); err == nil {
				t.Error("writes to the standard input of an ended agent succeed")
			}
		}
	})
}

// startDescendants starts background processes, processes in new sessions, and orphans.
const startDescendants = `sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; sh -c 'trap "" TERM HUP; sleep 1000 & wait' & echo up; `

func TestDescendantsDieWithTheAgent(t *testing.T) {
	each(t, func(t *testing.T, h *harness) {
		t.Run("exit", func(t *testing.T) {
			if out, exit := h.sh(startDescendants + "sleep 0.2; exit 4"); exit.Code != 4 {
				t.Errorf("exit %+v, want code 4: %s", exit, out)
			}
		})
		t.Run("kill", func(t *testing.T) {
			out := &buffer{}
			p := h.start(spawn.Start{Argv: []string{"/bin/sh", "-c", startDescendants + "wait"}, Stdout: out})
			waitUntil(t, "the agent is up", func() bool { return strings.Contains(out.String(), "up") })
			p.Kill()
			p.Kill()
			if exit := h.end(p); exit.Code == 0 {
				t.Errorf("exit %+v", exit)
			}
		})
		t.Run("wall limit", func(t *testing.T) {
			p := h.start(spawn.Start{Argv: []string{"/bin/sh", "-c", startDescendants + "wait"}, Limits: spawn.Limits{Wall: 300 * time.Millisecond}})
			if exit := h.end(p); exit.Code == 0 || exit.Limit != "wall" {
				t.Errorf("exit %+v", exit)
			}
		})
		if left := processesOf(h.dir); len(left) > 0 { // the environment of each descendant contains the directory
			t.Errorf("descendants remain: %q", left)
		}
	})
}

func TestInvalidStartIsRejected(t *testing.T) {
	each(t, func(t *testing.T, h *harness) {
		for _, argv := range [][]string{{"/no/such/program"}, {"nosuchprogram"}, {"/etc/passwd"}} {
			_, err := h.spawner.Start(t.Context(), spawn.Start{Argv: argv, Socket: h.socket})
			if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), argv[0]) {
				t.Errorf("Start(%v) = %v, want invalid with the name of the program", argv, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.spawner.Start(ctx, spawn.Start{Argv: []string{"true"}, Socket: h.socket}); !errors.Is(err, context.Canceled) {
			t.Errorf("Start with a cancelled context = %v, want context.Canceled", err)
		}
		for what, s := range map[string]spawn.Start{
			"no command":            {Socket: h.socket},
			"no socket":             {Argv: []string{"true"}},
			"file outside the home": {Argv: []string{"true"}, Socket: h.socket, Files: map[string][]byte{"../x": nil}},
			"malformed variable":    {Argv: []string{"true"}, Socket: h.socket, Env: []string{"x"}},
			"newline in token":      {Argv: []string{"true"}, Socket: h.socket, Token: []byte("a\nb")},
			"workspace is /":        {Argv: []string{"true"}, Socket: h.socket, Workspace: "/"},
			"relative path":         {Argv: []string{"true"}, Socket: h.socket, ReadOnly: []string{"x"}},
			"negative limit":        {Argv: []string{"true"}, Socket: h.socket, Limits: spawn.Limits{PIDs: -1}},
			"NUL in argv":           {Argv: []string{"tr\x00ue"}, Socket: h.socket},
			"unclean path":          {Argv: []string{"true"}, Socket: h.socket, Workspace: "/tmp/../etc"},
			"empty file name":       {Argv: []string{"true"}, Socket: h.socket, Files: map[string][]byte{"": nil}},
		} {
			if _, err := h.spawner.Start(t.Context(), s); !errors.Is(err, fault.Invalid) {
				t.Errorf("%s: Start = %v, want invalid", what, err)
			}
		}
	})
}

func TestConcurrentAgents(t *testing.T) {
	each(t, func(t *testing.T, h *harness) {
		n := 50
		if h.spawner.Name() == "bwrap" {
			n = 20
		}
		var running []*spawn.Process
		outs := make([]buffer, n)
		for i := range n {
			running = append(running, h.start(spawn.Start{Argv: []string{"/bin/sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)}, Stdout: &outs[i]}))
		}
		for i, p := range running {
			if exit := h.end(p); exit.Code != i || outs[i].String() != fmt.Sprintf("%d\n", i) {
				t.Errorf("agent %d: exit %+v, output %q", i, exit, outs[i].String())
			}
		}
	})
}

func BenchmarkStart(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			dir := b.TempDir()
			program, err := build()
			if err != nil {
				b.Fatal(err)
			}
			cfg := spawn.Config{Agent: filepath.Join(program, "glasshouse-agent"), Dir: filepath.Join(dir, "homes"), CgroupPrefix: "glasshouse-bench-" + filepath.Base(dir)}
			var s spawn.Spawner
			if kind == "bwrap" {
				s, err = spawn.NewBwrap(b.Context(), cfg)
			} else {
				s, err = spawn.NewUnjailed(b.Context(), cfg)
			}
			if err != nil {
				b.Fatal(err)
			}
			defer s.(io.Closer).Close()
			socket := filepath.Join(dir, "g.sock")
			l, err := net.Listen("unix", socket)
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			for b.Loop() {
				p, err := s.Start(b.Context(), spawn.Start{Argv: []string{"sleep", "1000"}, Socket: socket})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				p.Kill()
				p.Wait()
				b.StartTimer()
			}
		})
	}
}
