package autonomy_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/policy"
)

// runSteps builds the steps of a run, one second apart.
type runSteps struct {
	at    time.Time
	steps []autonomy.Step
}

func newRunSteps() *runSteps { return &runSteps{at: time.Unix(1e9, 0)} }

func (s *runSteps) add(step autonomy.Step) *runSteps {
	s.at = s.at.Add(time.Second)
	step.At = s.at
	s.steps = append(s.steps, step)
	return s
}

func (s *runSteps) wait(d time.Duration) *runSteps { s.at = s.at.Add(d); return s }

func (s *runSteps) model(tokens int64) *runSteps {
	return s.add(autonomy.Step{Kind: autonomy.ModelStep, Tokens: tokens})
}

// modelAndTool adds a model step and one call.
func (s *runSteps) modelAndTool(name, input, output string) *runSteps {
	return s.model(100).tool(name, input, output)
}

func (s *runSteps) tool(name, input, output string) *runSteps {
	return s.add(autonomy.Step{Kind: autonomy.ToolStep, Name: name, Input: input, Output: output})
}

func (s *runSteps) fails(name, input, class string) *runSteps {
	return s.model(100).add(autonomy.Step{Kind: autonomy.ToolStep, Name: name, Input: input, Error: class})
}

func (s *runSteps) edits(workspace string) *runSteps {
	return s.model(100).add(autonomy.Step{Kind: autonomy.ToolStep, Name: "edit", Input: workspace, Output: "ok", Workspace: workspace})
}

func (s *runSteps) message(text string) *runSteps {
	return s.add(autonomy.Step{Kind: autonomy.MessageStep, Input: text})
}

func (s *runSteps) times(n int, f func(i int)) *runSteps {
	for i := range n {
		f(i)
	}
	return s
}

// highest returns the highest rung of each sign that a detector reports.
func highest(s *runSteps, level policy.Level) map[autonomy.Sign]autonomy.Rung {
	d := autonomy.NewDetector(autonomy.DetectorConfig{Level: level})
	found := map[autonomy.Sign]autonomy.Rung{}
	for _, step := range s.steps {
		for _, f := range d.Step(step) {
			found[f.Sign] = max(found[f.Sign], f.Rung)
		}
	}
	return found
}

func TestDetectorFindsLoops(t *testing.T) {
	tests := []struct {
		name  string
		tell  func(s *runSteps)
		level policy.Level
		sign  autonomy.Sign
		want  autonomy.Rung
	}{
		{"same call in three turns", func(s *runSteps) {
			s.times(3, func(int) { s.modelAndTool("bash", "ls", "a b") })
		}, 1, autonomy.Repeat, autonomy.Warn},
		{"same call in four turns", func(s *runSteps) {
			s.times(4, func(int) { s.modelAndTool("bash", "ls", "a b") })
		}, 1, autonomy.Repeat, autonomy.AskFirst},
		{"same call in 86 turns", func(s *runSteps) {
			s.times(86, func(int) { s.modelAndTool("bash", "ls", "a b") })
		}, 3, autonomy.Repeat, autonomy.Stop},
		{"same call with other calls in between", func(s *runSteps) {
			s.times(8, func(i int) {
				s.modelAndTool("bash", "ls", "a b")
				s.times(3, func(k int) { s.modelAndTool("read", fmt.Sprint(i, k), fmt.Sprint(i, k)) })
			})
		}, 1, autonomy.Repeat, autonomy.Stop},
		{"same call without model steps", func(s *runSteps) {
			s.times(8, func(int) { s.tool("bash", "ls", "a b") })
		}, 1, autonomy.Repeat, autonomy.Stop},
		{"same call at irregular intervals", func(s *runSteps) {
			s.times(4, func(i int) { s.modelAndTool("bash", "ls", "a b").wait(time.Duration(i) * time.Second) })
		}, 1, autonomy.Repeat, autonomy.AskFirst},
		{"alternating calls", func(s *runSteps) {
			s.times(6, func(int) { s.modelAndTool("read", "a", "1").modelAndTool("edit", "b", "no match") })
		}, 3, autonomy.Cycle, autonomy.Stop},
		{"cycle of six calls", func(s *runSteps) {
			s.times(4, func(int) {
				s.times(6, func(i int) { s.modelAndTool("read", fmt.Sprint(i), fmt.Sprint(i)) })
			})
		}, 1, autonomy.Cycle, autonomy.AskFirst},
		{"messages without calls", func(s *runSteps) {
			s.times(10, func(i int) { s.model(50).message(fmt.Sprint(i)) })
		}, 2, autonomy.Monologue, autonomy.Stop},
		{"same error of different calls", func(s *runSteps) {
			s.times(6, func(i int) { s.fails("edit", fmt.Sprint(i), "old string not found") })
		}, 1, autonomy.Errors, autonomy.AskFirst},
		{"same error with successful calls of another tool", func(s *runSteps) {
			s.times(12, func(i int) {
				s.fails("edit", fmt.Sprint(i), "old string not found").modelAndTool("read", fmt.Sprint(i), fmt.Sprint(i))
			})
		}, 1, autonomy.Errors, autonomy.Stop},
		{"reads without edits", func(s *runSteps) {
			s.edits("w0").times(61, func(i int) { s.modelAndTool("read", fmt.Sprint(i), fmt.Sprint(i)) })
		}, 1, autonomy.Stalled, autonomy.Stop},
		{"workspace alternates between two states", func(s *runSteps) {
			s.edits("w0").edits("w1").times(15, func(i int) { s.edits(fmt.Sprint("w", i%2)) })
		}, 1, autonomy.Stalled, autonomy.Warn},
		{"tokens without progress", func(s *runSteps) {
			s.edits("w0").times(5, func(i int) { s.model(100_000).tool("read", fmt.Sprint(i), fmt.Sprint(i)) })
		}, 1, autonomy.Burn, autonomy.AskFirst},
	}
	for _, tt := range tests {
		s := newRunSteps()
		tt.tell(s)
		if got := highest(s, tt.level)[tt.sign]; got != tt.want {
			t.Errorf("%s, level %d: rung of %s = %s, want %s", tt.name, tt.level, tt.sign, got, tt.want)
		}
	}
}

