package builtin_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/agent/builtin"
)

// wanderer is a door with a model that goes where the digest of what it was sent leads:
// calls, several at once, giant outputs, answers of no use, a finish that comes too early.
func wanderer() *fakeDoor {
	d := newFakeDoor()
	d.context = 2500 // so that the conversation is trimmed again and again
	d.late = map[int]string{2: "Be careful.", 7: "And be quick."}
	d.newTool = map[int]string{3: "fetch"}
	d.model = func(step int, body []byte) reply {
		n := digest(body)
		if step%3 == 0 {
			n = n/11*11 + 5 // never are too many mistakes made in a row
		}
		if step == 0 {
			return reply{text: fmt.Sprintf("1. walk %d\n2. finish", n)}
		}
		one := toolCall{"count", fmt.Sprintf(`{"n": %d, "why":"é<&>"}`, n)}
		switch {
		case step > 13:
			return reply{text: fmt.Sprintf("arrived at %d", n)}
		case step == 6 || step == 11:
			return reply{text: "I am done."} // too early
		case n%11 == 0:
			return reply{text: "", plain: true}
		case n%11 == 1:
			return reply{calls: []toolCall{{"count", `{"n": `}}}
		case n%11 == 2:
			return reply{calls: []toolCall{{"no such tool", `{}`}, one}}
		case n%11 == 3:
			return reply{calls: []toolCall{one}, finish: "length"}
		case n%11 < 6:
			return reply{text: "Three at once.", calls: []toolCall{one, {"look", ""}, one}}
		}
		return reply{calls: []toolCall{one}}
	}
	d.tool = func(n int, c toolCall) toolReply {
		switch n % 4 {
		case 0:
			return toolReply{State: "failed", Error: map[string]string{"kind": "timeout", "message": "it took too long"}}
		case 1:
			return toolReply{State: "done", Output: map[string]any{"n": n, "args": c.Args}}
		case 2:
			return toolReply{State: "refused", Error: map[string]string{"kind": "denied", "message": "not here", "remedy": "elsewhere"}}
		}
		return toolReply{State: "done", Output: strings.Repeat(fmt.Sprintf("line %d of ☃\x00\n", n), 400)}
	}
	d.complete = func(d *fakeDoor) string {
		if len(d.asked) < 13 {
			return "it has not walked far enough"
		}
		return ""
	}
	return d
}

// life runs an agent until it has ended, or until its wire is cut after so many requests.
func life(t *testing.T, d *fakeDoor, every, requests, how int) (count int, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &wire{door: d, cut: cancel, left: requests, how: how}
	err = builtin.Run(ctx, builtin.Config{Transport: w, Every: every})
	return w.count, err
}

// story is what is left of a run, for people and on their bill.
type story struct {
	Result  string
	Effects []string
	Asked   []string
	Bodies  []string
	Plan    string
}

func tell(t *testing.T, d *fakeDoor) story {
	t.Helper()
	if d.state != "done" {
		t.Fatalf("the run is %s: %s", d.state, d.failure)
	}
	if len(d.changed) > 0 {
		t.Errorf("%v came again with another request", d.changed)
	}
	s := story{Result: d.result, Effects: d.effects, Asked: d.order, Plan: d.outbox["plan"]}
	for _, key := range d.order {
		s.Bodies = append(s.Bodies, string(d.asked[key].body))
	}
	return s
}

