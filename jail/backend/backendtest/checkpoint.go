package backendtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
)

// checkpoint tests the contract of jail.Checkpointer, for backends that implement it.
func (s *suite) checkpoint(t *testing.T) {
	cp, ok := s.backend.(jail.Checkpointer)
	if !ok {
		t.Skip("this backend cannot checkpoint jails")
	}
	s.clause(t, "SealLayerAtRest", s.sealAtRest)
	s.clause(t, "SealLayerThenCrash", s.sealThenCrash)
	if cannot := cp.CanCheckpoint(t.Context()); errors.Is(cannot, fault.Unsupported) {
		s.clause(t, "WhatItCannotItRefuses", s.cannotCheckpoint)
	}
	s.checkpointer(t)
	s.clause(t, "Keeps", s.keeps)
	s.clause(t, "KeepsOrRefuses", s.keepsOrRefuses)
	s.clause(t, "DumpLeavesFrozenAndUnharmed", s.dumpLeavesFrozenAndUnharmed)
	s.clause(t, "RestoreIsFrozenUntilThawed", s.restoreIsFrozenUntilThawed)
	s.clause(t, "SeveralFromOne", s.severalFromOne)
	s.clause(t, "CopyOfACopy", s.copyOfACopy)
	s.clause(t, "CommandsGoOn", s.commandsGoOn)
	s.clause(t, "Outward", s.outward)
	s.clause(t, "FullOfProcesses", s.fullOfProcesses)
	s.clause(t, "FullOfMemory", s.fullOfMemory)
	s.clause(t, "FailedDump", s.failedDump)
	s.clause(t, "FailedRestore", s.failedRestore)
	s.clause(t, "HelpersDie", s.helpersDie)
	s.clause(t, "ProcessesDie", s.processesDie)
	s.clause(t, "CleanInTheMiddleOfRestore", s.cleanInTheMiddleOfRestore)
	s.clause(t, "CopyLayer", s.copyLayer)
	s.clause(t, "SealLayer", s.sealLayer)
	s.clause(t, "Restored", s.restoredJails)
}

// cannotCheckpoint checks that a backend without checkpoint support returns unsupported.
func (s *suite) cannotCheckpoint(t *testing.T) {
	cp := s.backend.(jail.Checkpointer)
	b := s.newBox(t)
	b.sh(t, "echo one > /root/a")
	if err := cp.Dumpable(t.Context(), b.plan, b.inst); !errors.Is(err, fault.Unsupported) {
		t.Errorf("Dumpable = %v, want unsupported", err)
	}
	img := s.newImage(t, b.plan)
	if err := cp.Dump(t.Context(), b.plan, b.inst, img.dir); !errors.Is(err, fault.Unsupported) {
		t.Errorf("Dump = %v, want unsupported", err)
	}
	p := img.newPlan(t, s)
	if _, err := cp.Restore(t.Context(), p, img.dir); !errors.Is(err, fault.Unsupported) {
		t.Errorf("Restore = %v, want unsupported", err)
	}
	mustNotLeak(t, p)
	if got := b.sh(t, "cat /root/a"); got != "one" {
		t.Errorf("file after the refused operations = %q, want one", got)
	}
	b.kill(t)
}

// checkpointer returns the backend's Checkpointer. It skips the test if checkpoints are not
// supported by the backend or on this host.
func (s *suite) checkpointer(t *testing.T) jail.Checkpointer {
	t.Helper()
	cp, ok := s.backend.(jail.Checkpointer)
	if !ok {
		t.Skip("this backend cannot checkpoint jails")
	}
	switch err := cp.CanCheckpoint(t.Context()); {
	case errors.Is(err, fault.Unsupported):
		if fault.RemedyOf(err) == "" {
			t.Errorf("CanCheckpoint names no remedy: %v", err)
		}
		t.Skipf("%v (remedy: %s)", err, fault.RemedyOf(err))
	case err != nil:
		t.Fatalf("CanCheckpoint was inconclusive: %v", err)
	}
	return cp
}

