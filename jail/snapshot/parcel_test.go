package snapshot_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// newHost returns a harness with the same root filesystem as the others.
func newHost(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t)
	h.tune = func(_ *jail.Config, c *snapshot.Config) {
		c.LowerLayers = func(_ context.Context, _ jail.Rootfs, digest string) ([]string, error) {
			if digest != "tree" {
				return nil, fault.Newf(fault.NotFound, "rootfs", digest, "this root filesystem is not here")
			}
			return []string{h.root}, nil
		}
	}
	h.reopen()
	return h
}

func (h *harness) export(sid id.Snapshot) []byte {
	h.t.Helper()
	var b bytes.Buffer
	if err := h.keeper.Export(h.t.Context(), sid, &b); err != nil {
		h.t.Fatal(err)
	}
	return b.Bytes()
}

// rewritten returns an archive with a changed record.
func rewritten(t *testing.T, archive []byte, change func(s map[string]any)) []byte {
	t.Helper()
	return edited(t, archive, "metadata.json", func(body []byte) []byte {
		var p map[string]any
		if err := json.Unmarshal(body, &p); err != nil {
			t.Fatal(err)
		}
		change(p["snapshot"].(map[string]any))
		body, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return body
	})
}

// edited returns an archive with a changed file.
func edited(t *testing.T, archive []byte, name string, change func(body []byte) []byte) []byte {
	t.Helper()
	zr, err := zstd.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	defer zr.Close()
	var out bytes.Buffer
	zw, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	in, to := tar.NewReader(zr), tar.NewWriter(zw)
	var was, is string
	for {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		switch head.Name {
		case name:
			was = sum(body)
			body = change(body)
			is = sum(body)
		case "SHA256SUMS":
			body = bytes.Replace(body, []byte(was), []byte(is), 1)
		}
		head.Size = int64(len(body))
		if err := to.WriteHeader(head); err != nil {
			t.Fatal(err)
		}
		if _, err := to.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if was == "" {
		t.Fatalf("there is no %s in the archive", name)
	}
	if err := errors.Join(to.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestExportAndImportOnAnotherHost(t *testing.T) {
	here := newHarness(t)
	j := here.running()
	here.background(j, counter)
	for _, f := range []string{"one", "two", "three"} {
		here.sh(j, "echo "+f+" > /root/f; echo "+f+" > /root/"+f)
		here.take(j, jail.Stacked)
	}
	s := here.take(j, "")
	at := here.checkCounting(j, 3)
	if len(s.Jail.Sealed) != 4 {
		t.Fatalf("%d layers, want 4", len(s.Jail.Sealed))
	}
	archive := here.export(s.ID)
	t.Logf("%d kB", len(archive)>>10)
	if left, _ := filepath.Glob(filepath.Join(here.dir, "jails", "*", "snapshots", "*", "*.part")); len(left) > 0 {
		t.Errorf("leftover files: %v", left)
	}

	there := newHost(t)
	got, err := there.keeper.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.ID == s.ID || got.Reason != snapshot.Imported || !got.Memory || len(got.Jail.Sealed) != 1 || !strings.Contains(got.Trigger, string(s.ID)) {
		t.Errorf("%+v", got)
	}
	there.reopen() // the snapshot is durable
	k := there.branch(got.ID, 1)[0]
	if got := there.sh(k, "cat /root/f; ls /root"); got != "three\nf\none\nthree\ntwo\n" {
		t.Errorf("files: %q", got)
	}
	there.checkCounting(k, 0)
	if n := there.count(k); n > at+1000 {
		t.Errorf("the counter is %d, want less than %d", n, at)
	}
	there.delete(k)
	there.forget(got.ID)
	if left, _ := filepath.Glob(filepath.Join(there.dir, "jails", "*")); len(left) > 0 {
		t.Errorf("leftover files after deletion: %v", left)
	}

	files, err := there.keeper.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportOptions{FilesOnly: true})
	if err != nil || files.Memory {
		t.Fatalf("files only: %+v, %v", files, err)
	}
	k = there.branch(files.ID, 1)[0]
	there.start(k)
	if got := there.sh(k, "cat /root/f; ls /tmp"); got != "three\ncount\n" {
		t.Errorf("files: %q", got)
	}

	// A copy keeps the id, and is not listed with the snapshots of the host.
	copied, err := there.keeper.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportOptions{Copy: true})
	if err != nil || copied.ID != s.ID || copied.Reason != snapshot.Copied {
		t.Fatalf("copy = %+v, %v, want one with the id %s", copied, err, s.ID)
	}
	if _, err := there.keeper.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportOptions{Copy: true}); !errors.Is(err, fault.Conflict) {
		t.Errorf("second copy: %v, want conflict", err)
	}
	k = there.branch(s.ID, 1)[0] // before it is stored
	there.checkCounting(k, 0)
	there.delete(k)
	there.waitFor("the copy to be stored", func() bool { return there.keep.has(s.ID) })
	there.waitFor("the removal of the archive", func() bool {
		left, _ := filepath.Glob(filepath.Join(there.dir, "jails", "import-*"))
		return len(left) == 0
	})
	there.reopen()
	for _, c := range []struct {
		copies bool
		want   id.Snapshot
	}{{false, files.ID}, {true, s.ID}} {
		list, err := there.keeper.List(t.Context(), snapshot.ListOptions{Copies: c.copies})
		if err != nil || len(list) != 1 || list[0].ID != c.want {
			t.Errorf("List of copies %t = %d snapshots, %v, want %s", c.copies, len(list), err, c.want)
		}
	}
	k = there.branch(s.ID, 1)[0]
	there.checkCounting(k, 0)
}

