package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// depart stops a jail that moves to another host, and returns its state.
func (h *harness) depart(j id.Jail) (snapshot.Snapshot, []byte) {
	h.t.Helper()
	if _, err := h.jails.Depart(h.t.Context(), j, "there"); err != nil {
		h.t.Fatal(err)
	}
	s, err := h.keeper.Take(h.t.Context(), j, snapshot.TakeOptions{Reason: snapshot.Moved, Pause: true})
	if err != nil {
		h.t.Fatal(err)
	}
	return s, h.export(s.ID)
}

func TestDepartingJailIsNotUsed(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.background(j, counter)
	h.depart(j)
	for name, use := range map[string]func(ctx context.Context) error{
		"resume": func(ctx context.Context) error { _, err := h.jails.Resume(ctx, j); return err },
		"start":  func(ctx context.Context) error { _, err := h.jails.Start(ctx, j); return err },
		"stop":   func(ctx context.Context) error { _, err := h.jails.Stop(ctx, j, jail.StopOptions{}); return err },
		"delete": func(ctx context.Context) error { return h.jails.Delete(ctx, j) },
		"files":  func(ctx context.Context) error { _, err := h.jails.Files(ctx, j); return err },
		"depart": func(ctx context.Context) error { _, err := h.jails.Depart(ctx, j, "elsewhere"); return err },
		"exec": func(ctx context.Context) error {
			_, _, err := h.jails.Exec(ctx, j, jail.ExecRequest{Argv: []string{"true"}}, nil)
			return err
		},
	} {
		if err := use(t.Context()); !errors.Is(err, fault.Conflict) {
			t.Errorf("%s: %v, want conflict", name, err)
		}
	}
	h.reopen() // it is recorded
	if got, err := h.jails.Get(t.Context(), j); err != nil || got.Departure == nil || got.Departure.State != jail.Running || got.State != jail.Paused {
		t.Errorf("after a restart, the jail is %+v, %v, want it departing", got, err)
	}
	if err := h.jails.EndMove(t.Context(), j, false); err != nil {
		t.Fatal(err)
	}
	h.checkCounting(j, 0)
	// A paused jail, and one that was restored from the snapshot, have the state of before.
	if _, err := h.jails.Pause(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	s, _ := h.depart(j)
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := h.jails.EndMove(t.Context(), j, false); err != nil {
		t.Fatal(err)
	}
	if got, err := h.jails.Get(t.Context(), j); err != nil || got.State != jail.Paused {
		t.Errorf("after the end of the move, the jail is %s, %v, want it paused as before", got.State, err)
	}
	if err := h.jails.EndMove(t.Context(), j, true); !errors.Is(err, fault.Conflict) {
		t.Errorf("EndMove of a jail that is not moving = %v, want conflict", err)
	}
	for what, s := range map[string]jail.Spec{
		"mounts":  {Mounts: []jail.Mount{{Source: "/srv", Target: "/srv"}}},
		"bridged": {Network: jail.Bridged},
	} {
		if err := jail.CanMove(jail.Jail{Spec: s}); !errors.Is(err, fault.Unsupported) {
			t.Errorf("CanMove of a jail with %s = %v, want unsupported", what, err)
		}
	}
}

// A jail that is left paused by a snapshot has nothing that the snapshot has not.
func TestSnapshotLeavesJailPaused(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) {
			h := newHarness(t)
			j := h.running()
			h.background(j, counter)
			h.checkCounting(j, 0)
			s, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Layering: how, Pause: true})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := h.jails.Get(t.Context(), j); err != nil || got.State != jail.Paused {
				t.Fatalf("after the snapshot, the jail is %s, %v, want it paused", got.State, err)
			}
			time.Sleep(200 * time.Millisecond)
			branch := h.branch(s.ID, 1)[0]
			at := h.count(branch)
			h.reopen()
			if _, err := h.jails.Resume(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			if n := h.count(j); n > at+500 {
				t.Errorf("the jail has counted to %d, and a branch of the snapshot to %d, want it to have stood still", n, at)
			}
			h.checkCounting(j, 0)
			// A snapshot that fails leaves the jail running.
			if _, err := h.keeper.Take(t.Context(), j, snapshot.TakeOptions{Layering: "none", Pause: true}); err == nil {
				t.Error("a snapshot with an unknown layering: no error")
			}
			h.checkCounting(j, 0)
		})
	}
}