// restoredJails runs the general contract with jails that were dumped after their creation and
// restored. A backend may differ where its other jails do.
func (s *suite) restoredJails(t *testing.T) {
	s.restored = true
	defer func() { s.restored = false }()
	s.clause(t, "Inside", s.inside)
	s.clause(t, "Owners", s.owners)
	s.clause(t, "WritesLandInTheUpper", s.writesLandInTheUpper)
	s.clause(t, "Workspace", s.workspace)
	s.clause(t, "Mounts", s.mounts)
	s.clause(t, "FreezeAndThaw", s.freezeAndThaw)
	s.clause(t, "KillLeavesNoProcess", s.killLeavesNoProcess)
	s.clause(t, "DoneClosesWhenInitDies", s.doneClosesWhenInitDies)
	s.clause(t, "OpenFindsTheJailAgain", s.openFindsTheJailAgain)
	s.clause(t, "CleanAfterEveryDeath", s.cleanAfterEveryDeath)
	s.clause(t, "StoppedJailStartsAgain", s.stoppedJailStartsAgain)
	s.clause(t, "MountShowsAStoppedJail", s.mountShowsAStoppedJail)
	s.clause(t, "Limits", s.limits)
	s.clause(t, "StatsArePlausible", s.statsArePlausible)
	s.clause(t, "TwoJailsStayApart", s.twoJailsStayApart)
	s.clause(t, "Attacks", s.attacks)
}

// cleanInTheMiddleOfRestore is like cleanInTheMiddleOfCreate, but the daemons restore a jail from
// images.
func (s *suite) cleanInTheMiddleOfRestore(t *testing.T) {
	b := s.newBox(t)
	b.start(t, "exec probe fork 6")
	img := b.snapshot(t)
	before := fingerprint(t, img.dir)
	s.cleanInTheMiddle(t, "/Checkpoint/CleanInTheMiddleOfRestore", func(t *testing.T) order {
		return order{Plan: img.newPlan(t, s), Images: img.dir}
	})
	if after := fingerprint(t, img.dir); after != before {
		t.Errorf("the images have changed:\n%s\nwere\n%s", after, before)
	}
	b.kill(t)
}

// An image is a checkpoint of a jail: its processes and its files.
type image struct {
	dir   string
	layer string
	plan  jail.Plan // plan of the source jail
}

// newImage prepares a directory for an image, and checks at the end of the test that nothing of
// it is still mounted.
func (s *suite) newImage(t *testing.T, p jail.Plan) *image {
	t.Helper()
	base := shortTempDir(t)
	img := &image{dir: filepath.Join(base, "images"), layer: filepath.Join(base, "layer.img"), plan: p}
	if err := os.Mkdir(img.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left := loopsOf(jail.Plan{ID: id.Jail(base)})
		for end := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(end); left = loopsOf(jail.Plan{ID: id.Jail(base)}) {
			time.Sleep(10 * time.Millisecond)
		}
		if len(left) > 0 {
			t.Errorf("resources of the layer left on the host: %v", left)
		}
		entries, err := os.ReadDir(base)
		for _, e := range entries {
			if e.Name() != "images" && e.Name() != "layer.img" {
				t.Errorf("unexpected file %s next to the images, %v", e.Name(), err)
			}
		}
	})
	return img
}

// freeze parks init and freezes the jail in a steady state, as Dump requires.
func (b *box) freeze(t *testing.T) {
	t.Helper()
	if err := b.tryHold(t); err != nil {
		t.Fatal(err)
	}
}

func (b *box) tryHold(t *testing.T) error {
	t.Helper()
	if err := b.ctl.Park(deadline(t, time.Minute), 30*time.Second); err != nil {
		return fmt.Errorf("Park: %w", err)
	}
	if err := b.inst.Freeze(deadline(t, 30*time.Second)); err != nil {
		return fmt.Errorf("Freeze: %w", err)
	}
	if err := b.suite.checkpointer(t).Stabilize(deadline(t, 30*time.Second), b.plan, b.inst); err != nil {
		return fmt.Errorf("Steady: %w", err)
	}
	return nil
}

// letGo undoes hold.
func (b *box) letGo(t *testing.T) {
	t.Helper()
	if err := b.inst.Thaw(deadline(t, 30*time.Second)); err != nil {
		t.Fatalf("Thaw: %v", err)
	}
	b.ctl.Unpark()
}

