package eventlog

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/event"
)

// A segment is a file of one class, from its first record to its last. The last
// segment of a class may be the one being written.
//
// A segment keeps its place in memory from its first record until retention
// drops it, while its file is renamed, compressed and removed: readers hold on to
// the segment and find its file through it. All fields are guarded by Log.disk,
// but for class and first, which never change.
type segment struct {
	class class
	first uint64

	closed bool
	packed bool  // its file is compressed
	gone   bool  // dropped or set aside; there is no file
	text   int64 // bytes of text that may be read
	size   int64 // bytes of the closed file

	blocks []block // of the segment being written, and of one whose index is not yet in a file
	known  bool    // what follows is what the index says
	span   span
	told   told
	sum    [32]byte
	hasSum bool
}

func (l *Log) path(name string) string { return filepath.Join(l.cfg.Dir, name) }

// file is the name of s's file, index that of its index.
func (s *segment) file() string {
	switch {
	case !s.closed:
		return activeName(s.class) + textSuffix
	case s.packed:
		return closedName(s.class, s.first) + packedSuffix
	}
	return closedName(s.class, s.first) + textSuffix
}

func (s *segment) index() string { return closedName(s.class, s.first) + indexSuffix }

// errGone is what opening a segment says that is no longer there.
var errGone = errors.New("the segment is gone")

// openSegment opens s's file, and says whether it is compressed.
func (l *Log) openSegment(s *segment) (f *os.File, packed bool, err error) {
	l.disk.Lock()
	defer l.disk.Unlock()
	if s.gone {
		return nil, false, errGone
	}
	f, err = openRegular(l.path(s.file()))
	return f, s.packed, orGone(err) // or somebody else has taken it away
}

// blocksOf returns the blocks of a segment that end behind off, which is a
// boundary of blocks or 0, as far as they may be read. f is the segment's file.
func (l *Log) blocksOf(s *segment, f *os.File, packed bool, off int64) ([]block, error) {
	l.disk.Lock()
	if s.blocks != nil && !packed {
		defer l.disk.Unlock()
		i, _ := slices.BinarySearchFunc(s.blocks, off, func(k block, off int64) int { return cmp.Compare(k.off+k.len, off+1) })
		blocks := slices.Clone(s.blocks[i:])
		for n := len(blocks); n > 0; n-- {
			k := &blocks[n-1]
			k.len = min(k.len, s.text-k.off)
			if k.len > 0 {
				return blocks[:n], nil
			}
		}
		return nil, nil
	}
	name := l.path(s.index())
	l.disk.Unlock()

	if x, err := readIndex(name); err == nil && (!packed || x.packed > 0) && l.adopt(s, x) {
		return x.blocks, nil
	}
	x, err := rebuild(f, packed)
	if err != nil {
		return nil, fmt.Errorf("read segment %s: %w", f.Name(), err)
	}
	l.adopt(s, x)
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	if open { // Open itself looks at segments before there can be a gap about them
		packing.add(l, s) // which writes the index
	}
	return x.blocks, nil
}

// adopt remembers of an index what is small. It reports false if x cannot be
// of s.
func (l *Log) adopt(s *segment, x *index) bool {
	sp := x.span()
	if sp.n > 0 && sp.first != s.first {
		return false
	}
	l.disk.Lock()
	defer l.disk.Unlock()
	s.learn(x)
	return true
}

// learn is adopt for an index that is surely of s. Log.disk must be held.
func (s *segment) learn(x *index) { s.learnHeader(x, x.span()) }

// learnHeader is learn where the blocks of x, which span sp, were not read.
func (s *segment) learnHeader(x *index, sp span) {
	s.span, s.known, s.text, s.told = sp, true, x.textLen, x.told
	if x.hasSum {
		s.sum, s.hasSum = x.sum, true
	}
}

// rebuild makes the index of a closed segment by reading all of it.
func rebuild(f *os.File, packed bool) (*index, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	x := &index{}
	if packed {
		err = scanPacked(f, st.Size(), func(k block, text []byte) error {
			x.add(k, text)
			return nil
		})
		return x, err
	}
	_, err = scan(io.NewSectionReader(f, 0, st.Size()), 0, func(k block, text []byte) error {
		x.add(k, text)
		return nil
	})
	return x, err
}

// glance looks for the span of s in its index's header, and reports whether it
// is known now. If not, the index has to be read, or made anew.
func (l *Log) glance(s *segment) bool {
	l.disk.Lock()
	known, name := s.known || !s.closed || s.blocks != nil, l.path(s.index())
	l.disk.Unlock()
	if known {
		return true
	}
	x, sp, err := readHeader(name)
	if err != nil || sp.n == 0 || sp.first != s.first {
		return false
	}
	l.disk.Lock()
	defer l.disk.Unlock()
	if !s.known {
		s.learnHeader(x, sp)
	}
	return true
}

