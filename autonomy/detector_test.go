package autonomy_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"glasshouse/autonomy"
	"glasshouse/policy"
)

// A story is a run, told step by step; a second passes between two steps.
type story struct {
	at    time.Time
	steps []autonomy.Step
}

func tell() *story { return &story{at: time.Unix(1e9, 0)} }

func (s *story) add(step autonomy.Step) *story {
	s.at = s.at.Add(time.Second)
	step.At = s.at
	s.steps = append(s.steps, step)
	return s
}

func (s *story) wait(d time.Duration) *story { s.at = s.at.Add(d); return s }

func (s *story) model(tokens int64) *story {
	return s.add(autonomy.Step{Kind: autonomy.ModelStep, Tokens: tokens})
}

// turn is an answer of the model and one call.
func (s *story) turn(name, input, output string) *story {
	return s.model(100).tool(name, input, output)
}

func (s *story) tool(name, input, output string) *story {
	return s.add(autonomy.Step{Kind: autonomy.ToolStep, Name: name, Input: input, Output: output})
}

func (s *story) fails(name, input, class string) *story {
	return s.model(100).add(autonomy.Step{Kind: autonomy.ToolStep, Name: name, Input: input, Error: class})
}

func (s *story) edits(workspace string) *story {
	return s.model(100).add(autonomy.Step{Kind: autonomy.ToolStep, Name: "edit", Input: workspace, Output: "ok", Workspace: workspace})
}

func (s *story) says(text string) *story {
	return s.add(autonomy.Step{Kind: autonomy.MessageStep, Input: text})
}

func (s *story) times(n int, f func(i int)) *story {
	for i := range n {
		f(i)
	}
	return s
}

// highest shows a detector the story and returns the highest rung of each sign.
func highest(s *story, level policy.Level) map[autonomy.Sign]autonomy.Rung {
	d := autonomy.NewDetector(autonomy.DetectorConfig{Level: level})
	found := map[autonomy.Sign]autonomy.Rung{}
	for _, step := range s.steps {
		for _, f := range d.Step(step) {
			found[f.Sign] = max(found[f.Sign], f.Rung)
		}
	}
	return found
}

func TestWhatIsALoop(t *testing.T) {
	tests := []struct {
		name  string
		tell  func(s *story)
		level policy.Level
		sign  autonomy.Sign
		want  autonomy.Rung
	}{
		{"the same call in each of three turns", func(s *story) {
			s.times(3, func(int) { s.turn("bash", "ls", "a b") })
		}, 1, autonomy.Repeat, autonomy.Warn},
		{"and in each of four", func(s *story) {
			s.times(4, func(int) { s.turn("bash", "ls", "a b") })
		}, 1, autonomy.Repeat, autonomy.AskFirst},
		{"and on and on, as no guard of its own noticed", func(s *story) {
			s.times(86, func(int) { s.turn("bash", "ls", "a b") })
		}, 3, autonomy.Repeat, autonomy.Stop},
		{"with other calls in between", func(s *story) {
			s.times(8, func(i int) {
				s.turn("bash", "ls", "a b")
				s.times(3, func(k int) { s.turn("read", fmt.Sprint(i, k), fmt.Sprint(i, k)) })
			})
		}, 1, autonomy.Repeat, autonomy.Stop},
		{"by an agent whose turns nobody sees", func(s *story) {
			s.times(8, func(int) { s.tool("bash", "ls", "a b") })
		}, 1, autonomy.Repeat, autonomy.Stop},
		{"by a model that answers unevenly", func(s *story) {
			s.times(4, func(i int) { s.turn("bash", "ls", "a b").wait(time.Duration(i) * time.Second) })
		}, 1, autonomy.Repeat, autonomy.AskFirst},
		{"A and B and A and B", func(s *story) {
			s.times(6, func(int) { s.turn("read", "a", "1").turn("edit", "b", "no match") })
		}, 3, autonomy.Cycle, autonomy.Stop},
		{"six calls, round and round", func(s *story) {
			s.times(4, func(int) {
				s.times(6, func(i int) { s.turn("read", fmt.Sprint(i), fmt.Sprint(i)) })
			})
		}, 1, autonomy.Cycle, autonomy.AskFirst},
		{"talking to itself", func(s *story) {
			s.times(10, func(i int) { s.model(50).says(fmt.Sprint(i)) })
		}, 2, autonomy.Monologue, autonomy.Stop},
		{"the same error by different calls", func(s *story) {
			s.times(6, func(i int) { s.fails("edit", fmt.Sprint(i), "old string not found") })
		}, 1, autonomy.Errors, autonomy.AskFirst},
		{"an error that other tools do not mend", func(s *story) {
			s.times(12, func(i int) {
				s.fails("edit", fmt.Sprint(i), "old string not found").turn("read", fmt.Sprint(i), fmt.Sprint(i))
			})
		}, 1, autonomy.Errors, autonomy.Stop},
		{"reading and reading", func(s *story) {
			s.edits("w0").times(61, func(i int) { s.turn("read", fmt.Sprint(i), fmt.Sprint(i)) })
		}, 1, autonomy.Stalled, autonomy.Stop},
		{"there and back again is no progress", func(s *story) {
			s.edits("w0").edits("w1").times(15, func(i int) { s.edits(fmt.Sprint("w", i%2)) })
		}, 1, autonomy.Stalled, autonomy.Warn},
		{"tokens and no progress", func(s *story) {
			s.edits("w0").times(5, func(i int) { s.model(100_000).tool("read", fmt.Sprint(i), fmt.Sprint(i)) })
		}, 1, autonomy.Burn, autonomy.AskFirst},
	}
	for _, tt := range tests {
		s := tell()
		tt.tell(s)
		if got := highest(s, tt.level)[tt.sign]; got != tt.want {
			t.Errorf("%s, level %d: %s is taken as %s, want %s", tt.name, tt.level, tt.sign, got, tt.want)
		}
	}
}