// take dumps a held jail.
func (b *box) take(t *testing.T) *image {
	t.Helper()
	cp, img := b.suite.checkpointer(t), b.suite.newImage(t, b.plan)
	if err := cp.Dumpable(t.Context(), b.plan, b.inst); err != nil {
		t.Fatalf("Dumpable: %v", err)
	}
	if err := cp.Dump(deadline(t, time.Minute), b.plan, b.inst, img.dir); err != nil {
		t.Fatalf("Dump: %v", err)
	}
	if err := copyLayer(deadline(t, time.Minute), cp, b.plan, img.layer); err != nil {
		t.Fatalf("copy the layer: %v", err)
	}
	return img
}

// snapshot takes an image of a jail and lets it continue.
func (b *box) snapshot(t *testing.T) *image {
	t.Helper()
	b.freeze(t)
	img := b.take(t)
	b.letGo(t)
	return img
}

// plan returns a plan for another jail from img, with new ids, name and directory.
func (img *image) newPlan(t *testing.T, s *suite, change ...func(*jail.Plan)) jail.Plan {
	t.Helper()
	return s.newPlan(t, append([]func(*jail.Plan){func(p *jail.Plan) {
		p.Limits, p.Network, p.Mounts, p.Workspace = img.plan.Limits, img.plan.Network, img.plan.Mounts, img.plan.Workspace
		p.Sealed = append([]string{img.layer}, img.plan.Sealed...)
	}}, change...)...)
}

// frozen restores a frozen jail from img.
func (s *suite) frozen(t *testing.T, img *image, p jail.Plan) *box {
	t.Helper()
	inst, err := s.checkpointer(t).Restore(deadline(t, time.Minute), p, img.dir)
	if err != nil {
		t.Fatalf("Restore: %v", err)
	}
	t.Cleanup(func() { inst.Close() })
	return &box{suite: s, plan: p, inst: inst, ctl: control.Dial(inst.Control())}
}

// restore restores a jail from img and thaws it.
func (s *suite) restore(t *testing.T, img *image, change ...func(*jail.Plan)) *box {
	t.Helper()
	b := s.frozen(t, img, img.newPlan(t, s, change...))
	b.thaw(t)
	return b
}

func (b *box) thaw(t *testing.T) {
	t.Helper()
	if err := b.inst.Thaw(deadline(t, 30*time.Second)); err != nil {
		t.Fatalf("Thaw: %v", err)
	}
	if _, err := b.ctl.WaitReady(deadline(t, 30*time.Second)); err != nil {
		t.Fatalf("a restored init does not answer: %v", err)
	}
}

// recreate creates a jail by dumping and removing another jail and restoring it.
func (s *suite) recreate(t *testing.T, p jail.Plan) *box {
	t.Helper()
	cp := s.checkpointer(t)
	first := s.newPlan(t, func(first *jail.Plan) {
		first.Limits, first.Network, first.Mounts, first.Workspace = p.Limits, p.Network, p.Mounts, p.Workspace
		first.Lower, first.Init = p.Lower, p.Init
	})
	inst, err := s.backend.Create(t.Context(), first)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	defer inst.Close()
	b := s.adopt(t, first, inst)
	b.freeze(t)
	img := s.newImage(t, first)
	if err := cp.Dump(deadline(t, time.Minute), first, inst, img.dir); err != nil {
		t.Fatalf("Dump: %v", err)
	}
	b.kill(t)
	if err := cp.CleanAndRemoveLayer(context.WithoutCancel(t.Context()), first); err != nil {
		t.Fatalf("Shed: %v", err)
	}
	again := s.frozen(t, img, p)
	again.thaw(t)
	return again
}

// isNew reports whether the jail of p was never created.
func isNew(t *testing.T, p jail.Plan) bool {
	t.Helper()
	entries, err := os.ReadDir(p.Dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries) == 0
}

// contract returns the name by which Options.Differs knows a clause: restored jails may differ
// where other jails may.
func contract(clause string) string { return strings.TrimPrefix(clause, "Checkpoint/Restored/") }