// learn makes sure that the span of s is known.
func (l *Log) learn(s *segment) error {
	if l.glance(s) {
		return nil
	}
	f, packed, err := l.openSegment(s)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = l.blocksOf(s, f, packed, 0)
	return err
}

// list returns all segments of all classes, those of each class from the oldest.
func (l *Log) list() []*segment {
	l.disk.Lock()
	defer l.disk.Unlock()
	var all []*segment
	for c := range l.segments {
		all = append(all, l.segments[c]...)
	}
	return all
}

// A Segment is a file of the log as others may know it.
type Segment struct {
	File            string // its name in the log's directory
	First, Last     uint64 // sequence numbers of its records
	FirstTS, LastTS int64  // milliseconds since 1970
	Events          int64
	Bytes           int64  // of text
	Compressed      int64  // bytes; 0 is not compressed
	SHA256          string // of the text, in hex; "" until the segment is closed and was read for it
	Closed          bool   // its text never changes again
}

// Segments lists the files of the log, those of each class from the oldest.
func (l *Log) Segments() ([]Segment, error) {
	var out []Segment
	var errs []error
	for _, s := range l.list() {
		if err := l.learn(s); err != nil {
			if !errors.Is(err, errGone) {
				errs = append(errs, err)
			}
			continue
		}
		if seg, ok := l.describe(s); ok {
			out = append(out, seg)
		}
	}
	return out, errors.Join(errs...)
}

// describe is s as others may know it. It reports false if s is gone.
func (l *Log) describe(s *segment) (Segment, bool) {
	l.disk.Lock()
	defer l.disk.Unlock()
	sp := s.covers()
	seg := Segment{
		File: s.file(), First: s.first, Last: sp.last, FirstTS: sp.minTS, LastTS: sp.maxTS,
		Events: sp.n, Bytes: s.text, Closed: s.closed,
	}
	if s.hasSum {
		seg.SHA256 = hex.EncodeToString(s.sum[:])
	}
	if s.packed {
		seg.Compressed = s.size
	}
	return seg, !s.gone
}

// covers returns the span of s. Log.disk must be held.
func (s *segment) covers() (sp span) {
	if s.known {
		return s.span
	}
	for i := range s.blocks {
		sp.join(s.blocks[i].span)
	}
	return sp
}

// drop removes s and its files, and returns the gap that tells so. It reports
// false if s was gone.
func (l *Log) drop(s *segment) (event.Event, bool) {
	l.disk.Lock()
	defer l.disk.Unlock()
	if !l.forget(s) {
		return event.Event{}, false
	}
	l.remove(s.file())
	l.remove(s.index())
	return s.loss("retention"), true
}

// setAside takes a segment that cannot be read out of the log, for a person to
// look at, and says so in it.
func (l *Log) setAside(s *segment, why error) {
	if gap, ok := l.takeOut(s, why); ok {
		l.say(&gap)
	}
}

// takeOut is setAside, but for saying the gap that it returns. It reports false
// if s was gone.
func (l *Log) takeOut(s *segment, why error) (event.Event, bool) {
	l.disk.Lock()
	defer l.disk.Unlock()
	if !l.forget(s) {
		return event.Event{}, false
	}
	name := l.path(s.file())
	if err := os.Rename(name, name+badSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		why = errors.Join(why, err)
	}
	l.remove(s.index())
	l.log.Error("a segment of the event log cannot be read and is set aside", "file", name+badSuffix, "error", why)
	gap := event.Event{Type: event.Gap, Source: source[s.class], Lost: -1, Reason: "unreadable", From: s.first}
	if s.covers().n > 0 {
		gap = s.loss("unreadable")
	}
	return gap, true
}

// loss is the gap that tells that s is no longer there. Log.disk must be held.
func (s *segment) loss(reason string) event.Event {
	sp := s.covers()
	from := sp.first
	if s.told.from > 0 {
		from = min(from, s.told.from)
	}
	return event.Event{Type: event.Gap, Source: source[s.class], Lost: sp.n + s.told.lost, Reason: reason, From: from, Through: sp.last}
}

// forget takes s out of the list. Log.disk must be held.
func (l *Log) forget(s *segment) bool {
	if s.gone {
		return false
	}
	list := l.segments[s.class]
	if i := slices.Index(list, s); i >= 0 {
		l.segments[s.class] = slices.Delete(slices.Clone(list), i, i+1)
	}
	s.gone = true
	l.dropped[s.class] = max(l.dropped[s.class], s.first, s.covers().last)
	return true
}

func (l *Log) remove(name string) {
	if err := os.Remove(l.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("a file of the event log cannot be removed", "file", l.path(name), "error", err)
	}
}

// say appends a gap that the log itself has to tell of.
func (l *Log) say(gap *event.Event) {
	stamp(gap)
	l.Append(gap)
}

// stamp gives e the time of now.
func stamp(e *event.Event) {
	e.TS = time.Now().UnixMilli()
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) == nil {
		e.NS = ts.Nano()
	}
}