// grantLog records for which jails the grants have ended.
type grantLog struct{ ended []id.Jail }

func (*grantLog) Granted(context.Context, id.Jail) ([]jail.Secret, error) { return nil, nil }

func (*grantLog) CopyGrantsToBranch(context.Context, id.Jail, id.Jail) error { return nil }

func (g *grantLog) JailDeleted(_ context.Context, j id.Jail) error {
	g.ended = append(g.ended, j)
	return nil
}

func TestJailArrives(t *testing.T) {
	here, there := newHarness(t), newHost(t)
	grants := &grantLog{}
	for _, h := range []*harness{here, there} {
		tune := h.tune
		h.tune = func(c *jail.Config, s *snapshot.Config) {
			c.Secrets = grants
			if tune != nil {
				tune(c, s)
			}
		}
		h.reopen()
	}
	for _, state := range []jail.State{jail.Running, jail.Paused, jail.Stopped} {
		j := here.running()
		here.background(j, counter)
		here.sh(j, "echo text > /root/file")
		before, err := here.jails.Get(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		s, archive := here.depart(j)
		if _, err := there.keeper.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportOptions{Move: true}); err != nil {
			t.Fatal(err)
		}
		arrive := func(commit func(context.Context) error) (jail.Jail, error) {
			return there.keeper.Arrive(t.Context(), s.ID, jail.Arrival{State: state, Used: jail.Used{CPU: 7}}, commit)
		}
		refused := errors.New("the index names another node")
		if _, err := arrive(func(context.Context) error {
			if _, err := there.jails.Get(t.Context(), j); !errors.Is(err, fault.NotFound) {
				t.Errorf("before commit, the jail is visible: %v", err)
			}
			return refused
		}); !errors.Is(err, refused) {
			t.Errorf("Arrive = %v, want the error of commit", err)
		}
		if _, err := there.jails.Get(t.Context(), j); !errors.Is(err, fault.NotFound) {
			t.Errorf("after a failed commit, the jail is there: %v", err)
		}
		got, err := arrive(func(context.Context) error { return nil })
		if err != nil || got.ID != j || got.State != state || !got.Created.Equal(before.Created) || got.Used.CPU != 7 || got.Departure != nil {
			t.Fatalf("Arrive = %+v, %v, want the jail %s", got, err, state)
		}
		if _, err := arrive(func(context.Context) error { return nil }); !errors.Is(err, fault.Conflict) {
			t.Errorf("second Arrive = %v, want conflict", err)
		}
		if err := here.jails.EndMove(t.Context(), j, true); err != nil {
			t.Fatal(err)
		}
		there.forget(s.ID)
		here.forget(s.ID)
		there.reopen() // the jail is recorded, and needs no snapshot
		switch state {
		case jail.Paused:
			if _, err := there.jails.Resume(t.Context(), j); err != nil {
				t.Fatal(err)
			}
		case jail.Stopped:
			if _, err := there.jails.Start(t.Context(), j); err != nil {
				t.Fatal(err)
			}
		}
		if text := there.sh(j, "cat /root/file"); text != "text\n" {
			t.Errorf("file of a %s jail = %q", state, text)
		}
		if state != jail.Stopped {
			there.checkCounting(j, 0)
		}
		if len(grants.ended) > 0 { // by the failed arrival, or on the first host
			t.Errorf("the grants of %v have ended, want those of a jail that has moved kept", grants.ended)
		}
		there.delete(j)
		if len(grants.ended) != 1 || grants.ended[0] != j {
			t.Errorf("after the deletion, the grants of %v have ended, want those of %s", grants.ended, j)
		}
		grants.ended = nil
		if left, _ := filepath.Glob(filepath.Join(here.dir, "jails", "*")); len(left) > 0 {
			t.Errorf("%s: files %v are left on the first host", state, left)
		}
	}
}
