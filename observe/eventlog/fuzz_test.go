package eventlog

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"glasshouse/observe/event"
)

// FuzzAnyFile writes arbitrary bytes into the files of a log. The log must open, be readable
// to its end, and accept records.
func FuzzAnyFile(f *testing.F) {
	var text []byte
	for n := range 20 {
		e := sample(n)
		e.Seq, e.Jail = uint64(n+1), jid
		text = append(e.AppendJSON(text), '\n')
	}
	var x index
	k := block{len: int64(len(text))}
	spanOf(text, &k.span)
	x.add(k, text)
	w := newEncoder(true)
	packed := w.EncodeAll(text[:len(text)/2], w.EncodeAll(text, nil))
	y := index{complete: 20}
	k.zlen = int64(len(packed))
	y.add(k, text)
	f.Add(text, packed, x.encode(), y.encode())
	f.Add(text[:len(text)-9], packed[:len(packed)-9], y.encode(), x.encode())
	f.Add(append([]byte("\x00\x00\n"), text...), []byte{}, []byte{}, []byte(indexMagic))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text, packed, active, closed []byte) {
		if len(text)+len(packed) > 1<<20 {
			return
		}
		// Use one directory for all inputs: creating one for each would take most of the time.
		names, _ := os.ReadDir(dir)
		for _, n := range names {
			os.RemoveAll(filepath.Join(dir, n.Name()))
		}
		for name, b := range map[string][]byte{
			"syscalls.jsonl": text, "syscalls.idx": active,
			"filesystem.jsonl": text, "filesystem-00000000000000000001.jsonl": text, "filesystem-00000000000000000001.idx": closed,
			"network-00000000000000000001.jsonl.zst": packed, "network-00000000000000000001.idx": closed,
		} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l := New(Config{Dir: dir, Jail: jid, Log: quiet, Policy: Policy{Plain: len(text)%2 == 0}})
		if err := l.Open(); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		l.Stats()
		for _, q := range []Query{{}, {Tail: 3}, {After: 5}, {Since: time.UnixMilli(1_700_000_000_010)}} {
			c, err := l.Read(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			last, lines := uint64(0), 0
			for {
				var e event.Event
				_, err := c.Next(&e)
				if err == io.EOF {
					break
				}
				lines++
				if err != nil || lines > len(text)*3+len(packed)*1000+100 {
					t.Fatalf("%v after %d lines", err, lines)
				}
				if e.Seq > 0 && e.Seq <= last {
					t.Fatalf("record %d follows record %d", e.Seq, last)
				}
				last = max(last, e.Seq)
			}
			c.Close()
		}
		if l.Last() > 1<<62 {
			return // too close to the maximum sequence number
		}
		e := sample(0)
		l.Append(&e)
		if e.Seq == 0 || l.Close() != nil || l.Written() != l.Last() {
			t.Fatalf("the log does not accept records: %+v", l.Stats())
		}
	})
}

func FuzzIndex(f *testing.F) {
	var x index
	x.add(block{span: span{first: 1, last: 5, n: 5, minTS: 1, maxTS: 2}, len: 100}, nil)
	f.Add(x.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := decodeIndex(b)
		if err != nil {
			return
		}
		y, err := decodeIndex(x.encode())
		if err != nil || len(y.blocks) != len(x.blocks) || y.span() != x.span() {
			t.Errorf("index %+v decodes as %+v (%v)", x, y, err)
		}
	})
}

// FuzzHead compares the parsed head of a line with the result of parsing the whole line.
func FuzzHead(f *testing.F) {
	for n := range 10 {
		e := sample(n)
		e.Seq, e.Jail = uint64(n+1), jid
		f.Add(e.AppendJSON(nil))
	}
	came := event.Event{Type: event.Lineage, Seq: 8, NS: 9, Op: event.OpBranch, Snapshot: "s-7k2mwq4x9dpa", Parent: jid, ParentSeq: 7}
	f.Add(came.AppendJSON(nil))
	f.Fuzz(func(t *testing.T, line []byte) {
		var e event.Event
		h, ok := parseHead(line)
		if !ok || event.Parse(line, &e) != nil {
			return
		}
		// The log never writes a field twice.
		again := e.AppendJSON(nil)
		g, ok := parseHead(again)
		if string(again) == string(line) && (!ok || g != h || g.seq != e.Seq || g.ts != e.TS || g.ns != e.NS || g.typ != e.Type) {
			t.Errorf("%s: head %+v, record %+v", line, h, e)
		}
	})
}

// FuzzFrames searches for frames in arbitrary bytes.
func FuzzFrames(f *testing.F) {
	w, _ := zstd.NewWriter(nil)
	f.Add(w.EncodeAll([]byte("hello\n"), w.EncodeAll(make([]byte, 5000), nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var at int64
		err := scanPacked(readerAt(b), int64(len(b)), func(k block, text []byte) error {
			if k.zoff != at || k.zlen <= 0 || int64(len(text)) != k.len {
				t.Fatalf("%+v at %d", k, at)
			}
			at += k.zlen
			return nil
		})
		if err != nil || at > int64(len(b)) {
			t.Errorf("%v at %d of %d", err, at, len(b))
		}
	})
}

type readerAt []byte

func (r readerAt) ReadAt(b []byte, off int64) (int, error) {
	if off >= int64(len(r)) {
		return 0, io.EOF
	}
	n := copy(b, r[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}
