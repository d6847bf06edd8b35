package eventlog

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
)

// A segment is a file of one class, from its first record to its last. The last segment of a
// class may be the one being written.
//
// A segment exists in memory from its first record until retention drops it, while its file is
// renamed, compressed and removed. Readers keep a pointer to the segment and find the file
// through it. segmentList.disk guards all fields except class and first, which never change.
type segment struct {
	class class
	first uint64

	closed  bool
	packed  bool  // its file is compressed
	removed bool  // dropped or quarantined; it has no file
	text    int64 // bytes of text that readers may read
	size    int64 // bytes of the closed file

	blocks  []block // set while the segment is written and until its index file exists
	known   bool    // the following fields are set from the index
	span    span
	gapLoss gapLoss
	sum     [32]byte
	hasSum  bool
}

// A segmentList has the segments of a log and their files.
type segmentList struct {
	dir string
	log *slog.Logger

	disk     sync.Mutex
	segments [classes][]*segment // per class, oldest first; only the last may be open
	dropped  [classes]uint64     // the largest sequence number dropped since Open
}

func (sl *segmentList) path(name string) string { return filepath.Join(sl.dir, name) }

// file returns the name of the file of s. index returns the name of its index.
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

// errRemoved reports that a segment was dropped or its file removed.
var errRemoved = errors.New("segment was removed")

// openSegment opens the file of s and reports whether it is compressed.
func (sl *segmentList) openSegment(s *segment) (f *os.File, packed bool, err error) {
	sl.disk.Lock()
	defer sl.disk.Unlock()
	// The name of the file changes under this lock, when it is closed or compressed. An open
	// descriptor stays valid if the file is renamed or removed (rename(2), unlink(2)).
	if s.removed {
		return nil, false, errRemoved
	}
	f, err = openRegular(sl.path(s.file()))
	return f, s.packed, mapNotExist(err) // another program may have removed the file
}

