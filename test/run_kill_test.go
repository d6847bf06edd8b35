package test_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/capability/memory"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/store"
)

// modelOfAKilledRun is a scripted model whose run includes all operations that take time: slow
// responses, writes, commands, memory, an approval and reads.
const modelOfAKilledRun = `
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. do it", delay: 50ms}]
  - when: {user: "carry out the plan"}
    turns:
      - {delay: 100ms, calls: [{tool: write_file, arguments: {path: note, text: "as it should be\n"}}]}
      - {delay: 100ms, calls: [{tool: bash, arguments: {command: "echo one >> count; sleep 0.3"}}]}
      - calls: [{tool: memory__put, arguments: {scope: run, key: thought, value: deep}}]
      - {delay: 50ms, calls: [{tool: bash, arguments: {command: "rm -rf build; echo cleaned >> count"}}]}
      - calls: [{tool: create_task, arguments: {title: "Look again"}}]
      - {delay: 100ms, calls: [{tool: bash, arguments: {command: "sleep 0.2; echo two >> count; cat count"}}]}
      - {text: "counted", delay: 50ms}
`

// A wreck is a daemon that is killed, as are its agents, without an effect on the results of
// runs.
type wreck struct {
	*daemonHarness
	c    *client.Client // outlives the daemon
	rand *rand.Rand
}

func openWreck(t *testing.T, model string) *wreck {
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("GLASSHOUSE_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("GLASSHOUSE_SEED=%d", seed)
	h := open(t, models(t, model)+"pool: {size: 0}\n")
	c, err := client.New(client.Options{Addr: "unix://" + filepath.Join(h.data, "glasshouse.sock")})
	if err != nil {
		t.Fatal(err)
	}
	w := &wreck{daemonHarness: h, c: c, rand: rand.New(rand.NewPCG(seed, seed))}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { w.approve(ctx) })
	t.Cleanup(func() { stop(); wg.Wait() })
	return w
}

// approve approves each request after a moment.
func (w *wreck) approve(ctx context.Context) {
	for ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		waiting, err := w.c.Approvals(ctx, "", "")
		if err != nil {
			continue
		}
		for _, a := range waiting {
			w.c.Answer(ctx, a.ID, wire.AnswerApproval{Answer: "allow"})
		}
	}
}

// begin starts a run, and retries until it succeeds.
func (w *wreck) begin(session string) id.Run {
	w.Helper()
	policy := &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission": {"*": "allow", "bash": {"*": "allow", "rm -rf *": "ask"}}}`}}, Level: 2, Match: "last"}
	r, err := w.c.StartRun(w.Context(), wire.StartRun{Goal: "do it", Session: session, Agent: &wire.RunAgent{Keep: true, Jail: &wire.CreateJail{Policy: policy}}})
	if err != nil {
		w.Fatal(err)
	}
	return r.ID
}

// killAgent kills the agent of a run with SIGKILL.
func (w *wreck) killAgent(r id.Run) (killed bool) {
	now, err := w.c.Run(w.Context(), r)
	if err != nil || now.Jail == "" {
		return false
	}
	for _, pid := range agentsIn(now.Jail) {
		killed = syscall.Kill(pid, syscall.SIGKILL) == nil || killed
	}
	return killed
}

// agentsIn returns the agent processes in a jail.
func agentsIn(j id.Jail) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, at := range all {
		group, _ := os.ReadFile(at)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(at), "cmdline"))
		if strings.Contains(string(group), string(j)) && strings.Contains(strings.Split(string(line)+"\x00", "\x00")[0], "glasshouse-agent") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(at)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// killSomething kills the daemon, an agent or both, and returns what it killed.
func (w *wreck) killSomething(runs []id.Run) string {
	r := runs[w.rand.IntN(len(runs))]
	where := "away"
	if now, err := w.c.Run(w.Context(), r); err == nil {
		where = fmt.Sprintf("%s %s after %d steps", now.State, now.Why, now.Steps)
	}
	what := [3]string{"daemon", "agent", "both"}[w.rand.IntN(3)]
	if what != "daemon" && !w.killAgent(r) {
		what = "daemon"
	}
	if what != "agent" {
		w.kill()
		if w.rand.IntN(4) == 0 { // kill it again while it recovers
			what += " twice"
			again := exec.Command(w.bin, "serve", "--data", w.data, "--config", w.config, "--listen", "")
			if err := again.Start(); err == nil {
				time.Sleep(time.Duration(w.rand.IntN(800)) * time.Millisecond)
				again.Process.Kill()
				again.Wait()
			}
		}
		w.start()
	}
	return fmt.Sprintf("%s, when run %s was %s", what, r, where)
}