// TestWhatIsNoLoop: nothing of this may be more than observed.
func TestWhatIsNoLoop(t *testing.T) {
	tests := []struct {
		name string
		tell func(s *story)
	}{
		{"polling whose result changes", func(s *story) {
			s.times(50, func(i int) { s.turn("bash", "gh run view", fmt.Sprint(i, " of 50 jobs")) })
		}},
		{"polling with a sleep in between", func(s *story) {
			s.times(50, func(int) {
				s.turn("bash", "gh run view", "in progress")
				s.model(50).add(autonomy.Step{Kind: autonomy.ToolStep, Name: "bash", Input: "sleep 30", Wait: true})
			})
		}},
		{"a tool that waits, over and over", func(s *story) {
			s.times(50, func(int) { s.turn("wait_for", "server", "timeout") })
		}},
		{"looking again more and more rarely", func(s *story) {
			s.times(9, func(i int) {
				s.turn("bash", "curl -s localhost/health", "starting").wait(4 * time.Second << i)
			})
		}},
		{"the same call five times in one turn", func(s *story) {
			s.model(100).times(5, func(int) { s.tool("bash", "ls", "a b") })
		}},
		{"tests that fail the same until they do not", func(s *story) {
			s.times(20, func(i int) {
				s.edits(fmt.Sprint("w", i)).fails("bash", "npm test", "exit 1")
			})
		}},
		{"the same file read after each edit", func(s *story) {
			s.times(20, func(i int) { s.edits(fmt.Sprint("w", i)).turn("read", "a.ts", fmt.Sprint(i)) })
		}},
		{"a look at the status after each of many edits", func(s *story) {
			s.times(20, func(i int) { s.edits(fmt.Sprint("w", i)).turn("bash", "git log", "no commits yet") })
		}},
		{"a call that is made again much later", func(s *story) {
			s.times(5, func(i int) {
				s.turn("bash", "ls", "a b")
				s.times(45, func(k int) { s.turn("read", fmt.Sprint(i, k), fmt.Sprint(i, k)) })
			})
		}},
		{"two calls whose results change", func(s *story) {
			s.times(30, func(i int) { s.turn("bash", "make", fmt.Sprint(i)).turn("bash", "tail log", fmt.Sprint(i)) })
		}},
		{"text between calls", func(s *story) {
			s.times(30, func(i int) {
				s.model(100).says("next").says("one").tool("read", fmt.Sprint(i), fmt.Sprint(i))
			})
		}},
		{"an error now and then", func(s *story) {
			s.times(20, func(i int) {
				s.fails("edit", fmt.Sprint(i), "not found").turn("edit", fmt.Sprint("again ", i), fmt.Sprint(i))
			})
		}},
		{"long work that goes on", func(s *story) {
			s.times(300, func(i int) {
				s.model(40_000).add(autonomy.Step{Kind: autonomy.ToolStep, Name: "edit", Input: fmt.Sprint(i), Output: "ok", Workspace: fmt.Sprint("w", i)})
			})
		}},
		{"a workspace that nobody looks at", func(s *story) {
			s.times(300, func(i int) { s.model(40_000).tool("read", fmt.Sprint(i), fmt.Sprint(i)) })
		}},
		{"waiting for a long build is not stalling", func(s *story) {
			s.edits("w0").times(100, func(int) { s.turn("sleep", "60", "") })
		}},
	}
	for _, tt := range tests {
		s := tell()
		tt.tell(s)
		for level := policy.Guided; level <= policy.Full; level++ {
			for sign, rung := range highest(s, level) {
				if rung > autonomy.Observe {
					t.Errorf("%s: at level %d, %s: %s", tt.name, level, sign, rung)
				}
			}
		}
	}
}