func TestImportRejectsIncompatibleArchive(t *testing.T) {
	h := newHost(t)
	j := h.running()
	h.background(j, counter)
	h.checkCounting(j, 0)
	archive := h.export(h.take(j, "").ID)
	for _, c := range []struct {
		name   string
		change func(s map[string]any)
		o      snapshot.ImportOptions
		want   error
		files  error // with FilesOnly
		force  error
	}{
		{"architecture", func(s map[string]any) { s["host"].(map[string]any)["arch"] = "vax" }, snapshot.ImportOptions{}, fault.Unsupported, fault.Unsupported, fault.Unsupported},
		{"processor", func(s map[string]any) { s["host"].(map[string]any)["cpu"] = "another" }, snapshot.ImportOptions{}, fault.Unsupported, nil, nil},
		{"newer kernel", func(s map[string]any) { s["host"].(map[string]any)["kernel"] = "99.0.1" }, snapshot.ImportOptions{}, fault.Unsupported, nil, nil},
		{"older kernel", func(s map[string]any) { s["host"].(map[string]any)["kernel"] = "4.0.1" }, snapshot.ImportOptions{}, nil, nil, nil},
		{"root filesystem", func(s map[string]any) { s["jail"].(map[string]any)["digest"] = "other" }, snapshot.ImportOptions{}, fault.NotFound, fault.NotFound, fault.NotFound},
		{"jail's name", func(s map[string]any) { s["jail"].(map[string]any)["id"] = "../../../etc" }, snapshot.ImportOptions{}, fault.Invalid, fault.Invalid, fault.Invalid},
		{"a mount that is not allowed", func(s map[string]any) {
			s["jail"].(map[string]any)["spec"].(map[string]any)["mounts"] = []any{map[string]any{"source": "/etc", "target": "/host"}}
		}, snapshot.ImportOptions{}, fault.Denied, fault.Denied, fault.Denied},
		{"layers of its own choice", func(s map[string]any) {
			s["jail"].(map[string]any)["lower"] = []any{"/etc"}
			s["jail"].(map[string]any)["sealed"] = []any{"/etc/passwd"}
		}, snapshot.ImportOptions{}, nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := rewritten(t, archive, c.change)
			for n, want := range []error{c.want, c.files, c.force} {
				o := snapshot.ImportOptions{FilesOnly: n == 1, Force: n == 2}
				s, err := h.keeper.Import(t.Context(), bytes.NewReader(changed), o)
				if !errors.Is(err, want) {
					t.Errorf("%+v: %v, want %v", o, err, want)
				}
				if err == nil {
					if len(s.Jail.Lower) != 1 || s.Jail.Lower[0] != h.root || len(s.Jail.Sealed) != 1 || filepath.Base(s.Jail.Sealed[0]) != "fs-upper.img" {
						t.Errorf("layers = %v and %v", s.Jail.Sealed, s.Jail.Lower)
					}
					h.forget(s.ID)
				}
			}
		})
	}
	for _, bad := range [][]byte{nil, []byte("no archive"), archive[:len(archive)/2], append(bytes.Clone(archive), archive...)} {
		if _, err := h.keeper.Import(t.Context(), bytes.NewReader(bad), snapshot.ImportOptions{}); !errors.Is(err, fault.Invalid) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir, "jails", "import-*")); len(left) > 0 {
		t.Errorf("leftover files: %v", left)
	}
}

