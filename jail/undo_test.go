package jail_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

func TestCreateUndoesFailedSteps(t *testing.T) {
	for mode, f := range failureModes {
		t.Run("backend-"+mode, func(t *testing.T) {
			h := newHarness(t)
			m, s := h.scripted()
			s.fail("create", f)
			_, err := m.Create(t.Context(), jail.Spec{})
			wantFailure(t, mode, err)
			h.wantJails()
			s.fail("create", nil)
			if _, err := m.Create(t.Context(), jail.Spec{}); err != nil {
				t.Errorf("second Create = %v, want nil", err)
			}
		})
	}
	for n, step := range []string{"first record", "second record"} {
		t.Run(step, func(t *testing.T) {
			h := newHarness(t)
			m, s := h.scripted()
			s.store.failAfter(n)
			if _, err := m.Create(t.Context(), jail.Spec{}); !errors.Is(err, errScripted) {
				t.Errorf("Create = %v, want %v", err, errScripted)
			}
			h.wantJails()
		})
	}
	t.Run("start", func(t *testing.T) {
		h := newHarness(t)
		m, s := h.scripted()
		s.store.failAfter(2)
		if _, err := m.Create(t.Context(), jail.Spec{Start: true}); !errors.Is(err, errScripted) {
			t.Errorf("Create = %v, want %v", err, errScripted)
		}
		h.wantJails()
	})
}

func TestStartPanicMarksJailFailed(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	j := h.running(m)
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	s.fail("create", failureModes["panic"])
	_, err := m.Start(t.Context(), j.ID)
	wantFailure(t, "panic", err)
	if got, err := m.Get(t.Context(), j.ID); err != nil || got.State != jail.Failed {
		t.Errorf("state = %s, %v; want failed", got.State, err)
	}
	s.fail("create", nil)
	if got, err := m.Start(t.Context(), j.ID); err != nil || got.State != jail.Running {
		t.Errorf("second Start = %s, %v; want running", got.State, err)
	}
}

// A failed checkpoint leaves the jail running.
func TestJailRunsAfterFailedCheckpoint(t *testing.T) {
	steps := map[jail.Layering][]string{
		jail.Copied:  {"dumpable", "copy", "freeze", "steady", "dump", "take", "end"},
		jail.Stacked: {"dumpable", "flush", "freeze", "steady", "dump", "seal", "flush sealed", "restore"},
	}
	for how, ops := range steps {
		for _, op := range ops {
			for mode, f := range failureModes {
				t.Run(fmt.Sprintf("%s-%s-%s", how, op, mode), func(t *testing.T) {
					h := newHarness(t)
					m, s := h.scripted()
					j := h.running(m)
					s.fail(op, f)
					_, err := h.checkpoint(m, j.ID, how)
					wantFailure(t, mode, err)
					s.fail(op, nil)
					if got, err := m.Get(t.Context(), j.ID); err != nil || got.State != jail.Running {
						t.Fatalf("state = %s, %v; want running", got.State, err)
					}
					if got := h.sh(m, j.ID, "echo fine"); got != "fine" {
						t.Errorf("output = %q, want fine", got)
					}
					h.wantJails(j.ID)
					if _, err := h.checkpoint(m, j.ID, how); err != nil {
						t.Errorf("second Checkpoint = %v, want nil", err)
					}
				})
			}
		}
	}
}

// If the thaw after a checkpoint fails, it is tried a second time.
func TestThawIsRetriedAfterCheckpoint(t *testing.T) {
	for mode, f := range failureModes {
		t.Run(mode, func(t *testing.T) {
			h := newHarness(t)
			m, s := h.scripted()
			j := h.running(m)
			s.fail("thaw", func() error { s.fail("thaw", nil); return f() })
			_, err := h.checkpoint(m, j.ID, jail.Copied)
			wantFailure(t, mode, err)
			if got := h.sh(m, j.ID, "echo fine"); got != "fine" {
				t.Errorf("output = %q, want fine", got)
			}
			h.wantJails(j.ID)
		})
	}
}

// image returns the image of a running jail.
func (h *harness) image(m *jail.Manager) (jail.Image, id.Jail) {
	h.Helper()
	j := h.running(m)
	made, err := h.checkpoint(m, j.ID, jail.Copied)
	if err != nil {
		h.Fatal(err)
	}
	return made.Image, j.ID
}

func branch(m *jail.Manager, ctx context.Context, img jail.Image, spare bool) (jail.Jail, error) {
	return m.Branch(ctx, img, jail.BranchOptions{Spec: img.Jail.Spec, Number: 1, Op: "branch", Spare: spare})
}