func TestEachRungIsSaidOnceAndAgainAfterProgress(t *testing.T) {
	s := tell().edits("w0")
	s.times(8, func(int) { s.turn("bash", "ls", "a b") })
	s.edits("w1")
	s.times(3, func(int) { s.turn("bash", "ls", "a b") })
	d := autonomy.NewDetector(autonomy.DetectorConfig{})
	var said []string
	for _, step := range s.steps {
		for _, f := range d.Step(step) {
			if f.Sign == autonomy.Repeat {
				said = append(said, fmt.Sprint(f.Sign, " ", f.Rung, " ", f.Count))
			}
			if f.Text == "" || strings.Contains(f.Text, "%!") {
				t.Errorf("%v says %q", f.Sign, f.Text)
			}
		}
	}
	want := []string{"repeat observe 2", "repeat warn 3", "repeat ask 4", "repeat stop 8", "repeat observe 2", "repeat warn 3"}
	if !reflect.DeepEqual(said, want) {
		t.Errorf("said %q\nwant %q", said, want)
	}
}

// TestTheSameStepsFindTheSame: shown its journal again a detector is where it
// was, and it holds no more than it may, whatever it is shown.
func TestTheSameStepsFindTheSame(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := tell()
		for range 2000 {
			s.wait(time.Duration(r.IntN(5000)) * time.Millisecond)
			switch name, input := fmt.Sprint("t", r.IntN(4)), fmt.Sprint(r.IntN(3)); r.IntN(6) {
			case 0:
				s.says(input)
			case 1:
				s.fails(name, input, fmt.Sprint(r.IntN(2)))
			case 2:
				s.edits(fmt.Sprint(r.IntN(30)))
			case 3:
				s.turn("sleep", input, "")
			default:
				s.turn(name, input, fmt.Sprint(r.IntN(2)))
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
				t.Fatalf("seed %d: another run of the same steps finds something else", seed)
			}
			first = all
		}
	}
}

func TestALadderGoesUpAndAsksNobodyAtLevelThree(t *testing.T) {
	for level, signs := range autonomy.Ladders {
		if len(signs) != 6 {
			t.Errorf("level %d knows %d signs", level, len(signs))
		}
		for sign, l := range signs {
			if l.Observe <= 0 || l.Warn <= l.Observe || l.Stop <= max(l.Warn, l.Ask) || level < policy.Full && l.Ask <= l.Warn {
				t.Errorf("level %d, %s: %+v is no ladder", level, sign, l)
			}
			if level == policy.Full && l.Ask != 0 {
				t.Errorf("level 3 asks a person: %s", sign)
			}
		}
	}
}

func TestWhatOnlyWaits(t *testing.T) {
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
			t.Errorf("WaitsOnly(%s, %q) = %v", tt.tool, tt.command, got)
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
