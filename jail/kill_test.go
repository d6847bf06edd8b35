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

// interrupted is an operation during which the daemon is killed. prepare creates what the
// operation needs, run executes it, and states are the valid states of the first jail
// afterwards; "" means that the jail does not exist.
type interrupted struct {
	name    string
	prepare func(h *harness, m *jail.Manager) (of id.Jail, img jail.Image)
	run     func(m *jail.Manager, ctx context.Context, of id.Jail, img jail.Image) error
	states  []jail.State
}

var interruptions = []interrupted{
	{"create", noJail, func(m *jail.Manager, ctx context.Context, _ id.Jail, _ jail.Image) error {
		_, err := m.Create(ctx, jail.Spec{Start: true})
		return err
	}, []jail.State{"", jail.Created, jail.Running}},
	{"start", stoppedJail, func(m *jail.Manager, ctx context.Context, of id.Jail, _ jail.Image) error {
		_, err := m.Start(ctx, of)
		return err
	}, []jail.State{jail.Stopped, jail.Running, jail.Failed}},
	{"stop", running, func(m *jail.Manager, ctx context.Context, of id.Jail, _ jail.Image) error {
		_, err := m.Stop(ctx, of, jail.StopOptions{})
		return err
	}, []jail.State{jail.Running, jail.Stopped}},
	{"pause", running, func(m *jail.Manager, ctx context.Context, of id.Jail, _ jail.Image) error {
		_, err := m.Pause(ctx, of)
		return err
	}, []jail.State{jail.Running, jail.Paused}},
	{"delete", running, func(m *jail.Manager, ctx context.Context, of id.Jail, _ jail.Image) error {
		return m.Delete(ctx, of)
	}, []jail.State{"", jail.Running}},
	{"checkpoint copied", running, snapshotAs(jail.Copied), []jail.State{jail.Running}},
	{"checkpoint stacked", running, snapshotAs(jail.Stacked), []jail.State{jail.Running}},
	{"branch", snapshotted, func(m *jail.Manager, ctx context.Context, _ id.Jail, img jail.Image) error {
		_, err := branch(m, ctx, img, false)
		return err
	}, []jail.State{jail.Running}},
	{"copy", snapshotted, func(m *jail.Manager, ctx context.Context, _ id.Jail, img jail.Image) error {
		_, err := branch(m, ctx, img, true)
		return err
	}, []jail.State{jail.Running}},
	{"rewind", snapshotted, func(m *jail.Manager, ctx context.Context, of id.Jail, img jail.Image) error {
		_, err := m.Rewind(ctx, of, img, jail.RewindOptions{})
		return err
	}, []jail.State{jail.Running}},
	{"rewind to a copy", func(h *harness, m *jail.Manager) (id.Jail, jail.Image) {
		of, img := snapshotted(h, m)
		if _, err := branch(m, h.Context(), img, true); err != nil {
			h.Fatal(err)
		}
		return of, img
	}, func(m *jail.Manager, ctx context.Context, of id.Jail, img jail.Image) error {
		_, err := m.Rewind(ctx, of, img, jail.RewindOptions{})
		return err
	}, []jail.State{jail.Running}},
	{"limits", running, func(m *jail.Manager, ctx context.Context, of id.Jail, _ jail.Image) error {
		_, err := m.Limit(ctx, of, jail.LimitChange{Limits: jail.Limits{MemoryMB: 64, MaxPIDs: 256}})
		return err
	}, []jail.State{jail.Running}},
}

func noJail(*harness, *jail.Manager) (id.Jail, jail.Image) { return "", jail.Image{} }

func running(h *harness, m *jail.Manager) (id.Jail, jail.Image) { return h.running(m).ID, jail.Image{} }

func stoppedJail(h *harness, m *jail.Manager) (id.Jail, jail.Image) {
	j := h.running(m)
	if _, err := m.Stop(h.Context(), j.ID, jail.StopOptions{}); err != nil {
		h.Fatal(err)
	}
	return j.ID, jail.Image{}
}

func snapshotted(h *harness, m *jail.Manager) (id.Jail, jail.Image) {
	img, of := h.image(m)
	return of, img
}

func snapshotAs(how jail.Layering) func(*jail.Manager, context.Context, id.Jail, jail.Image) error {
	return func(m *jail.Manager, ctx context.Context, of id.Jail, img jail.Image) error {
		_, err := m.Checkpoint(ctx, of, jail.CheckpointOptions{
			Snapshot: id.NewSnapshot(), Images: img.Images, Layer: filepath.Join(img.Images, "layer"), Layering: how})
		return err
	}
}

// The daemon is killed at each step of each operation. After a restart of the daemon every
// jail works, and nothing else remains.
func TestKillAtEveryStep(t *testing.T) {
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

// interrupt kills the daemon at the nth step, and reports whether op has fewer steps.
func interrupt(t *testing.T, op interrupted, n int) (over bool) {
	h := newHarness(t)
	h.scriptParts = true
	m, s := h.scripted()
	of, img := op.prepare(h, m)
	if img.Images == "" {
		img.Images = t.TempDir()
	}
	s.killAt(n)
	err := op.run(m, t.Context(), of, img)
	m.Close()
	if !s.wasKilled() {
		if err != nil {
			t.Errorf("%s without a kill = %v, want nil", op.name, err)
		}
		over = true
	}
	s.killAt(0)

	m = h.scriptedManager(s)
	all, err := m.List(t.Context(), jail.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var instances []id.Jail
	found := jail.State("")
	for _, j := range all {
		instances = append(instances, j.ID)
		if j.InstanceID != "" {
			instances = append(instances, j.InstanceID)
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
		if got := h.sh(m, j.ID, "echo fine"); got != "fine" {
			t.Errorf("output of %s = %q, want fine", j.ID, got)
		}
	}
	if !slices.Contains(op.states, found) {
		t.Errorf("state = %q, want one of %q", found, op.states)
	}
	h.wantInstances(all)
	h.wantNoInits(instances...)
	return over
}

// wantInstances checks that there are records and directories of these jails only. A jail that
// has had several instances can have two directories and one record.
func (h *harness) wantInstances(jails []jail.Jail) {
	h.Helper()
	records, err := h.db.Jails().All(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	if len(records) != len(jails) {
		h.Errorf("records = %d, want %d", len(records), len(jails))
	}
	dirs, err := filepath.Glob(filepath.Join(h.dir, "jails", "*"))
	if err != nil {
		h.Fatal(err)
	}
	for _, dir := range dirs {
		if !slices.ContainsFunc(jails, func(j jail.Jail) bool {
			return id.Jail(filepath.Base(dir)) == j.ID || id.Jail(filepath.Base(dir)) == j.InstanceID
		}) {
			h.Errorf("%s exists, want it removed", dir)
		}
	}
}