func TestBranchUndoesFailedSteps(t *testing.T) {
	for _, op := range []string{"restore", "thaw"} {
		for mode, f := range failureModes {
			t.Run(op+"-"+mode, func(t *testing.T) {
				h := newHarness(t)
				m, s := h.scripted()
				img, of := h.image(m)
				s.fail(op, f)
				_, err := branch(m, t.Context(), img, false)
				wantFailure(t, mode, err)
				h.wantJails(of)
				s.fail(op, nil)
				b, err := branch(m, t.Context(), img, false)
				if err != nil {
					t.Fatalf("second Branch = %v, want nil", err)
				}
				if got := h.sh(m, b.ID, "echo fine"); got != "fine" {
					t.Errorf("output = %q, want fine", got)
				}
			})
		}
	}
}

func TestCopyIsRemovedWhenThawFails(t *testing.T) {
	for mode, f := range failureModes {
		t.Run(mode, func(t *testing.T) {
			h := newHarness(t)
			m, s := h.scripted()
			img, of := h.image(m)
			if _, err := branch(m, t.Context(), img, true); err != nil {
				t.Fatal(err)
			}
			if n := m.Copies(img.Snapshot); n != 1 {
				t.Fatalf("Copies = %d, want 1", n)
			}
			s.fail("thaw", f)
			_, err := branch(m, t.Context(), img, false)
			wantFailure(t, mode, err)
			if n := m.Copies(img.Snapshot); n != 0 {
				t.Errorf("Copies = %d, want 0", n)
			}
			h.wantJails(of)
		})
	}
}

// A failed rewind leaves the jail unchanged.
func TestJailRunsAfterFailedRewind(t *testing.T) {
	for _, op := range []string{"restore", "thaw"} {
		for mode, f := range failureModes {
			t.Run(op+"-"+mode, func(t *testing.T) {
				h := newHarness(t)
				m, s := h.scripted()
				img, of := h.image(m)
				once := f // the thaw of the jail itself must succeed later
				s.fail(op, func() error { s.fail(op, nil); return once() })
				_, err := m.Rewind(t.Context(), of, img, jail.RewindOptions{})
				wantFailure(t, mode, err)
				if got, err := m.Get(t.Context(), of); err != nil || got.State != jail.Running {
					t.Fatalf("state = %s, %v; want running", got.State, err)
				}
				if got := h.sh(m, of, "echo fine"); got != "fine" {
					t.Errorf("output = %q, want fine", got)
				}
				h.wantJails(of)
			})
		}
	}
}

