package observe_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
)

// Trim removes segments of the ended jail first, then the oldest ones of the running jail, and
// stops at the limit.
func TestTrimStartsWithEndedJails(t *testing.T) {
	dir := t.TempDir()
	o := observe.NewObservers(observe.Config{Dir: dir, Policy: eventlog.Policy{SegmentMB: 1}})
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	running, ended := id.NewJail(), id.NewJail()
	logs := map[id.Jail]*eventlog.Log{}
	for _, j := range []id.Jail{running, ended} { // the running jail has the older events
		if err := os.Mkdir(filepath.Join(dir, string(j)), 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := o.Log(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		logs[j] = l
		for i := range 30_000 {
			for !l.HasRoom() {
				time.Sleep(time.Millisecond)
			}
			l.Append(&event.Event{Type: event.Proc, Op: event.OpExec, TS: time.Now().UnixMilli(), PID: int32(i), TID: int32(i), FD: -1, Exe: "/bin/some/program"})
			if i%2000 == 0 { // so that segments have about the configured size
				if err := l.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := l.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	closed := func(j id.Jail) (n int, ready bool) {
		segments, err := logs[j].Segments()
		if err != nil {
			t.Fatal(err)
		}
		ready = true
		for _, s := range segments {
			if !s.Closed {
				continue
			}
			n++
			ready = ready && s.SHA256 != "" && s.Compressed > 0
		}
		return n, ready && n > 0
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, a := closed(running)
		_, b := closed(ended)
		if a && b {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the segments are not compressed")
		}
	}
	before, _ := closed(running)
	many, _ := closed(ended)
	if before < 2 || many < 2 {
		t.Fatalf("%d and %d closed segments, want at least 2 each", before, many)
	}
	isEnded := func(j id.Jail) bool { return j == ended }
	used := usage(t, dir)
	if freed, err := o.Trim(t.Context(), used, isEnded); freed != 0 || err != nil {
		t.Errorf("Trim at the limit frees %d bytes, %v, want none", freed, err)
	}
	if freed, err := o.Trim(t.Context(), used-1, isEnded); freed <= 0 || err != nil {
		t.Errorf("Trim below the usage frees %d bytes, %v", freed, err)
	}
	left, _ := closed(ended)
	if now, _ := closed(running); now != before || left != many-1 {
		t.Errorf("%d of %d segments of the running and %d of %d of the ended jail are left, want one less of the ended jail", now, before, left, many)
	}
	// A limit that is lower than the open files removes all closed segments, but not those files.
	// The record of a removal may close one more segment, which is removed after it is hashed.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := o.Trim(t.Context(), 1, isEnded); err != nil {
			t.Fatal(err)
		}
		a, _ := closed(running)
		b, _ := closed(ended)
		if a == 0 && b == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d closed segments of the running and %d of the ended jail are left, want none", a, b)
		}
	}
	if usage(t, dir) == 0 {
		t.Error("the open files were removed")
	}
}

// usage returns the disk usage of the event logs below dir.
func usage(t *testing.T, dir string) (n int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "events", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		n += blocksOf(t, f)
	}
	return n
}

func blocksOf(t *testing.T, file string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(file, &st); err != nil && err != unix.ENOENT { // compressed after it was listed
		t.Fatal(err)
	}
	return st.Blocks * 512
}
