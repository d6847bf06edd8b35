package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/killtest"
	"glasshouse/observe/event"
)

func TestMain(m *testing.M) {
	quietPeriod = 0
	if !killtest.Started() {
		unpacker() // created before any synctest bubble starts
	}
	killtest.Main(m, writeForever)
}

// writeForever appends records and periodically prints the last written number.
func writeForever(args []string) error {
	l := New(Config{Dir: args[0], Jail: jid, Log: quiet})
	l.segment = 300 << 10
	if err := l.Open(); err != nil {
		return err
	}
	if len(args) > 1 {
		base, err := strconv.ParseUint(args[1], 10, 64)
		if err == nil && l.Last() <= base {
			err = l.SetBase(base)
		}
		if err != nil {
			return err
		}
	}
	for n := 0; ; n++ {
		for !l.HasRoom() {
			time.Sleep(100 * time.Microsecond)
		}
		e := sample(n)
		l.Append(&e)
		if n%500 == 0 {
			fmt.Println(l.Written())
		}
	}
}

// reopen opens a log with small segments.
func reopen(t *testing.T, dir string) *Log {
	t.Helper()
	l := New(Config{Dir: dir, Jail: jid, Log: quiet})
	l.segment = 300 << 10
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestKilledAtAnyMoment(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	dir := filepath.Join(t.TempDir(), "events")
	last := uint64(0)
	for range rounds {
		written := killedWriter(t, time.Duration(1+rand.IntN(40))*time.Millisecond, dir)
		l := reopen(t, dir)
		flush(t, l)
		checkGapsComplete(t, l, last, written)
		last = l.Last()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l := reopen(t, dir)
	settle(t, l)
	if last != l.Last() {
		t.Errorf("Last() = %d before Close, %d after reopening", last, l.Last())
	}
	checkGapsComplete(t, l, 0, 0)
	t.Logf("%d records after %d kills; %d gaps", last, rounds, len(gapsIn(t, l)))
}

// checkGapsComplete checks that no record after after is missing except those reported by
// gaps, and that the gaps report no record up to written.
func checkGapsComplete(t *testing.T, l *Log, after, written uint64) {
	t.Helper()
	seqs, made := read(t, l, Query{After: after})
	if len(made) > 0 {
		t.Fatalf("unexpected damage: %+v", made)
	}
	have := map[uint64]bool{}
	for _, s := range seqs {
		have[s] = true
	}
	for s := after + 1; s <= written; s++ {
		if !have[s] {
			t.Fatalf("records up to %d were reported as written, but %d is missing", written, s)
		}
	}
	missing, reported := int64(l.Last()-after)-int64(len(seqs)), int64(0)
	for _, g := range gapsIn(t, l) {
		if g.Reason != "torn by a crash" || g.Lost < 1 {
			t.Fatalf("unexpected gap %+v", g)
		}
		if g.From == 0 || g.Through <= after {
			continue
		}
		if have[g.From] || have[g.Through] || g.From <= written {
			t.Errorf("gap %+v covers existing records", g)
		}
		reported += g.Lost
	}
	if reported != missing {
		t.Errorf("%d numbers are missing, gaps report %d", missing, reported)
	}
}

// killedWriter runs a process that appends for a while, kills it, and returns the last number
// that it reported as written.
func killedWriter(t *testing.T, after time.Duration, args ...any) (written uint64) {
	t.Helper()
	first := true
	p := killtest.Start(t, args...)
	for line := range p.Lines() {
		n, err := strconv.ParseUint(line, 10, 64)
		if err != nil {
			break // killed while printing the number
		}
		written = max(written, n)
		if first && n > 0 {
			first = false
			time.AfterFunc(after, p.Kill)
		}
	}
	p.Wait()
	return written
}

func TestTornLineIsTruncatedAndReported(t *testing.T) {
	cfg := config(t, Policy{})
	l := open(t, cfg)
	fill(l, 0, 100)
	l.Close()
	e := sample(3) // an event of type file
	e.Seq, e.Jail = 101, jid
	line := e.AppendJSON(nil)
	appendTo(t, cfg.Dir, "filesystem.jsonl", line[:len(line)-20])

	l = open(t, cfg)
	flush(t, l)
	seqs, gaps := read(t, l, Query{})
	if want := append(all(1, 100), 102); !slices.Equal(seqs, want) || gaps != nil {
		t.Errorf("read %v and gaps %v", seqs[90:], gaps)
	}
	gap := lastOf(t, l)
	if gap.Type != event.Gap || gap.Source != event.File || gap.Lost != 1 || gap.From != 101 || gap.Through != 101 || gap.Reason != "torn by a crash" {
		t.Errorf("the gap is %+v", gap)
	}
	l.Close()
	l = open(t, cfg)
	if l.Last() != 102 {
		t.Errorf("reopening reports the gap again: Last() = %d", l.Last())
	}
}

// A crash may leave a later record in one file while earlier ones are missing from another.
func TestCrashLosesRecordsOfOneFile(t *testing.T) {
	cfg := config(t, Policy{})
	l := open(t, cfg)
	fill(l, 0, 100)
	l.Close()
	for _, seq := range []uint64{103, 104, 107} {
		e := sample(0)
		e.Seq, e.Jail = seq, jid
		appendTo(t, cfg.Dir, "syscalls.jsonl", append(e.AppendJSON(nil), '\n'))
	}
	l = open(t, cfg)
	flush(t, l)
	gap := lastOf(t, l)
	if gap.Type != event.Gap || gap.Seq != 108 || gap.Lost != 4 || gap.From != 101 || gap.Through != 106 {
		t.Errorf("the gap is %+v", gap)
	}
}

// After a power failure, the end of a file may be missing while no later record exists.
func TestHostCrashIsReported(t *testing.T) {
	for boot, want := range map[string]int{bootID(): 0, "another-boot": 1} {
		cfg := config(t, Policy{})
		l := open(t, cfg)
		fill(l, 0, 1000)
		l.Close()
		name := filepath.Join(cfg.Dir, "syscalls.jsonl")
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, int64(bytes.LastIndexByte(text[:len(text)/2], '\n')+1)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(cfg.Dir, bootFile), []byte(boot+" 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		l = open(t, cfg)
		flush(t, l)
		got := 0
		for _, g := range gapsIn(t, l) {
			if g.Lost == -1 && g.Source == 0 {
				got++
			}
		}
		if got != want {
			t.Errorf("boot %s: %d gaps of unknown length, want %d", boot, got, want)
		}
		l.Close()
	}
}

func TestSyncErrorStays(t *testing.T) {
	l := open(t, config(t, Policy{Fsync: "second"}))
	fill(l, 0, 10)
	flush(t, l)
	l.Close() // ends the writer
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	l.files[0] = activeFile{file: w, dirty: true} // fsync(2) of a pipe fails
	l.sync()
	l.setWriteError(nil) // a later write succeeds
	if got := l.Stats().Err; !strings.Contains(got, "sync syscalls") {
		t.Errorf("Err = %q after a failed fsync and a write", got)
	}
}

func appendTo(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
}

// lastOf returns the last record of a log.
func lastOf(t *testing.T, l *Log) (e event.Event) {
	t.Helper()
	c, err := l.Read(t.Context(), Query{Tail: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Next(&e); err != nil {
		t.Fatal(err)
	}
	return e
}

// Records are found regardless of the state of the index files.
func TestMissingOrWrongIndexes(t *testing.T) {
	const n = 20_000
	for name, harm := range map[string]func(t *testing.T, dir, idx string){
		"lost":    func(t *testing.T, dir, idx string) { os.Remove(idx) },
		"empty":   func(t *testing.T, dir, idx string) { os.WriteFile(idx, nil, 0o600) },
		"garbage": func(t *testing.T, dir, idx string) { os.WriteFile(idx, bytes.Repeat([]byte("x"), 500), 0o600) },
		"damaged": func(t *testing.T, dir, idx string) {
			b, _ := os.ReadFile(idx)
			b[len(b)/2] ^= 1
			os.WriteFile(idx, b, 0o600)
		},
		"another's": func(t *testing.T, dir, idx string) {
			var x index
			x.blocks = []block{{span: span{first: 7, last: 9, n: 3}, len: 100}}
			x.textLen = 100
			x.write(idx)
		},
		"a directory": func(t *testing.T, dir, idx string) {
			os.Remove(idx)
			os.Mkdir(idx, 0o700)
		},
		"a pipe": func(t *testing.T, dir, idx string) {
			os.Remove(idx)
			unix.Mkfifo(idx, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, Policy{SegmentMB: 1})
			l := open(t, cfg)
			grow(t, l, 0, n)
			l.Close()
			found, _ := filepath.Glob(filepath.Join(cfg.Dir, "*.idx"))
			if len(found) < 6 {
				t.Fatalf("got only the indexes %v", found)
			}
			for _, idx := range found {
				harm(t, cfg.Dir, idx)
			}
			l = open(t, cfg)
			for range 2 { // while the indexes are rebuilt, and afterwards
				if seqs, gaps := read(t, l, Query{}); !slices.Equal(seqs, all(1, n)) || gaps != nil {
					t.Errorf("read %d records and gaps %+v", len(seqs), gaps)
				}
				if seqs, gaps := read(t, l, Query{After: 9999, Limit: 3}); !slices.Equal(seqs, all(10_000, 10_002)) || gaps != nil {
					t.Errorf("read %v and gaps %v", seqs, gaps)
				}
				settle(t, l)
			}
		})
	}
}

// A crash during compression leaves an incomplete compressed file next to the complete plain
// file.
func TestCrashWhileCompressing(t *testing.T) {
	cfg := config(t, Policy{SegmentMB: 1, Plain: true})
	const n = 10_000
	l := open(t, cfg)
	grow(t, l, 0, n)
	l.Close()
	plain, _ := filepath.Glob(filepath.Join(cfg.Dir, "syscalls-*.jsonl"))
	if len(plain) == 0 {
		t.Fatal("no segment is closed")
	}
	os.WriteFile(plain[0]+".zst", []byte("half"), 0o600)
	os.WriteFile(plain[0]+".zst.tmp", []byte("half"), 0o600)
	os.WriteFile(filepath.Join(cfg.Dir, "somebody's.tmp"), nil, 0o600)
	cfg.Policy.Plain = false
	l = open(t, cfg)
	if seqs, gaps := read(t, l, Query{}); !slices.Equal(seqs, all(1, n)) || gaps != nil {
		t.Errorf("read %d records and %v", len(seqs), gaps)
	}
	settle(t, l)
	if seqs, gaps := read(t, l, Query{}); !slices.Equal(seqs, all(1, n)) || gaps != nil {
		t.Errorf("read %d records and gaps %v after compression", len(seqs), gaps)
	}
	left, _ := filepath.Glob(filepath.Join(cfg.Dir, "*.tmp"))
	if len(left) != 1 {
		t.Errorf("remaining files are %v, want only the foreign file", left)
	}
	left, _ = filepath.Glob(filepath.Join(cfg.Dir, "syscalls-*.jsonl"))
	if len(left) > 0 {
		t.Errorf("%v are not compressed", left)
	}
}

func TestUnreadableFilesAreQuarantined(t *testing.T) {
	cfg := config(t, Policy{SegmentMB: 1})
	const n = 20_000
	l := open(t, cfg)
	grow(t, l, 0, n)
	l.Close()
	packed, _ := filepath.Glob(filepath.Join(cfg.Dir, "syscalls-*.zst"))
	if len(packed) < 2 {
		t.Fatalf("got only the compressed files %v", packed)
	}
	os.WriteFile(packed[0], []byte("not zstd"), 0o600) // and remove its index
	os.Remove(strings.TrimSuffix(packed[0], ".jsonl.zst") + ".idx")
	os.Remove(packed[1])
	os.Mkdir(packed[1], 0o700)
	os.WriteFile(filepath.Join(cfg.Dir, "network.jsonl"), make([]byte, 5000), 0o600) // zeros as after a power failure
	os.Remove(filepath.Join(cfg.Dir, "processes.jsonl"))
	os.Mkdir(filepath.Join(cfg.Dir, "processes.jsonl"), 0o700)

	l = open(t, cfg)
	settle(t, l)
	fill(l, n, n+100)
	flush(t, l)
	seqs, _ := read(t, l, Query{After: n})
	if len(seqs) < 103 || seqs[len(seqs)-1] != l.Last() {
		t.Errorf("the log does not accept records: %v", seqs)
	}
	bad, _ := filepath.Glob(filepath.Join(cfg.Dir, "*.bad"))
	if len(bad) != 3 { // the file of zeros counts as one torn line
		t.Errorf("quarantined files are %v, want 3", bad)
	}
	reported := 0
	c, _ := l.Read(t.Context(), Query{Filter: filter(t, "type:gap")})
	defer c.Close()
	for {
		var e event.Event
		if _, err := c.Next(&e); err != nil {
			break
		}
		if e.Reason == "unreadable" {
			reported++
		}
	}
	if reported != 3 {
		t.Errorf("got %d gaps, want 3", reported)
	}
}

// Damage in the middle of a file is skipped and reported, and no other record is missing.
func TestDamageInTheMiddle(t *testing.T) {
	for _, plain := range []bool{true, false} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			cfg := config(t, Policy{SegmentMB: 1, Plain: plain})
			const n = 20_000
			l := open(t, cfg)
			grow(t, l, 0, n)
			l.Close()
			names, _ := filepath.Glob(filepath.Join(cfg.Dir, "syscalls-*.jsonl*"))
			f, err := os.OpenFile(names[0], os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			st, _ := f.Stat()
			f.WriteAt(bytes.Repeat([]byte("garbage\n"), 100), st.Size()/2)
			f.Close()

			l = open(t, cfg)
			seqs, gaps := read(t, l, Query{})
			if len(gaps) == 0 {
				t.Fatal("no gap reports the damage")
			}
			have := map[uint64]bool{}
			for _, s := range seqs {
				have[s] = true
			}
			missing := 0
			for s := uint64(1); s <= n; s++ {
				if have[s] {
					continue
				}
				missing++
				if !slices.ContainsFunc(gaps, func(g event.Event) bool {
					return g.From <= s && s <= g.Through && g.Source == event.Syscall && g.Reason == "damaged"
				}) {
					t.Fatalf("record %d is missing and in no gap: %+v", s, gaps)
				}
			}
			if missing == 0 || missing > 4000 {
				t.Errorf("%d records are missing", missing)
			}
		})
	}
}

// A file system fills up and is freed again: no record is lost or duplicated.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t, 16)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 15<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	l := open(t, Config{Dir: filepath.Join(dir, "events"), Jail: jid, Log: quiet})
	const n = 15_000
	for i := range n {
		e := sample(i)
		l.Append(&e)
	}
	l.FlushSoon()
	for l.Stats().Err == "" {
		time.Sleep(time.Millisecond)
	}
	if got := l.Stats().Err; !strings.Contains(got, "no space left") {
		t.Errorf("Stats().Err = %q", got)
	}
	if w := l.Written(); w >= n {
		t.Fatalf("%d records were written: the disk is not full", w)
	}
	if seqs, gaps := read(t, l, Query{}); uint64(len(seqs)) != l.Written() || gaps != nil {
		t.Errorf("read %d of %d written records, and gaps %v", len(seqs), l.Written(), gaps)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	flush(t, l)
	if got := l.Stats().Err; got != "" {
		t.Errorf("Stats().Err = %q after space was freed", got)
	}
	if seqs, gaps := read(t, l, Query{}); !slices.Equal(seqs, all(1, n)) || gaps != nil {
		t.Errorf("read %d records and %v", len(seqs), gaps)
	}
	l.Close()
	if seqs, _ := read(t, open(t, l.cfg), Query{}); !slices.Equal(seqs, all(1, n)) {
		t.Error("the reopened log has other records")
	}
}

func TestCloseOnFullDisk(t *testing.T) {
	dir := smallDisk(t, 4)
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	l := open(t, Config{Dir: filepath.Join(dir, "events"), Jail: jid, Log: quiet})
	const n = 10_000
	for i := range n {
		e := sample(i)
		l.Append(&e)
	}
	err := l.Close()
	if err == nil || !strings.Contains(err.Error(), "records are lost: ") || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("Close on a full disk = %v", err)
	}
	lost := int64(0)
	for _, k := range l.Stats().Lost {
		lost += k
	}
	os.Remove(filepath.Join(dir, "ballast"))
	l = open(t, l.cfg)
	flush(t, l)
	seqs, gaps := read(t, l, Query{})
	reported := gapsIn(t, l)
	kept := int64(len(seqs) - len(reported))
	if gaps != nil || kept+lost != n {
		t.Errorf("%d records stored and %d reported as lost, want %d together; gaps %v", kept, lost, n, gaps)
	}
	for _, g := range reported {
		if g.Source != 0 {
			t.Errorf("a torn line remained: %+v", g)
		}
	}
}

// smallDisk mounts a file system of mb megabytes.
func smallDisk(t *testing.T, mb int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mb)); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skip("mounting a file system needs root")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestRemovedActiveFile(t *testing.T) {
	cfg := config(t, Policy{})
	l := open(t, cfg)
	fill(l, 0, 100)
	l.Close()
	l = open(t, cfg)
	os.Remove(filepath.Join(cfg.Dir, "syscalls.jsonl"))
	fill(l, 100, 200)
	flush(t, l)
	flush(t, l) // the gap is appended during the first flush
	_, gaps := read(t, l, Query{})
	gap := lastOf(t, l)
	if gap.Type != event.Gap || gap.Source != event.Syscall || gap.Lost != 78 || gap.From != 1 || gap.Through != 100 || len(gaps) > 0 {
		t.Errorf("the gap is %+v; other gaps %v", gap, gaps)
	}
	if seqs, _ := read(t, l, Query{After: 100}); !slices.Equal(seqs, all(101, 201)) {
		t.Errorf("read %v", seqs)
	}
}

