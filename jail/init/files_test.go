package jailinit_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail/fs/jailfstest"
	"glasshouse/jail/init/protocol"
)

func TestFilesContract(t *testing.T) {
	j := start(t)
	jailfstest.Run(t, func(t *testing.T) (jailfstest.Files, string, string) {
		dir := t.TempDir()
		return j.Client, dir, dir
	})
	j.wantSmall()
}

// An upload that is cancelled by its context must not leave a file.
func TestCancelledUploadLeavesNoFile(t *testing.T) {
	j := start(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(j.t.Context())
	read, write := io.Pipe()
	go func() {
		write.Write(make([]byte, 1<<20))
		cancel()
		write.Close()
	}()
	if _, err := j.Write(ctx, dir+"/f", read, protocol.WriteOptions{}); err == nil {
		t.Error("Write = nil, want an error")
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if entries, _ := os.ReadDir(dir); len(entries) == 0 {
			return
		}
	}
	entries, _ := os.ReadDir(dir)
	t.Errorf("files after the cancelled upload = %v, want none", entries)
}

// Stalled transfers that outnumber init's threads must not block other requests.
func TestStalledTransfersDoNotBlockOthers(t *testing.T) {
	j := start(t)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/big", make([]byte, 8<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		r, _, err := j.Read(j.t.Context(), dir+"/big", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		tar, err := j.Tar(j.t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer tar.Close()
		stalled, never := io.Pipe()
		defer never.CloseWithError(errors.New("enough"))
		go j.Write(j.t.Context(), dir+"/up", stalled, protocol.WriteOptions{})
	}
	began := time.Now()
	if _, err := j.Stat(j.t.Context(), dir); err != nil {
		t.Error(err)
	}
	if out, _, _ := j.run(sh("echo hi")); out != "hi\n" {
		t.Errorf("output = %q", out)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the other requests took %v, want less than 30 s", took)
	}
}

// wantEvents reads events of a watch until it has received want.
func wantEvents(t *testing.T, from <-chan protocol.FileEvent, want ...protocol.FileEvent) {
	t.Helper()
	left := want
	timeout := time.After(30 * time.Second)
	for len(left) > 0 {
		select {
		case e, ok := <-from:
			if !ok {
				t.Fatalf("the watch ended before %+v", left)
			}
			if e == left[0] {
				left = left[1:]
			}
		case <-timeout:
			t.Fatalf("timeout before %+v", left)
		}
	}
}

func TestWatch(t *testing.T) {
	j := start(t)
	dir := t.TempDir()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(os.Mkdir(dir+"/old", 0o755))
	ctx, cancel := context.WithCancel(j.t.Context())
	all, err := j.Watch(ctx, dir, true)
	do(err)
	flat, err := j.Watch(ctx, dir, false)
	do(err)
	file, err := os.Create(dir + "/f")
	do(err)
	io.WriteString(file, "x")
	do(file.Close())
	do(os.Chmod(dir+"/f", 0o600))
	do(os.Rename(dir+"/f", dir+"/g"))
	do(os.WriteFile(dir+"/old/deep", nil, 0o644))
	// All entries of a new tree are reported.
	do(os.MkdirAll(dir+"/new/a/b", 0o755))
	do(os.WriteFile(dir+"/new/a/b/f", nil, 0o644))
	do(os.Remove(dir + "/g"))

	wantEvents(t, all,
		protocol.FileEvent{Path: dir + "/f", Op: "create"},
		protocol.FileEvent{Path: dir + "/f", Op: "write"},
		protocol.FileEvent{Path: dir + "/f", Op: "attrib"},
		protocol.FileEvent{Path: dir + "/f", Op: "rename"},
		protocol.FileEvent{Path: dir + "/g", Op: "create"},
		protocol.FileEvent{Path: dir + "/old/deep", Op: "create"},
		protocol.FileEvent{Path: dir + "/new", Op: "create", Dir: true})
	do(os.WriteFile(dir+"/new/a/b/later", []byte("x"), 0o644))
	wantEvents(t, all, protocol.FileEvent{Path: dir + "/new/a/b/later", Op: "create"})
	wantEvents(t, flat,
		protocol.FileEvent{Path: dir + "/new", Op: "create", Dir: true},
		protocol.FileEvent{Path: dir + "/g", Op: "delete"})

	// Events below a renamed directory have its new name.
	do(os.Rename(dir+"/new/a", dir+"/moved"))
	wantEvents(t, all, protocol.FileEvent{Path: dir + "/moved", Op: "create", Dir: true})
	do(os.WriteFile(dir+"/moved/b/again", nil, 0o644))
	wantEvents(t, all, protocol.FileEvent{Path: dir + "/moved/b/again", Op: "create"})

	cancel()
	for range all { // until it is closed
	}
}

func TestWatchEndsWhenRootIsRemoved(t *testing.T) {
	j := start(t)
	dir := t.TempDir()
	os.Mkdir(dir+"/d", 0o755)
	w, err := j.Watch(j.t.Context(), dir+"/d", true)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(dir + "/d")
	wantEvents(t, w, protocol.FileEvent{Path: dir + "/d", Op: "delete"})
	for range w {
	}
	if _, err := j.Watch(j.t.Context(), dir+"/d", false); !errors.Is(err, fault.NotFound) {
		t.Errorf("Watch of a missing file = %v, want not found", err)
	}
}

// A client that does not read gets an overflow event, and does not use memory meanwhile.
func TestWatchOverflow(t *testing.T) {
	j := start(t)
	dir := t.TempDir()
	w, err := j.Watch(j.t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	limit := 16384
	if b, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events"); err == nil {
		limit, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	for i := range limit { // two or three events each; the socket buffers some
		os.WriteFile(dir+"/"+itoa(i%100), nil, 0o644)
		os.Remove(dir + "/" + itoa(i%100))
	}
	wantEvents(t, w, protocol.FileEvent{Path: dir, Op: "overflow", Dir: true})
	j.wantSmall()
}

// A recursive watch that reaches the limit of inotify watches says so.
func TestWatchReportsReachedLimit(t *testing.T) {
	needRoot(t)
	// The limit of a user namespace can be set without effect on the host (namespaces(7)).
	cmd := exec.Command("sh", "-c", `echo 3 > /proc/sys/user/max_inotify_watches && exec "$0"`, os.Args[0])
	ids := []syscall.SysProcIDMap{{HostID: 0, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	j := startIn(t, t.TempDir(), cmd)
	dir := t.TempDir()
	existing, later := dir+"/existing", dir+"/later"
	for _, d := range []string{existing + "/a/b/c/d", later} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := j.Watch(ctx, existing, true)
	if err != nil {
		t.Fatal(err)
	}
	wantEvents(t, w, protocol.FileEvent{Path: existing, Op: "overflow", Dir: true})
	if _, err := j.Watch(ctx, later, false); !errors.Is(err, fault.Exhausted) {
		t.Errorf("Watch at the limit = %v, want exhausted", err)
	}
	cancel()
	for range w {
	}

	// The init removes the watches when it notices that the client is gone.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		w, err = j.Watch(t.Context(), later, true)
		if !errors.Is(err, fault.Exhausted) || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(later+"/a/b/c/d", 0o755); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, w, protocol.FileEvent{Path: later, Op: "overflow", Dir: true})
}