// The pool creates its jails in goroutines, where a panic would end the daemon.
func TestPoolRecoversPanic(t *testing.T) {
	h := newHarness(t)
	h.pool = jail.PoolConfig{Size: 1}
	m, s := h.scripted()
	made := 0
	s.fail("create", func() error {
		s.mu.Lock()
		made++
		spare := made > 1
		s.mu.Unlock()
		if spare {
			panic("in the pool")
		}
		return nil
	})
	j, err := m.Create(t.Context(), jail.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for s.called("clean") == 0 { // wait for Clean of the failed spare
		time.Sleep(time.Millisecond)
	}
	if err := m.Close(); err != nil { // waits for the pool
		t.Fatal(err)
	}
	if n := m.Spares(); n != 0 {
		t.Errorf("spares = %d, want 0", n)
	}
	h.wantJails(j.ID)
	m = h.scriptedManager(s) // removes the jail at the end
	if _, err := m.Get(t.Context(), j.ID); err != nil {
		t.Error(err)
	}
}

// A client that stops waiting for the lock of a jail gets an error. An operation that holds
// the lock is finished.
func TestCancelledRequestStopsWaitingButNotRunning(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	j := h.running(m)
	begun, finish := make(chan struct{}), make(chan struct{})
	s.fail("freeze", func() error {
		close(begun)
		<-finish
		s.fail("freeze", nil)
		return nil
	})
	paused := make(chan error)
	pausing, cancelPause := context.WithCancel(t.Context())
	go func() {
		_, err := m.Pause(pausing, j.ID)
		paused <- err
	}()
	<-begun
	cancelPause()
	ops := map[string]func(context.Context) error{
		"Start":   func(ctx context.Context) error { _, err := m.Start(ctx, j.ID); return err },
		"Stop":    func(ctx context.Context) error { _, err := m.Stop(ctx, j.ID, jail.StopOptions{}); return err },
		"Pause":   func(ctx context.Context) error { _, err := m.Pause(ctx, j.ID); return err },
		"Resume":  func(ctx context.Context) error { _, err := m.Resume(ctx, j.ID); return err },
		"Delete":  func(ctx context.Context) error { return m.Delete(ctx, j.ID) },
		"Changed": func(ctx context.Context) error { _, err := m.Changed(ctx, j.ID); return err },
		"Rewind": func(ctx context.Context) error {
			_, err := m.Rewind(ctx, j.ID, jail.Image{}, jail.RewindOptions{})
			return err
		},
		"Restack": func(ctx context.Context) error { _, err := m.ReplaceLayers(ctx, j.ID, nil, nil); return err },
		"Limits":  func(ctx context.Context) error { _, err := m.Limit(ctx, j.ID, jail.LimitChange{}); return err },
		"Snapshot": func(ctx context.Context) error {
			_, err := m.Checkpoint(ctx, j.ID, jail.CheckpointOptions{})
			return err
		},
	}
	for name, op := range ops {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := op(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, fault.Unavailable) {
			t.Errorf("%s of a locked jail = %v, want unavailable and context.Canceled", name, err)
		}
	}
	close(finish)
	if err := <-paused; err != nil {
		t.Errorf("Pause with a cancelled context = %v, want nil", err)
	}
	if got, err := m.Get(t.Context(), j.ID); err != nil || got.State != jail.Paused {
		t.Errorf("state = %s, %v; want paused", got.State, err)
	}
}

// The next daemon finishes the operations of a killed one.
func TestOpenFinishesInterruptedTransitions(t *testing.T) {
	for _, tt := range []struct {
		state jail.State
		dir   bool
		want  jail.State // "" means removed
	}{
		{jail.Creating, false, ""},
		{jail.Creating, true, ""},
		{jail.Spare, true, ""},
		{jail.Deleting, true, ""},
		{jail.Deleting, false, ""},
		{jail.Starting, true, jail.Stopped},
		{jail.Running, true, jail.Stopped}, // its init has ended
		{jail.Paused, true, jail.Stopped},
		{jail.Created, true, jail.Stopped},
		{jail.Stopped, true, jail.Stopped},
		{jail.Failed, true, jail.Failed},
	} {
		t.Run(fmt.Sprintf("%s-%v", tt.state, tt.dir), func(t *testing.T) {
			h := newHarness(t)
			spec := jail.Spec{Backend: "oci", Runtime: "bare", Limits: jail.DefaultLimits, Network: jail.Isolated}
			j := jail.Jail{ID: id.NewJail(), Spec: spec, State: tt.state, Created: time.Now(), Boot: "boot-1", IDs: jail.IDRange{First: 0x20000000, Count: 65536}}
			if err := h.db.Jails().Put(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			if tt.dir {
				mustMkdir(t, filepath.Join(h.dir, "jails", string(j.ID)))
			}
			m, _ := h.scripted()
			got, err := m.Get(t.Context(), j.ID)
			if tt.want == "" {
				if !errors.Is(err, fault.NotFound) {
					t.Errorf("Get = %s, %v; want not found", got.State, err)
				}
				h.wantJails()
				return
			}
			if err != nil || got.State != tt.want {
				t.Errorf("Get = %s, %v; want %s", got.State, err, tt.want)
			}
			next, err := m.Create(t.Context(), jail.Spec{})
			if err != nil || next.IDs == j.IDs {
				t.Errorf("ids of the next jail = %v, %v; want others than %v", next.IDs, err, j.IDs)
			}
		})
	}
}

// If a backend cannot release a jail, the record stays, so that the delete can be repeated.
func TestFailedDeleteCanBeRetried(t *testing.T) {
	for _, op := range []string{"clean", "kill"} {
		t.Run(op, func(t *testing.T) {
			h := newHarness(t)
			m, s := h.scripted()
			j := h.running(m)
			s.fail(op, failureModes["error"])
			err := m.Delete(t.Context(), j.ID)
			if op == "kill" { // clean kills again
				if err != nil {
					t.Errorf("Delete = %v, want success", err)
				}
				h.wantJails()
				return
			}
			if !errors.Is(err, errScripted) {
				t.Errorf("Delete = %v, want %v", err, errScripted)
			}
			all, _ := h.db.Jails().All(t.Context())
			if len(all) != 1 || all[0].State != jail.Deleting {
				t.Fatalf("records = %v, want the jail in state deleting", all)
			}
			m.Close()
			s.fail(op, nil)
			h.scriptedManager(s)
			h.wantJails()
		})
	}
}

func TestStopFailsWhenKillFails(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	j := h.running(m)
	s.fail("kill", failureModes["error"])
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); !errors.Is(err, errScripted) {
		t.Errorf("Stop = %v, want %v", err, errScripted)
	}
	if got, err := m.Get(t.Context(), j.ID); err != nil || got.State != jail.Running {
		t.Errorf("state = %s, %v; want running", got.State, err)
	}
	s.fail("kill", nil)
	if got, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil || got.State != jail.Stopped {
		t.Errorf("second Stop = %s, %v; want stopped", got.State, err)
	}
}

func TestPauseAndResumeAreUndoneOnStoreError(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	j := h.running(m)
	state := func(want jail.State) {
		t.Helper()
		if got, err := m.Get(t.Context(), j.ID); err != nil || got.State != want {
			t.Errorf("state = %s, %v; want %s", got.State, err, want)
		}
	}
	s.store.failAfter(0)
	if _, err := m.Pause(t.Context(), j.ID); !errors.Is(err, errScripted) {
		t.Errorf("Pause = %v, want %v", err, errScripted)
	}
	state(jail.Running)
	if got := h.sh(m, j.ID, "echo runs"); got != "runs" {
		t.Errorf("output after a failed Pause = %q, want runs", got)
	}
	s.fail("freeze", failureModes["error"])
	if _, err := m.Pause(t.Context(), j.ID); !errors.Is(err, errScripted) {
		t.Errorf("Pause = %v, want %v", err, errScripted)
	}
	state(jail.Running)
	s.fail("freeze", nil)
	if _, err := m.Pause(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	s.store.failAfter(0)
	if _, err := m.Resume(t.Context(), j.ID); !errors.Is(err, errScripted) {
		t.Errorf("Resume = %v, want %v", err, errScripted)
	}
	state(jail.Paused)
	s.fail("thaw", failureModes["error"])
	if _, err := m.Resume(t.Context(), j.ID); !errors.Is(err, errScripted) {
		t.Errorf("Resume = %v, want %v", err, errScripted)
	}
	state(jail.Paused)
	s.fail("thaw", nil)
	if _, err := m.Resume(t.Context(), j.ID); err != nil {
		t.Error(err)
	}
	if got := h.sh(m, j.ID, "echo runs"); got != "runs" {
		t.Errorf("output after Resume = %q, want runs", got)
	}
}

func TestCheckpointOfStoppedJailSealsLayer(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	j := h.running(m)
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	s.fail("seal", failureModes["error"])
	if _, err := h.checkpoint(m, j.ID, ""); !errors.Is(err, errScripted) {
		t.Errorf("Checkpoint = %v, want %v", err, errScripted)
	}
	s.fail("seal", nil)
	made, err := h.checkpoint(m, j.ID, "")
	if err != nil || made.Images != "" || len(made.Jail.Sealed) != 1 {
		t.Fatalf("Checkpoint = %+v, %v; want one sealed layer and no images", made, err)
	}
	b, err := branch(m, t.Context(), made.Image, false)
	if err != nil || b.State != jail.Created || !slices.Equal(b.Sealed, made.Jail.Sealed) {
		t.Errorf("branch: state %s, sealed layers %v, %v; want created, %v", b.State, b.Sealed, err, made.Jail.Sealed)
	}
}

func TestCheckpointWithStop(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	j := h.running(m)
	dir := t.TempDir()
	o := jail.CheckpointOptions{Snapshot: id.NewSnapshot(), Images: dir, Layer: filepath.Join(dir, "layer"), Stop: true}
	s.fail("kill", failureModes["error"])
	if _, err := m.Checkpoint(t.Context(), j.ID, o); !errors.Is(err, errScripted) {
		t.Errorf("Checkpoint = %v, want %v", err, errScripted)
	}
	if got, _ := m.Get(t.Context(), j.ID); got.State != jail.Running {
		t.Fatalf("state after a failed Checkpoint = %s, want running", got.State)
	}
	s.fail("kill", nil)
	o.Images = t.TempDir()
	made, err := m.Checkpoint(t.Context(), j.ID, o)
	if err != nil || made.Images == "" {
		t.Fatalf("Checkpoint = %+v, %v; want images", made, err)
	}
	if got, _ := m.Get(t.Context(), j.ID); got.State != jail.Stopped || len(got.Sealed) != 1 {
		t.Errorf("state %s, sealed layers %v; want stopped and one sealed layer", got.State, got.Sealed)
	}
}