func TestRemovedParentDirectory(t *testing.T) {
	cfg := config(t, Policy{})
	cfg.Dir = filepath.Join(t.TempDir(), "gone", "events")
	l := open(t, cfg)
	fill(l, 0, 10)
	l.FlushSoon()
	for l.Stats().Err == "" {
		time.Sleep(time.Millisecond)
	}
	if err := l.Close(); err == nil {
		t.Error("Close returned no error")
	}
	if _, err := os.Stat(filepath.Dir(cfg.Dir)); !errors.Is(err, os.ErrNotExist) {
		t.Error("the log created its parent directory")
	}
}

func TestPartialVectorWrite(t *testing.T) {
	dir := smallDisk(t, 1)
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var chunks []*chunk
	var want []byte
	for c := range byte(5) {
		k := &chunk{text: bytes.Repeat([]byte{'a' + c}, 300_000)}
		chunks = append(chunks, k)
		want = append(want, k.text...)
	}
	n, err := writeTo(f, 0, chunks)
	if !errors.Is(err, unix.ENOSPC) || n != 3 || chunks[3].done != 1<<20-900_000 || chunks[4].done != 0 {
		t.Fatalf("%d chunks were written, %d and %d bytes of the next two: %v", n, chunks[3].done, chunks[4].done, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=2m"); err != nil {
		t.Fatal(err)
	}
	if n, err := writeTo(f, 900_000, chunks[n:]); n != 2 || err != nil {
		t.Fatalf("%d of the other two chunks were written: %v", n, err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has %d bytes and not the expected text: %v", len(got), err)
	}
}