// blocksOf returns the readable blocks of a segment that end after off, which is 0 or a block
// boundary. f is the file of the segment.
func (l *Log) blocksOf(s *segment, f *os.File, packed bool, off int64) ([]block, error) {
	l.disk.Lock()
	if s.blocks != nil && !packed {
		defer l.disk.Unlock()
		i, _ := slices.BinarySearchFunc(s.blocks, off, func(k block, off int64) int { return cmp.Compare(k.off+k.len, off+1) })
		blocks := slices.Clone(s.blocks[i:])
		// Blocks grow before their records are published: see commit and publish.
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
	if open { // not during Open, which reads segments before gaps can be appended
		packing.add(l, s) // this writes the index
	}
	return x.blocks, nil
}

// adopt stores the header data of an index in s. It returns false if x belongs to another
// segment.
func (sl *segmentList) adopt(s *segment, x *index) bool {
	sp := x.span()
	if sp.n > 0 && sp.first != s.first {
		return false
	}
	sl.disk.Lock()
	defer sl.disk.Unlock()
	s.setIndex(x)
	return true
}

// setIndex is like adopt, but for an index that is known to belong to s. segmentList.disk must be
// held.
func (s *segment) setIndex(x *index) { s.setHeader(x, x.span()) }

// setHeader is like setIndex, but for an index whose blocks, which span sp, were not read.
func (s *segment) setHeader(x *index, sp span) {
	s.span, s.known, s.text, s.gapLoss = sp, true, x.textLen, x.gapLoss
	if x.hasSum {
		s.sum, s.hasSum = x.sum, true
	}
}

// rebuild creates the index of a closed segment by reading all of its text.
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

// loadHeader reads the span of s from the header of its index, unless it is known. It returns
// false if the span remains unknown; the index then has to be read or rebuilt.
func (sl *segmentList) loadHeader(s *segment) bool {
	sl.disk.Lock()
	known, name := s.known || !s.closed || s.blocks != nil, sl.path(s.index())
	sl.disk.Unlock()
	if known {
		return true
	}
	x, sp, err := readHeader(name)
	if err != nil || sp.n == 0 || sp.first != s.first {
		return false
	}
	sl.disk.Lock()
	defer sl.disk.Unlock()
	// Another reader may have set it while the lock was released.
	if !s.known {
		s.setHeader(x, sp)
	}
	return true
}

// loadSpan ensures that the span of s is known, reading or rebuilding its index if necessary.
func (l *Log) loadSpan(s *segment) error {
	if l.loadHeader(s) {
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

// list returns the segments of all classes, for each class from the oldest.
func (sl *segmentList) list() []*segment {
	sl.disk.Lock()
	defer sl.disk.Unlock()
	var all []*segment
	for c := range sl.segments {
		all = append(all, sl.segments[c]...)
	}
	return all
}

// A Segment describes a file of the log.
type Segment struct {
	File            string // its name in the log's directory
	First, Last     uint64 // sequence numbers of its records
	FirstTS, LastTS int64  // milliseconds since 1970
	Events          int64
	Bytes           int64  // bytes of text
	Compressed      int64  // bytes; 0 is not compressed
	SHA256          string // SHA-256 hash of the text, in hex; "" until the closed segment has been hashed
	Closed          bool   // its text never changes again
}

// Segments lists the files of the log, for each class from the oldest.
func (l *Log) Segments() ([]Segment, error) {
	var out []Segment
	var errs []error
	for _, s := range l.list() {
		if err := l.loadSpan(s); err != nil {
			if !errors.Is(err, errRemoved) {
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

// describe returns the description of s. It returns false if s was removed.
func (sl *segmentList) describe(s *segment) (Segment, bool) {
	sl.disk.Lock()
	defer sl.disk.Unlock()
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
	return seg, !s.removed
}

// covers returns the span of s. segmentList.disk must be held.
func (s *segment) covers() (sp span) {
	if s.known {
		return s.span
	}
	for i := range s.blocks {
		sp.join(s.blocks[i].span)
	}
	return sp
}

// drop removes s and its file, and returns the gap that reports the removal. It returns false
// if s was removed before. The index remains until the gap is written: see reportDropped.
func (sl *segmentList) drop(s *segment) (event.Event, bool) {
	sl.disk.Lock()
	defer sl.disk.Unlock()
	if !sl.unlist(s) {
		return event.Event{}, false
	}
	sl.remove(s.file())
	return s.lossGap("retention"), true
}

// quarantine removes an unreadable segment from the log, keeps its file under another name for
// inspection by a person, and appends a gap.
func (l *Log) quarantine(s *segment, why error) {
	if gap, ok := l.quarantineFile(s, why); ok {
		l.reportDropped(&gap, s.index())
	}
}

// quarantineFile is like quarantine, but returns the gap instead of appending it. It returns false
// if s was removed before. As with drop, the index remains until the gap is written.
func (sl *segmentList) quarantineFile(s *segment, why error) (event.Event, bool) {
	sl.disk.Lock()
	defer sl.disk.Unlock()
	if !sl.unlist(s) {
		return event.Event{}, false
	}
	name := sl.path(s.file())
	if err := os.Rename(name, name+badSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		why = errors.Join(why, err)
	}
	sl.log.Error("quarantined an unreadable event log segment", "file", name+badSuffix, "error", why)
	gap := event.Event{Type: event.Gap, Source: source[s.class], Lost: -1, Reason: "unreadable", From: s.first}
	if s.covers().n > 0 {
		gap = s.lossGap("unreadable")
	}
	return gap, true
}

// lossGap returns the gap that reports the removal of s. segmentList.disk must be held.
func (s *segment) lossGap(reason string) event.Event {
	sp := s.covers()
	from := sp.first
	if s.gapLoss.from > 0 {
		from = min(from, s.gapLoss.from)
	}
	return event.Event{Type: event.Gap, Source: source[s.class], Lost: sp.n + s.gapLoss.lost, Reason: reason, From: from, Through: sp.last}
}

// unlist removes s from the list of segments. It returns false if s was removed before.
// segmentList.disk must be held.
func (sl *segmentList) unlist(s *segment) bool {
	if s.removed {
		return false
	}
	list := sl.segments[s.class]
	if i := slices.Index(list, s); i >= 0 {
		sl.segments[s.class] = slices.Delete(slices.Clone(list), i, i+1)
	}
	s.removed = true
	sl.dropped[s.class] = max(sl.dropped[s.class], s.first, s.covers().last)
	return true
}

func (sl *segmentList) remove(name string) {
	if err := os.Remove(sl.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		sl.log.Warn("cannot remove an event log file", "file", sl.path(name), "error", err)
	}
}

// appendGap appends a gap that the log itself reports.
func (l *Log) appendGap(gap *event.Event) {
	stamp(gap)
	l.Append(gap)
}

// reportDropped appends the gap that reports the removal of a segment and, when it is written,
// removes the index of the segment. If the daemon is killed before, Open finds an index without a
// file and reports the removal. The removal itself must not wait for the gap, because it may be
// needed to free space on a full disk.
func (l *Log) reportDropped(gap *event.Event, index string) {
	stamp(gap)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.appendOrCount(classOf(gap), gap)
	l.orphans = append(l.orphans, index)
}

// stamp sets the times of e to the current time.
func stamp(e *event.Event) {
	e.TS = time.Now().UnixMilli()
	// This is the clock of Event.NS: see observe.Now, which this package cannot import.
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) == nil {
		e.NS = ts.Nano()
	}
}