// TestDetectorIgnoresProgress checks sequences of steps that must not lead to more than an
// observation.
func TestDetectorIgnoresProgress(t *testing.T) {
	tests := []struct {
		name string
		tell func(s *runSteps)
	}{
		{"poll with changing result", func(s *runSteps) {
			s.times(50, func(i int) { s.modelAndTool("bash", "gh run view", fmt.Sprint(i, " of 50 jobs")) })
		}},
		{"poll with a sleep in between", func(s *runSteps) {
			s.times(50, func(int) {
				s.modelAndTool("bash", "gh run view", "in progress")
				s.model(50).add(autonomy.Step{Kind: autonomy.ToolStep, Name: "bash", Input: "sleep 30", Wait: true})
			})
		}},
		{"repeated waiting tool", func(s *runSteps) {
			s.times(50, func(int) { s.modelAndTool("wait_for", "server", "timeout") })
		}},
		{"poll with backoff", func(s *runSteps) {
			s.times(9, func(i int) {
				s.modelAndTool("bash", "curl -s localhost/health", "starting").wait(4 * time.Second << i)
			})
		}},
		{"same call five times in one turn", func(s *runSteps) {
			s.model(100).times(5, func(int) { s.tool("bash", "ls", "a b") })
		}},
		{"edits with failing tests", func(s *runSteps) {
			s.times(20, func(i int) {
				s.edits(fmt.Sprint("w", i)).fails("bash", "npm test", "exit 1")
			})
		}},
		{"same file read after each edit", func(s *runSteps) {
			s.times(20, func(i int) { s.edits(fmt.Sprint("w", i)).modelAndTool("read", "a.ts", fmt.Sprint(i)) })
		}},
		{"status call after each edit", func(s *runSteps) {
			s.times(20, func(i int) { s.edits(fmt.Sprint("w", i)).modelAndTool("bash", "git log", "no commits yet") })
		}},
		{"same call outside of the window", func(s *runSteps) {
			s.times(5, func(i int) {
				s.modelAndTool("bash", "ls", "a b")
				s.times(45, func(k int) { s.modelAndTool("read", fmt.Sprint(i, k), fmt.Sprint(i, k)) })
			})
		}},
		{"two calls with changing results", func(s *runSteps) {
			s.times(30, func(i int) {
				s.modelAndTool("bash", "make", fmt.Sprint(i)).modelAndTool("bash", "tail log", fmt.Sprint(i))
			})
		}},
		{"messages between calls", func(s *runSteps) {
			s.times(30, func(i int) {
				s.model(100).message("next").message("one").tool("read", fmt.Sprint(i), fmt.Sprint(i))
			})
		}},
		{"occasional errors", func(s *runSteps) {
			s.times(20, func(i int) {
				s.fails("edit", fmt.Sprint(i), "not found").modelAndTool("edit", fmt.Sprint("again ", i), fmt.Sprint(i))
			})
		}},
		{"long work with progress", func(s *runSteps) {
			s.times(300, func(i int) {
				s.model(40_000).add(autonomy.Step{Kind: autonomy.ToolStep, Name: "edit", Input: fmt.Sprint(i), Output: "ok", Workspace: fmt.Sprint("w", i)})
			})
		}},
		{"no workspace digests", func(s *runSteps) {
			s.times(300, func(i int) { s.model(40_000).tool("read", fmt.Sprint(i), fmt.Sprint(i)) })
		}},
		{"long wait for a build", func(s *runSteps) {
			s.edits("w0").times(100, func(int) { s.modelAndTool("sleep", "60", "") })
		}},
	}
	for _, tt := range tests {
		s := newRunSteps()
		tt.tell(s)
		for level := policy.Guided; level <= policy.Full; level++ {
			for sign, rung := range highest(s, level) {
				if rung > autonomy.Observe {
					t.Errorf("%s, level %d: rung of %s = %s, want at most observe", tt.name, level, sign, rung)
				}
			}
		}
	}
}

