package test_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/api/wire"
	"glasshouse/id"
)

// modelOfALostHost is a scripted model whose agent appends a line in each step, and once creates a
// task outside of its jail.
func modelOfALostHost() string {
	var b strings.Builder
	b.WriteString(`
conversations:
  - when: {user: "write a short plan"}
    turns: [{text: "1. do it"}]
  - when: {user: "carry out the plan"}
    turns:
`)
	for n := range 10 {
		fmt.Fprintf(&b, "      - {delay: 700ms, calls: [{tool: bash, arguments: {command: \"echo %d >> lines\"}}]}\n", n)
		if n == 5 {
			b.WriteString("      - {calls: [{tool: create_task, arguments: {title: \"Look again\"}}]}\n")
		}
	}
	b.WriteString("      - {text: \"done\", delay: 1s}\n")
	return b.String()
}

// TestLostHost kills a daemon and everything in its jails, and removes its programs and memory
// images. Another daemon continues the runs from the snapshots in the object store: each line
// is written once and in order, although the steps after the snapshot are repeated, and the
// task is created once.
func TestLostHost(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a lease to expire: runs without -short")
	}
	objects := t.TempDir()
	p := openPair(t, modelOfALostHost(), "objects: "+(&url.URL{Scheme: "file", Path: objects}).String(), "checkpoints: {steps: 4}")
	a, b := p.daemons[0], p.daemons[1]
	b.kill() // now daemon a owns all runs
	var runs []id.Run
	for n := range 3 {
		r, err := a.StartRun(t.Context(), wire.StartRun{Goal: "do it", Session: fmt.Sprintf("sess-%d", n), Agent: &wire.RunAgent{Spawner: "jail", Keep: true, Jail: &wire.CreateJail{
			Policy: &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: allowAll}}, Level: 3, Match: "last"},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r.ID)
	}
	// The run has steps after its newest copy, among them the task.
	late := func(r id.Run) bool {
		now, err := a.Client.Run(t.Context(), r)
		return err == nil && now.RemoteCheckpoint != "" && now.Steps >= 12
	}
	for _, r := range runs {
		if !within(2*time.Minute, func() bool { return late(r) }) {
			now, err := a.Client.Run(t.Context(), r)
			t.Fatalf("no copy of a snapshot after two minutes: %+v, %v\n%s", now, err, a.log)
		}
	}
	old := map[id.Run]id.Jail{}
	for _, r := range runs {
		now, err := a.Client.Run(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if now.State != "active" {
			t.Fatalf("run %s is %s before the host is lost", r, now.State)
		}
		old[r] = now.Jail
	}
	a.kill()
	for _, j := range old {
		for _, pid := range a.inits(j) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	for _, name := range []string{"agent", "pages", "run/hot"} {
		os.RemoveAll(filepath.Join(a.data, name))
	}
	b.start()
	for _, r := range runs {
		got := b.settled(r, "done", "failed")
		if got.State != "done" || got.Jail == old[r] || got.Restarts != 0 {
			t.Errorf("run = %+v, want it done in another jail, with the same process\n%s", got, b.log)
		}
		text := b.sh(got.Jail, "cat /workspace/lines")
		if want := "0\n1\n2\n3\n4\n5\n6\n7\n8\n9"; strings.TrimSpace(text) != want {
			t.Errorf("lines of run %s = %q, want each once and in order\n%s", r, text, b.log)
		}
	}
	tasks, err := p.db.Autonomy().Tasks(t.Context(), autonomy.TaskFilter{Limit: 100})
	if err != nil || len(tasks) != len(runs) {
		t.Errorf("%d tasks, %v, want one of each run", len(tasks), err)
	}
}
