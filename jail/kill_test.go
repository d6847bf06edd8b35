package jail_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"glasshouse/id"
	"glasshouse/jail"
)

// An interrupted operation is one that the daemon is killed in. prepare makes what it
// needs, run does it, and states are those that the first jail may have afterwards; ""
// means that the jail does not exist.
type interrupted struct {
	name    string
	prepare func(w *world, m *jail.Manager) (of id.Jail, img jail.Image)
	run     func(m *jail.Manager, ctx context.Context, of id.Jail, img jail.Image) error
	states  []jail.State
}

var interruptions = []interrupted{
	{"create", nothing, func(m *jail.Manager, ctx context.Context, _ id.Jail, _ jail.Image) error {
		_, err := m.Create(ctx, jail.Spec{Start: true})
		return err
	}, []jail.State{"", jail.Created, jail.Running}},
	{"start", halted, func(m *jail.Manager, ctx context.Context, of id.Jail, _ jail.Image) error {
		_, err := m.Start(ctx, of)
		return err
	}, []jail.State{jail.Stopped, jail.Running, jail.Failed}},
	{"stop", runs, func(m *jail.Manager, ctx context.Context, of id.Jail, _ jail.Image) error {
		_, err := m.Stop(ctx, of, jail.StopOptions{})
		return err
	}, []jail.State{jail.Running, jail.Stopped}},
	{"pause", runs, func(m *jail.Manager, ctx context.Context, of id.Jail, _ jail.Image) error {
		_, err := m.Pause(ctx, of)
		return err
	}, []jail.State{jail.Running, jail.Paused}},
	{"delete", runs, func(m *jail.Manager, ctx context.Context, of id.Jail, _ jail.Image) error {
		return m.Delete(ctx, of)
	}, []jail.State{"", jail.Running}},
	{"checkpoint copied", runs, snapshotAs(jail.Copied), []jail.State{jail.Running}},
	{"checkpoint stacked", runs, snapshotAs(jail.Stacked), []jail.State{jail.Running}},
	{"branch", imaged, func(m *jail.Manager, ctx context.Context, _ id.Jail, img jail.Image) error {
		_, err := branch(m, ctx, img, false)
		return err
	}, []jail.State{jail.Running}},
	{"copy", imaged, func(m *jail.Manager, ctx context.Context, _ id.Jail, img jail.Image) error {
		_, err := branch(m, ctx, img, true)
		return err
	}, []jail.State{jail.Running}},
	{"rewind", imaged, func(m *jail.Manager, ctx context.Context, of id.Jail, img jail.Image) error {
		_, err := m.Rewind(ctx, of, img, jail.RewindOptions{})
		return err
	}, []jail.State{jail.Running}},
	{"rewind to a copy", func(w *world, m *jail.Manager) (id.Jail, jail.Image) {
		of, img := imaged(w, m)
		if _, err := branch(m, w.Context(), img, true); err != nil {
			w.Fatal(err)
		}
		return of, img
	}, func(m *jail.Manager, ctx context.Context, of id.Jail, img jail.Image) error {
		_, err := m.Rewind(ctx, of, img, jail.RewindOptions{})
		return err
	}, []jail.State{jail.Running}},
	{"limits", runs, func(m *jail.Manager, ctx context.Context, of id.Jail, _ jail.Image) error {
		_, err := m.Limit(ctx, of, jail.LimitChange{Limits: jail.Limits{MemoryMB: 64, MaxPIDs: 256}})
		return err
	}, []jail.State{jail.Running}},
}

func nothing(*world, *jail.Manager) (id.Jail, jail.Image) { return "", jail.Image{} }

func runs(w *world, m *jail.Manager) (id.Jail, jail.Image) { return w.running(m).ID, jail.Image{} }

func halted(w *world, m *jail.Manager) (id.Jail, jail.Image) {
	j := w.running(m)
	if _, err := m.Stop(w.Context(), j.ID, jail.StopOptions{}); err != nil {
		w.Fatal(err)
	}
	return j.ID, jail.Image{}
}

func imaged(w *world, m *jail.Manager) (id.Jail, jail.Image) {
	img, of := w.image(m)
	return of, img
}

func snapshotAs(how jail.Layering) func(*jail.Manager, context.Context, id.Jail, jail.Image) error {
	return func(m *jail.Manager, ctx context.Context, of id.Jail, img jail.Image) error {
		_, err := m.Checkpoint(ctx, of, jail.CheckpointOptions{
			Snapshot: id.NewSnapshot(), Images: img.Images, Layer: filepath.Join(img.Images, "layer"), Layering: how})
		return err
	}
}

// The daemon is killed at the first, the second, … operation of each change of a jail.
// The next daemon has a jail that works, or none, and nothing else.
func TestADaemonThatIsKilledAtAnyStepLeavesNothingHalfDone(t *testing.T) {
	for _, op := range interruptions {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n++ {
				over := false
				t.Run(fmt.Sprint(n), func(t *testing.T) { over = interrupt(t, op, n) })
				if t.Failed() || over {
					return
				}
			}
		})
	}
}

// interrupt kills the daemon at the nth step, and reports whether op has fewer.
func interrupt(t *testing.T, op interrupted, n int) (over bool) {
	w := newWorld(t)
	w.attended = true
	m, s := w.scripted()
	of, img := op.prepare(w, m)
	if img.Images == "" {
		img.Images = t.TempDir()
	}
	s.killAt(n)
	err := op.run(m, t.Context(), of, img)
	m.Close()
	if !s.wasKilled() {
		if err != nil {
			t.Errorf("with nothing in its way it returned %v, want success", err)
		}
		over = true
	}
	s.killAt(0)

	m = w.scriptedManager(s)
	all, err := m.List(t.Context(), jail.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var bodies []id.Jail
	found := jail.State("")
	for _, j := range all {
		bodies = append(bodies, j.ID)
		if j.Body != "" {
			bodies = append(bodies, j.Body)
		}
		if j.ID == of || of == "" {
			found = j.State
		}
		if j.State == jail.Paused {
			j, err = m.Resume(t.Context(), j.ID)
			if err != nil {
				t.Errorf("Resume = %v, want success", err)
			}
		}
		if j.State != jail.Running {
			j, err = m.Start(t.Context(), j.ID)
			if err != nil {
				t.Fatalf("Start = %v, want success", err)
			}
		}
		if got := w.sh(m, j.ID, "echo fine"); got != "fine" {
			t.Errorf("%s says %q, want fine", j.ID, got)
		}
	}
	if !slices.Contains(op.states, found) {
		t.Errorf("the jail is %q, want one of %q", found, op.states)
	}
	w.holdsBodies(all)
	w.noProcesses(bodies...)
	return over
}

// holdsBodies insists that there are records and directories of these jails alone. A
// jail that has left its first instance has two directories and one record.
func (w *world) holdsBodies(jails []jail.Jail) {
	w.Helper()
	records, err := w.db.Jails().All(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	if len(records) != len(jails) {
		w.Errorf("%d records, want %d", len(records), len(jails))
	}
	dirs, err := filepath.Glob(filepath.Join(w.dir, "jails", "*"))
	if err != nil {
		w.Fatal(err)
	}
	for _, dir := range dirs {
		if !slices.ContainsFunc(jails, func(j jail.Jail) bool {
			return id.Jail(filepath.Base(dir)) == j.ID || id.Jail(filepath.Base(dir)) == j.Body
		}) {
			w.Errorf("%s is left", dir)
		}
	}
}