func TestExportEndsWithContextOrWriter(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.background(j, counter)
	s := h.take(j, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.keeper.Export(ctx, s.ID, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("export: %v", err)
	}
	broken := errors.New("broken pipe")
	if err := h.keeper.Export(t.Context(), s.ID, failing{broken}); !errors.Is(err, broken) {
		t.Errorf("export: %v", err)
	}
	if err := h.keeper.Export(t.Context(), id.NewSnapshot(), io.Discard); !errors.Is(err, fault.NotFound) {
		t.Errorf("export of a missing snapshot: %v", err)
	}
	h.forget(s.ID) // the snapshot is no longer in use
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// A snapshot can be deleted while it is copied to an object store that does not answer.
func TestDeletionEndsExportInBackground(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	s := h.take(j, "")
	stuck := &stuckWriter{began: make(chan struct{}), release: make(chan struct{})}
	exported := make(chan error, 1)
	go func() { exported <- h.keeper.ExportInBackground(t.Context(), s.ID, stuck) }()
	<-stuck.began
	if err := h.keeper.Delete(t.Context(), s.ID); err != nil {
		t.Errorf("Delete during an export in the background = %v, want nil", err)
	}
	close(stuck.release)
	if err := <-exported; !errors.Is(err, fault.NotFound) {
		t.Errorf("ExportInBackground of a deleted snapshot = %v, want NotFound", err)
	}

	s = h.take(j, "")
	var whole bytes.Buffer
	if err := h.keeper.ExportInBackground(t.Context(), s.ID, &whole); err != nil || whole.Len() == 0 {
		t.Errorf("ExportInBackground = %v after %d bytes, want the whole snapshot", err, whole.Len())
	}
	broken := errors.New("broken pipe")
	if err := h.keeper.ExportInBackground(t.Context(), s.ID, failing{broken}); !errors.Is(err, broken) {
		t.Errorf("ExportInBackground to a broken pipe = %v, want %v", err, broken)
	}
	h.forget(s.ID)
}

// A stuckWriter blocks in its first Write until release is closed.
type stuckWriter struct{ began, release chan struct{} }

func (w *stuckWriter) Write(p []byte) (int, error) {
	select {
	case <-w.began:
	default:
		close(w.began)
	}
	<-w.release
	return len(p), nil
}

// A copy can be deleted at any time, also while it is being stored.
func TestDeletionOfCopyThatIsBeingStored(t *testing.T) {
	here := newHarness(t)
	j := here.running()
	here.background(j, counter)
	s := here.take(j, "")
	archive := here.export(s.ID)
	there := newHost(t)
	slow := &slowStore{Store: there.keep, began: make(chan struct{}), release: make(chan struct{})}
	tune := there.tune
	there.tune = func(j *jail.Config, c *snapshot.Config) { tune(j, c); c.Store = slow }
	there.reopen()
	if _, err := there.keeper.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportOptions{Copy: true}); err != nil {
		t.Fatal(err)
	}
	<-slow.began
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := there.keeper.Delete(ctx, s.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Delete of a copy that is being stored = %v, want it to wait until its context ends", err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- there.keeper.Delete(t.Context(), s.ID) }()
	time.Sleep(50 * time.Millisecond)
	close(slow.release)
	if err := <-deleted; err != nil {
		t.Errorf("Delete of a copy that is being stored = %v, want nil", err)
	}
	if left, _ := filepath.Glob(filepath.Join(there.dir, "jails", "*")); len(left) > 0 || there.keep.has(s.ID) {
		t.Errorf("files after the deletion: %v; recorded: %t", left, there.keep.has(s.ID))
	}
}

// A slowStore waits in Put until release is closed.
type slowStore struct {
	snapshot.Store
	began, release chan struct{}
}

func (w *slowStore) Put(ctx context.Context, s snapshot.Snapshot) error {
	close(w.began)
	<-w.release
	return w.Store.Put(ctx, s)
}

// A copy that cannot be stored, or was not when the daemon ended, leaves nothing.
func TestCopyThatIsNotStored(t *testing.T) {
	here := newHarness(t)
	j := here.running()
	here.background(j, counter)
	s := here.take(j, "")
	archive := here.export(s.ID)
	there := newHost(t)
	nothing := func(what string) {
		t.Helper()
		there.waitFor("no copy "+what, func() bool {
			_, err := there.keeper.Get(t.Context(), s.ID)
			left, _ := filepath.Glob(filepath.Join(there.dir, "jails", "*"))
			return errors.Is(err, fault.NotFound) && len(left) == 0
		})
	}
	full := errors.New("the disk is full")
	there.keep.setFailure(full)
	if _, err := there.keeper.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportOptions{Copy: true}); err != nil {
		t.Fatal(err)
	}
	nothing("after its record was refused")
	there.keep.setFailure(nil)

	if _, err := there.keeper.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportOptions{Copy: true}); err != nil {
		t.Fatal(err)
	}
	there.reopen()
	if !there.keep.has(s.ID) {
		nothing("after a restart")
	}
	if _, err := there.keeper.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportOptions{Copy: true}); err != nil && !errors.Is(err, fault.Conflict) {
		t.Errorf("import after a restart: %v", err)
	}
	there.waitFor("the copy to be stored", func() bool { return there.keep.has(s.ID) })
	there.waitFor("its deletion", func() bool { return there.keeper.Delete(t.Context(), s.ID) == nil })
	nothing("after its deletion")
}