func TestEachRungIsReportedOnce(t *testing.T) {
	s := newRunSteps().edits("w0")
	s.times(8, func(int) { s.modelAndTool("bash", "ls", "a b") })
	s.edits("w1")
	s.times(3, func(int) { s.modelAndTool("bash", "ls", "a b") })
	d := autonomy.NewDetector(autonomy.DetectorConfig{})
	var reported []string
	for _, step := range s.steps {
		for _, f := range d.Step(step) {
			if f.Sign == autonomy.Repeat {
				reported = append(reported, fmt.Sprint(f.Sign, " ", f.Rung, " ", f.Count))
			}
			if f.Text == "" || strings.Contains(f.Text, "%!") {
				t.Errorf("text of %v = %q", f.Sign, f.Text)
			}
		}
	}
	want := []string{"repeat observe 2", "repeat warn 3", "repeat ask 4", "repeat stop 8", "repeat observe 2", "repeat warn 3"}
	if !reflect.DeepEqual(reported, want) {
		t.Errorf("reported %q\nwant %q", reported, want)
	}
}

// TestDetectorIsDeterministic replays random steps that exceed the size limits of the
// detector.
func TestDetectorIsDeterministic(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := newRunSteps()
		for range 2000 {
			s.wait(time.Duration(r.IntN(5000)) * time.Millisecond)
			switch name, input := fmt.Sprint("t", r.IntN(4)), fmt.Sprint(r.IntN(3)); r.IntN(6) {
			case 0:
				s.message(input)
			case 1:
				s.fails(name, input, fmt.Sprint(r.IntN(2)))
			case 2:
				s.edits(fmt.Sprint(r.IntN(30)))
			case 3:
				s.modelAndTool("sleep", input, "")
			default:
				s.modelAndTool(name, input, fmt.Sprint(r.IntN(2)))
			}
		}
		var first []autonomy.Finding
		for range 2 {
			d := autonomy.NewDetector(autonomy.DetectorConfig{Level: policy.Intelligent})
			var all []autonomy.Finding
			for _, step := range s.steps {
				all = append(all, d.Step(step)...)
			}
			if first != nil && !reflect.DeepEqual(all, first) {
				t.Fatalf("seed %d: a replay of the steps has different findings", seed)
			}
			first = all
		}
	}
}

func TestLadders(t *testing.T) {
	for level, signs := range autonomy.Ladders {
		if len(signs) != 6 {
			t.Errorf("level %d has %d signs, want 6", level, len(signs))
		}
		for sign, l := range signs {
			if l.Observe <= 0 || l.Warn <= l.Observe || l.Stop <= max(l.Warn, l.Ask) || level < policy.Full && l.Ask <= l.Warn {
				t.Errorf("level %d, %s: the counts of %+v do not increase", level, sign, l)
			}
			if level == policy.Full && l.Ask != 0 {
				t.Errorf("level 3, %s: requires approval", sign)
			}
		}
	}
}

func TestWaitsOnly(t *testing.T) {
	tests := []struct {
		tool, command string
		want          bool
	}{
		{"bash", "sleep 30", true}, {"shell", " sleep 1m ", true}, {"bash", "wait", true}, {"bash", "wait 12", true},
		{"sleep", "", true}, {"wait_for", "", true},
		{"bash", "sleep 1; rm -rf x", false}, {"bash", "sleep 1 && make", false}, {"bash", "sleep $(rm x)", false},
		{"bash", "sleep 1\nrm x", false}, {"bash", "sleeper 1", false}, {"bash", "", false}, {"read", "sleep 1", false},
	}
	for _, tt := range tests {
		args, err := json.Marshal(map[string]string{"command": tt.command})
		if err != nil {
			t.Fatal(err)
		}
		if got := autonomy.WaitsOnly(tt.tool, args); got != tt.want {
			t.Errorf("WaitsOnly(%s, %q) = %v, want %v", tt.tool, tt.command, got, tt.want)
		}
	}
}

func BenchmarkDetectorStep(b *testing.B) {
	d := autonomy.NewDetector(autonomy.DetectorConfig{})
	at := time.Now()
	names := make([]string, 97)
	for i := range names {
		names[i] = fmt.Sprintf("sha256:%064d", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		step := autonomy.Step{At: at, Kind: autonomy.ToolStep, Name: "bash", Input: names[i%97], Output: names[i%89], Workspace: names[i%3]}
		if i%2 == 0 {
			step = autonomy.Step{At: at, Kind: autonomy.ModelStep, Tokens: 100}
		}
		d.Step(step)
	}
}