func undisturbed(t *testing.T, every int) (story, int) {
	t.Helper()
	d := wanderer()
	n, err := life(t, d, every, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := tell(t, d)
	last := s.Bodies[len(s.Bodies)-1]
	for _, must := range []string{"dropped to save room", "Be careful.", "And be quick.", "to fetch"} {
		if !strings.Contains(last, must) {
			t.Fatalf("the run is too simple to show anything: %q is not in its last request", must)
		}
	}
	return s, n
}

func TestKilledAtAnyRequestItEndsAsIfNothingHadBeen(t *testing.T) {
	for _, every := range []int{1, 4} {
		t.Run(fmt.Sprintf("checkpoint-every-%d", every), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				want, n := undisturbed(t, every)
				for at := 1; at <= n; at++ {
					for how := range ways {
						if how != at%ways {
							continue // one way each: there are many requests
						}
						d := wanderer()
						life(t, d, every, at, how)
						if _, err := life(t, d, every, 0, 0); err != nil {
							t.Fatalf("killed at request %d (%d): %v", at, how, err)
						}
						if diff := cmp.Diff(want, tell(t, d)); diff != "" {
							t.Fatalf("killed at request %d (%d) (-undisturbed +killed):\n%s", at, how, diff)
						}
					}
				}
			})
		})
	}
}

func TestKilledAgainAndAgainItEndsAsIfNothingHadBeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, every := range []int{1, 3} {
			want, _ := undisturbed(t, every)
			for seed := range uint64(20) {
				random := rand.New(rand.NewPCG(seed, 7))
				d := wanderer()
				lives := 0
				for d.state == "active" {
					if lives++; lives > 500 {
						t.Fatal("it does not get on")
					}
					life(t, d, every, 1+random.IntN(20), random.IntN(ways))
				}
				if diff := cmp.Diff(want, tell(t, d)); diff != "" {
					t.Fatalf("seed %d, %d lives (-undisturbed +killed):\n%s", seed, lives, diff)
				}
			}
		}
	})
}

func TestToldToStopItWritesACheckpointAndGoesOnFromThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want, _ := undisturbed(t, 4)
		d := wanderer()
		tool := d.tool
		d.tool = func(n int, c toolCall) toolReply { // +checklocksignore
			d.stop = n%3 == 0 // one in three takes until the agent is told
			if d.stop {
				// The double calls tool with d.mu locked. The analyzer does not follow the lock there.
				d.mu.Unlock() // +checklocksignore
				time.Sleep(time.Minute)
				d.mu.Lock()
			}
			return tool(n, c) // +checklocksignore
		}
		lives := 0
		for d.state == "active" {
			lives++
			before := d.written
			d.stop = false
			if _, err := life(t, d, 4, 0, 0); err != nil {
				t.Fatal(err)
			}
			if d.state == "active" && d.written == before {
				t.Error("it ended without a checkpoint")
			}
			time.Sleep(time.Hour) // what was under way ends
		}
		if lives < 3 {
			t.Errorf("it was told to stop %d times", lives-1)
		}
		if diff := cmp.Diff(want, tell(t, d)); diff != "" {
			t.Errorf("(-undisturbed +stopped):\n%s", diff)
		}
	})
}

const (
	asAgent = "GLASSHOUSE_TEST_AGENT"
	doorAt  = "GLASSHOUSE_TEST_DOOR"
)

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		if err := builtin.Run(context.Background(), builtin.Config{Door: os.Getenv(doorAt), Every: 2}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestAProcessThatIsKilledAtRandomEndsAsIfNothingHadBeen(t *testing.T) {
	want, _ := undisturbed(t, 2)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := wanderer()
	server := httptest.NewServer(d)
	defer server.Close()
	kills := 0
	for life := 0; ; life++ {
		cmd := exec.Command(self)
		cmd.Env = []string{asAgent + "=1", doorAt + "=" + server.URL}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Later and later: on a slow machine too, one of them gets to the end.
		timer := time.AfterFunc(time.Duration(life)*time.Duration(rand.IntN(4000))*time.Microsecond, func() { cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		if err == nil {
			break
		}
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Exited() {
			t.Fatalf("it ended by itself: %v", err)
		}
		kills++
	}
	t.Logf("killed %d times", kills)
	d.mu.Lock()
	defer d.mu.Unlock()
	if diff := cmp.Diff(want, tell(t, d)); diff != "" {
		t.Errorf("(-undisturbed +killed):\n%s", diff)
	}
}