// remains is the result of a run.
type remains struct {
	State, Result, Count, Note, Tasks string
	Tools                             string // the result of each step, by key
	Steps                             int64
}

func (w *wreck) remains(r id.Run) remains {
	w.Helper()
	now := w.settled(r, "done", "failed", "cancelled")
	out := remains{State: now.State, Result: now.Result, Steps: now.Budget.Consumed["steps"]}
	out.Count = w.sh(now.Jail, "cat /workspace/count")
	out.Note = w.sh(now.Jail, "cat /workspace/note")
	out.Tasks = w.sh(now.Jail, "set -- /workspace/.tasks/*.md; echo $#")
	for a, err := range w.RunActions(w.Context(), r) {
		if err != nil {
			w.Fatal(err)
		}
		if a.Kind != "model" {
			out.Tools += fmt.Sprintf("%s %s %s; ", a.Key, a.Name, a.State)
		}
	}
	if !within(20*time.Second, func() bool { return len(agentsIn(now.Jail)) == 0 }) {
		w.Errorf("run %s has ended, but its agents still run: %v", r, agentsIn(now.Jail))
	}
	return out
}

// TestRunSurvivesKillsAtRandomMoments kills the daemon, the agent or both at random
// moments of runs. The seed is logged; GLASSHOUSE_SEED repeats it.
func TestRunSurvivesKillsAtRandomMoments(t *testing.T) {
	kills, atOnce := 4, 2
	if thorough {
		kills, atOnce = 60, 3
	}
	w := openWreck(t, modelOfAKilledRun)
	began := time.Now()
	want := w.remains(w.begin("sess-calm"))
	took := time.Since(began)
	t.Logf("undisturbed run, in %s: %+v", took.Round(time.Millisecond), want)
	if want.State != "done" || want.Count != "one\ncleaned\ntwo" || want.Tasks != "1" {
		t.Fatalf("undisturbed run: got %+v\n%s", want, w.log)
	}
	for done := 0; done < kills; {
		var runs []id.Run
		for n := range atOnce {
			runs = append(runs, w.begin(fmt.Sprintf("sess-%d-%d", done, n)))
		}
		for range 1 + w.rand.IntN(3) {
			time.Sleep(time.Duration(w.rand.Int64N(int64(took * 3 / 4))))
			t.Logf("%d: %s", done, w.killSomething(runs))
			done++
		}
		for _, r := range runs {
			got := w.remains(r)
			// An interrupted model call is repeated, and its partial output is charged.
			again := got.Steps - want.Steps
			got.Steps = want.Steps
			if got != want || again < 0 || again > int64(done) {
				t.Errorf("run %s, with %d additional steps:\n got %+v\nwant %+v\n%s", r, again, got, want, w.log)
			}
			now, err := w.Client.Run(w.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.DeleteJail(w.Context(), now.Jail); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			break
		}
	}
	if rep, err := w.VerifyChain(w.Context(), true); err != nil || rep.Bad != nil {
		t.Errorf("verifying the audit log: %+v, %v", rep, err)
	}
}

// TestRunSurvivesKillsDuringRewindAndBranch kills while a client rewinds a run to a checkpoint
// and branches it. The client retries until both succeed.
func TestRunSurvivesKillsDuringRewindAndBranch(t *testing.T) {
	rounds := 1
	if thorough {
		rounds = 12
	}
	w := openWreck(t, modelOfAKilledRun)
	for round := 0; round < rounds && !t.Failed(); round++ {
		session := fmt.Sprintf("sess-%d", round)
		r := w.begin(session)
		if !within(time.Minute, func() bool {
			now, err := w.c.Run(t.Context(), r)
			return err == nil && now.Steps >= int64(2+w.rand.IntN(6))
		}) {
			t.Fatalf("the run made no step\n%s", w.log)
		}
		var asked sync.WaitGroup
		asked.Go(func() { w.goBackAndBranch(r) })
		for range 2 {
			time.Sleep(time.Duration(w.rand.IntN(1500)) * time.Millisecond)
			t.Logf("%d: %s", round, w.killSomething([]id.Run{r}))
		}
		asked.Wait()
		runs, err := client.Collect(w.Runs(t.Context(), session, ""))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d: %d runs", round, len(runs))
		for _, one := range runs {
			got := w.remains(one.ID)
			if got.State != "done" || got.Result != "counted" || got.Count != "one\ncleaned\ntwo" || got.Note != "as it should be" {
				t.Errorf("run %s, of %q: %+v\n%s", one.ID, one.Of, got, w.log)
			}
		}
		jails, err := client.Collect(w.Jails(t.Context(), client.JailFilter{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jails {
			if err := w.DeleteJail(t.Context(), j.ID); err != nil {
				t.Error(err)
			}
		}
	}
}

// The client retries a rewind that another daemon is finishing. A run that has ended, and its jail,
// stay unchanged.
func TestConcurrentRewindsOfRun(t *testing.T) {
	// The model's delay before the approval leaves time for the checkpoint.
	w := openWreck(t, strings.Replace(modelOfAKilledRun, `- {delay: 50ms, calls: [{tool: bash, arguments: {command: "rm -rf build`, `- {delay: 3s, calls: [{tool: bash, arguments: {command: "rm -rf build`, 1))
	r := w.begin("sess-twice")
	if !within(time.Minute, func() bool {
		now, err := w.c.Run(t.Context(), r)
		return err == nil && now.Steps >= 4
	}) {
		t.Fatalf("the run made no step\n%s", w.log)
	}
	at, err := w.c.CheckpointRun(t.Context(), r, wire.TakeCheckpoint{Pause: true})
	if err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	for range 3 {
		both.Go(func() { w.c.ResumeRun(t.Context(), r, wire.ResumeRun{Checkpoint: at.ID}) })
	}
	both.Wait()
	check := func(when string) {
		if got := w.remains(r); got.State != "done" || got.Result != "counted" || got.Count != "one\ncleaned\ntwo" {
			t.Errorf("%s: %+v\n%s", when, got, w.log)
		}
	}
	check("taken back three times")
	if _, err := w.c.ResumeRun(t.Context(), r, wire.ResumeRun{Checkpoint: at.ID}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("rewind of an ended run: got %v, want conflict", err)
	}
	check("when it had ended")

	remembers := func() string {
		t.Helper()
		db, err := store.Open(t.Context(), filepath.Join(w.data, "glasshouse.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		all, err := memory.New(db.Memory(), memory.Limits{}).Capture(t.Context(), memory.RunScope(string(r)))
		if err != nil {
			t.Fatal(err)
		}
		return string(all)
	}
	if !strings.Contains(remembers(), "deep") {
		t.Errorf("memory of the open session = %s, want deep", remembers())
	}
	for range 2 {
		if err := w.c.CloseSession(t.Context(), "sess-twice"); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(remembers(), "deep") {
			t.Errorf("memory of the closed session = %s, want none", remembers())
		}
	}
}

// goBackAndBranch rewinds a run to a checkpoint and branches it there. It retries until both are
// done or the run has ended.
func (w *wreck) goBackAndBranch(r id.Run) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var at id.Checkpoint
	insist := func(what string, do func() error) {
		for {
			err := do()
			if err == nil || fault.KindOf(err) == fault.Conflict {
				return
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				w.Errorf("%s: %v", what, err)
				return
			}
		}
	}
	insist("take a checkpoint", func() error {
		p, err := w.c.CheckpointRun(ctx, r, wire.TakeCheckpoint{Pause: true})
		at = p.ID
		return err
	})
	if at != "" {
		insist("branch", func() error {
			_, err := w.c.ResumeRun(ctx, r, wire.ResumeRun{Checkpoint: at, Branch: 1})
			return err
		})
		insist("go back", func() error {
			_, err := w.c.ResumeRun(ctx, r, wire.ResumeRun{Checkpoint: at})
			return err
		})
	}
	insist("go on", func() error {
		now, err := w.c.Run(ctx, r)
		if err == nil && now.State == "paused" && now.Why == "checkpoint" {
			_, err = w.c.ResumeRun(ctx, r, wire.ResumeRun{})
		}
		return err
	})
}

// TestCommandIsNotRepeatedAfterRestartOfHost kills the daemon and all processes of a jail while a
// command is executed that has changed a file. The agent learns that the outcome is unknown.
func TestCommandIsNotRepeatedAfterRestartOfHost(t *testing.T) {
	h := open(t, models(t, `
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. do it"}]
  - when: {user: "carry out the plan"}
    turns:
      - calls: [{tool: bash, arguments: {command: "echo one >> count"}}]
      - calls: [{tool: bash, arguments: {command: "echo two >> count; sleep 600"}}]
      - calls: [{tool: bash, arguments: {command: "cat count"}}]
      - text: "done"
`))
	r, err := h.StartRun(t.Context(), wire.StartRun{Goal: "do it", Agent: &wire.RunAgent{Jail: &wire.CreateJail{Policy: allowed()}}})
	if err != nil {
		t.Fatal(err)
	}
	if !within(time.Minute, func() bool {
		r, err = h.Client.Run(t.Context(), r.ID)
		return err == nil && r.Steps >= 5 && strings.Contains(h.sh(r.Jail, "cat /workspace/count"), "two")
	}) {
		t.Fatalf("the command has not started: %+v, %v\n%s", r, err, h.log)
	}
	inits := h.initsOf(r.Jail)
	h.kill()
	for _, pid := range inits {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	h.start()
	r = h.settled(r.ID, "done", "failed")
	if got := h.output(r.ID, "bash"); r.State != "done" || !strings.Contains(got, "one\\ntwo\\n\"") {
		t.Errorf("the run is %s %s, and the file has %s, want each line once\n%s", r.State, r.Error, got, h.log)
	}
	tools := slices.DeleteFunc(h.did(r.ID), func(s string) bool { return !strings.HasPrefix(s, "tool") })
	same(t, "steps", tools, "tool bash done", "tool bash failed", "tool bash done")
}

// A person pauses the jail of a run, and the daemon is killed. The next one leaves the jail paused, and
// the run continues when the person resumes it.
func TestJailPausedByPersonStaysPausedAfterDaemonKill(t *testing.T) {
	h := open(t, models(t, `
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. do it"}]
  - when: {user: "carry out the plan"}
    turns:
      - calls: [{tool: bash, arguments: {command: "touch begun; sleep 1; echo once >> count"}}]
      - calls: [{tool: bash, arguments: {command: "cat count"}}]
      - text: "done"
`))
	r, err := h.StartRun(t.Context(), wire.StartRun{Goal: "do it", Agent: &wire.RunAgent{Jail: &wire.CreateJail{Policy: allowed()}}})
	if err != nil {
		t.Fatal(err)
	}
	if !within(time.Minute, func() bool {
		r, err = h.Client.Run(t.Context(), r.ID)
		return err == nil && r.Steps >= 3 && h.sh(r.Jail, "ls /workspace") == "begun"
	}) {
		t.Fatalf("the command has not started: %+v, %v\n%s", r, err, h.log)
	}
	if _, err := h.PauseJail(t.Context(), r.Jail); err != nil {
		t.Fatal(err)
	}
	h.kill()
	h.start()
	if !within(time.Minute, func() bool { return strings.Contains(h.log.String(), "a run cannot continue yet") }) {
		t.Errorf("the supervisor does not wait for the jail\n%s", h.log)
	}
	if j, err := h.Jail(t.Context(), r.Jail); err != nil || j.State != "paused" {
		t.Errorf("the jail is %s, %v, want it paused", j.State, err)
	}
	if _, err := h.ResumeJail(t.Context(), r.Jail); err != nil {
		t.Fatal(err)
	}
	r = h.settled(r.ID, "done", "failed")
	if got := h.output(r.ID, "bash"); r.State != "done" || !strings.Contains(got, `"once\n"`) {
		t.Errorf("the run is %s %s, and the file has %s, want one line\n%s", r.State, r.Error, got, h.log)
	}
}
