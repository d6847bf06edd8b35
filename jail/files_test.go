package jail_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

func TestFilesOfStoppedJailHoldLock(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	ctx := t.Context()
	j := h.running(m)
	if _, err := m.Stop(ctx, j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	files, err := m.Files(ctx, j.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := files.Write(ctx, "/note", strings.NewReader("from the host"), protocol.WriteOptions{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	for name, op := range map[string]func(context.Context) error{
		"Start":  func(ctx context.Context) error { _, err := m.Start(ctx, j.ID); return err },
		"Delete": func(ctx context.Context) error { return m.Delete(ctx, j.ID) },
		"Files":  func(ctx context.Context) error { _, err := m.Files(ctx, j.ID); return err },
	} {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		if err := op(ctx); !errors.Is(err, fault.Unavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s while the files are open = %v, want unavailable and context.Canceled", name, err)
		}
	}
	for range 2 { // the second call must not unlock again
		if err := files.Close(); err != nil {
			t.Errorf("Close = %v, want nil", err)
		}
	}
	if n := h.backend.mounts.Load(); n != 0 {
		t.Errorf("mounts = %d, want 0", n)
	}
	again, err := m.Files(ctx, j.ID)
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := again.Read(ctx, "/note", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "from the host" {
		t.Errorf("content = %q, %v; want from the host", got, err)
	}
	r.Close()
	again.Close()

	s.fail("mount", failureModes["error"])
	if _, err := m.Files(ctx, j.ID); !errors.Is(err, errScripted) {
		t.Errorf("Files that cannot be mounted = %v, want %v", err, errScripted)
	}
	s.fail("mount", nil)
	// If the mount is not a directory, it is unmounted.
	dir := filepath.Join(h.dir, "jails", string(j.ID), "files")
	s.fail("mounted", func() error { return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)) })
	if _, err := m.Files(ctx, j.ID); err == nil {
		t.Error("Files in a mount that is a file = nil, want an error")
	}
	if n := h.backend.mounts.Load(); n != 0 {
		t.Errorf("mounts = %d, want 0", n)
	}
	if _, err := m.Start(ctx, j.ID); err != nil {
		t.Errorf("Start afterwards = %v, want nil", err)
	}
}

func TestFilesOfLiveJailUseInit(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	ctx := t.Context()
	j := h.running(m)
	files, err := m.Files(ctx, j.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	dir := t.TempDir() // the jail uses the host's filesystem
	if _, err := files.Write(ctx, filepath.Join(dir, "a"), strings.NewReader("1"), protocol.WriteOptions{Mode: 0o640}); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(dir, "a")); err != nil || fi.Mode().Perm() != 0o640 || fi.Size() != 1 {
		t.Errorf("file = %v, %v; want one byte with mode 0640", fi, err)
	}
	if _, err := files.Stat(ctx, filepath.Join(dir, "b")); !errors.Is(err, fault.NotFound) {
		t.Errorf("Stat of a missing file = %v, want not found", err)
	}
	events, err := m.Watch(ctx, j.ID, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Mkdir(ctx, filepath.Join(dir, "c"), fs.FileMode(0o700), false); err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Path != filepath.Join(dir, "c") {
		t.Errorf("event path = %q, want %q", e.Path, filepath.Join(dir, "c"))
	}
	if _, err := m.Pause(ctx, j.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Files(ctx, j.ID); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) != "resume the jail first" {
		t.Errorf("Files of a paused jail = %v (%s), want conflict (resume the jail first)", err, fault.RemedyOf(err))
	}
	if _, err := m.Files(ctx, "j-none"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Files of an unknown jail = %v, want not found", err)
	}
}

func TestChangesAndCompare(t *testing.T) {
	h := newHarness(t)
	m, s := h.scripted()
	ctx := t.Context()
	j, err := m.Create(ctx, jail.Spec{Trusted: true, Workspace: &jail.Workspace{Source: t.TempDir(), Target: "/w"}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := m.Create(ctx, jail.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	root := []jail.Change{{Path: "/etc/x", Kind: "added", Type: "file"}}
	got, err := m.Changes(ctx, j.ID, jail.ChangesOptions{})
	if diff := cmp.Diff(root, got); diff != "" || err != nil {
		t.Errorf("Changes (-want +got): %s%v", diff, err)
	}
	work := s.changes(jail.ChangesOptions{Workspace: true})
	got, err = m.Changes(ctx, j.ID, jail.ChangesOptions{Workspace: true})
	if diff := cmp.Diff(work, got); diff != "" || err != nil {
		t.Errorf("Changes of the workspace (-want +got): %s%v", diff, err)
	}
	if _, err := m.Changes(ctx, other.ID, jail.ChangesOptions{Workspace: true}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Changes of a missing workspace = %v, want conflict", err)
	}
	s.takeCalls()
	was, err := m.Get(ctx, j.ID)
	if err != nil {
		t.Fatal(err)
	}
	got, err = m.Compare(ctx, jail.Version{ID: j.ID, Snapshot: &was}, jail.Version{ID: j.ID}, jail.ChangesOptions{})
	if diff := cmp.Diff(root, got); diff != "" || err != nil {
		t.Errorf("Compare (-want +got): %s%v", diff, err)
	}
	wantCalls(t, "Compare", s.takeCalls(), "then to now")
	s.fail("now to now", failureModes["error"])
	if _, err := m.Compare(ctx, jail.Version{ID: j.ID}, jail.Version{ID: other.ID}, jail.ChangesOptions{}); !errors.Is(err, errScripted) {
		t.Errorf("Compare = %v, want %v", err, errScripted)
	}

	// Jails with different bases cannot be compared.
	change := func(f func(*jail.Jail)) *jail.Jail { c := was; f(&c); return &c }
	workspace := jail.ChangesOptions{Workspace: true}
	for name, c := range map[string]struct {
		was *jail.Jail
		o   jail.ChangesOptions
	}{
		"another backend":   {change(func(j *jail.Jail) { j.Spec.Backend = "bwrap" }), jail.ChangesOptions{}},
		"another root":      {change(func(j *jail.Jail) { j.Lower = []string{"/other"} }), jail.ChangesOptions{}},
		"no workspace":      {change(func(j *jail.Jail) { j.Spec.Workspace = nil }), workspace},
		"another workspace": {change(func(j *jail.Jail) { j.Spec.Workspace = &jail.Workspace{Source: "/other"} }), workspace},
	} {
		if _, err := m.Compare(ctx, jail.Version{ID: j.ID, Snapshot: c.was}, jail.Version{ID: j.ID}, c.o); !errors.Is(err, fault.Conflict) {
			t.Errorf("Compare with %s = %v, want conflict", name, err)
		}
	}
	for _, pair := range [][2]id.Jail{{j.ID, "j-none"}, {"j-none", j.ID}} {
		if _, err := m.Compare(ctx, jail.Version{ID: pair[0]}, jail.Version{ID: pair[1]}, jail.ChangesOptions{}); !errors.Is(err, fault.NotFound) {
			t.Errorf("Compare of %v = %v, want not found", pair, err)
		}
	}
	if _, err := m.Changes(ctx, "j-none", jail.ChangesOptions{}); !errors.Is(err, fault.NotFound) {
		t.Errorf("Changes of an unknown jail = %v, want not found", err)
	}
	if _, err := m.Get(ctx, j.ID); err != nil {
		t.Error(err)
	}
	if _, err := m.Start(ctx, j.ID); err != nil {
		t.Errorf("Start afterwards = %v, want nil", err)
	}
}

// Two comparisons of the same jails in opposite order do not deadlock.
func TestComparisonsInOppositeOrderDoNotDeadlock(t *testing.T) {
	h := newHarness(t)
	m, _ := h.scripted()
	a, b := h.running(m), h.running(m)
	var wg sync.WaitGroup
	for _, pair := range [][2]id.Jail{{a.ID, b.ID}, {b.ID, a.ID}, {a.ID, a.ID}} {
		wg.Go(func() {
			for range 200 {
				if _, err := m.Compare(t.Context(), jail.Version{ID: pair[0]}, jail.Version{ID: pair[1]}, jail.ChangesOptions{}); err != nil {
					t.Errorf("Compare(%v) = %v, want nil", pair, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// processBackend implements none of the optional interfaces.
func TestOptionalBackendFeatures(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	ctx := t.Context()
	j := h.running(m)
	for name, op := range map[string]func() error{
		"Changes": func() error { _, err := m.Changes(ctx, j.ID, jail.ChangesOptions{}); return err },
		"Compare": func() error {
			_, err := m.Compare(ctx, jail.Version{ID: j.ID}, jail.Version{ID: j.ID}, jail.ChangesOptions{})
			return err
		},
		"Processes":  func() error { _, err := m.Processes(ctx, j.ID); return err },
		"Checkpoint": func() error { _, err := m.Checkpoint(ctx, j.ID, jail.CheckpointOptions{}); return err },
		"Branch":     func() error { _, err := m.Branch(ctx, jail.Image{}, jail.BranchOptions{Spec: j.Spec}); return err },
		"Create with snapshots": func() error {
			_, err := m.Create(ctx, jail.Spec{Snapshots: jail.Snapshots{After: jail.AfterExec}})
			return err
		},
	} {
		if err := op(); !errors.Is(err, fault.Unsupported) {
			t.Errorf("%s = %v, want unsupported", name, err)
		}
	}
	if _, err := m.Rewind(ctx, j.ID, jail.Image{Jail: j}, jail.RewindOptions{}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Rewind = %v, want conflict", err)
	}
	if got := h.sh(m, j.ID, "echo fine"); got != "fine" {
		t.Errorf("output = %q, want fine", got)
	}
}
