package eventlog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"glasshouse/event"
)

// bootFile says since which sequence number records are of this boot of the
// host: monotonic time begins anew with each. Of a log that does not begin with
// number 1 it says as well after which it does.
const bootFile = "boot"

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

func (l *Log) bootLine() []byte {
	if l.base > 0 {
		return fmt.Appendf(nil, "%s %d %d\n", bootID(), l.bootSeq, l.base)
	}
	return fmt.Appendf(nil, "%s %d\n", bootID(), l.bootSeq)
}

// Open finds what an earlier log has left in the directory and goes on behind
// it. A line that a crash has torn is cut off, what is missing is said in a gap,
// and what cannot be read is set aside: there is nothing in the directory for
// which Open refuses to begin. A directory that is not there is an empty log.
//
// A log that was closed, or idle when the daemon died, is opened without
// reading its records.
func (l *Log) Open() error {
	names, err := os.ReadDir(l.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open event log: %w", err)
	}
	r := recovery{l: l}
	r.base()
	for _, e := range names {
		r.sort(e.Name())
	}
	r.closed()
	r.actives()
	r.holes()
	r.boot()

	l.mu.Lock()
	l.seq = r.last
	l.written.Store(l.seq)
	l.open = true
	l.mu.Unlock()
	for i := range r.gaps {
		l.say(&r.gaps[i])
	}
	for _, s := range r.unfinished {
		packing.add(l, s)
	}
	if p := l.cfg.Policy; len(l.list()) > 0 && (p.KeepMB > 0 || p.KeepAge > 0) {
		packing.add(l, nil)
	}
	return nil
}

// A recovery is what Open finds out.
type recovery struct {
	l          *Log
	active     [classes]bool
	found      [classes]map[uint64]string // closed files, by their first record: one suffix
	indexes    []string
	unfinished []*segment

	said  []string // what the boot file says
	whole uint64   // up to here nothing is missing
	last  uint64   // the largest sequence number there is
	seen  []uint64 // a bit for each sequence number after whole
	gaps  []event.Event
}

// sort looks at one name in the directory. What it does not know belongs to
// somebody else.
func (r *recovery) sort(name string) {
	if strings.HasSuffix(name, tempSuffix) {
		if _, _, _, ok := parseName(strings.TrimSuffix(name, tempSuffix)); ok {
			r.l.remove(name)
		}
		return
	}
	if strings.HasPrefix(name, ".tmp-") { // an index that was being replaced
		r.l.remove(name)
		return
	}
	for c, n := range classNames {
		if name == n+textSuffix {
			r.active[class(c)] = true
			return
		}
	}
	c, first, suffix, ok := parseName(name)
	if !ok {
		return
	}
	if suffix == indexSuffix {
		r.indexes = append(r.indexes, name)
		return
	}
	if r.found[c] == nil {
		r.found[c] = map[uint64]string{}
	}
	switch have := r.found[c][first]; {
	case have == "":
		r.found[c][first] = suffix
	default: // compressing was not finished, and the plain file is surely whole
		r.l.remove(closedName(c, first) + packedSuffix)
		r.found[c][first] = textSuffix
	}
}

// closed makes the list of closed segments.
func (r *recovery) closed() {
	l := r.l
	indexed := map[string]bool{}
	for _, name := range r.indexes {
		c, first, _, _ := parseName(name)
		if r.found[c][first] == "" {
			l.remove(name)
		}
		indexed[name] = true
	}
	for c := range r.found {
		for first, suffix := range r.found[c] {
			s := &segment{class: class(c), first: first, closed: true, packed: suffix == packedSuffix}
			st, err := os.Lstat(l.path(s.file()))
			if err != nil || !st.Mode().IsRegular() {
				l.segments[c] = append(l.segments[c], s)
				r.setAside(s, errNotFile)
				continue
			}
			s.size = st.Size()
			if !s.packed {
				s.text = s.size
			}
			l.segments[c] = append(l.segments[c], s)
			if !indexed[s.index()] || !s.packed && !l.cfg.Policy.Plain {
				r.unfinished = append(r.unfinished, s)
			}
		}
		slices.SortFunc(l.segments[c], func(a, b *segment) int { return cmp.Compare(a.first, b.first) })
		if n := len(l.segments[c]); n > 0 {
			r.lastOf(l.segments[c][n-1])
		}
	}
	slices.SortFunc(r.unfinished, func(a, b *segment) int { return cmp.Compare(a.first, b.first) })
}

// lastOf finds where a class's closed segments end. The file being written may
// be empty.
func (r *recovery) lastOf(s *segment) {
	r.last = max(r.last, s.first)
	if err := r.l.learn(s); err != nil {
		r.setAside(s, err)
		return
	}
	if s.span.n == 0 {
		r.setAside(s, errUnreadable)
		return
	}
	r.last = max(r.last, s.span.last)
	r.whole = max(r.whole, s.span.last)
}

func (r *recovery) setAside(s *segment, why error) {
	if gap, ok := r.l.takeOut(s, why); ok {
		r.gaps = append(r.gaps, gap)
	}
}

// actives takes up the files that were written, as far as they can be read.
func (r *recovery) actives() {
	var files [classes]*os.File
	var indexes [classes]*index
	for c := range r.active {
		if !r.active[c] {
			continue
		}
		f, x, err := r.open(class(c))
		if err != nil {
			r.bad(class(c), err)
			continue
		}
		defer f.Close()
		files[c], indexes[c] = f, x
		r.whole = max(r.whole, x.whole)
	}
	for c, f := range files {
		if f == nil {
			continue
		}
		if err := r.recover(class(c), f, indexes[c]); err != nil {
			r.bad(class(c), err)
		}
	}
}

// open opens the file of c with the index that was saved of it last.
func (r *recovery) open(c class) (*os.File, *index, error) {
	f, err := openRegular(r.l.path(activeName(c) + textSuffix))
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	x, err := readIndex(r.l.path(activeName(c) + indexSuffix))
	if err != nil || !x.fits(f, st.Size()) {
		x = &index{}
	}
	return f, x, nil
}

// recover reads what was written to the file of c since x was saved, cuts off a
// torn line, and takes the file up as the one that is written.
func (r *recovery) recover(c class, f *os.File, x *index) error {
	l := r.l
	st, err := f.Stat()
	if err != nil {
		return err
	}
	from := x.textLen
	end, err := scan(io.NewSectionReader(f, from, st.Size()-from), from, func(k block, text []byte) error {
		x.blocks = append(x.blocks, k)
		for line := range bytes.Lines(text) {
			if h, ok := parseHead(bytes.TrimSuffix(line, []byte{'\n'})); ok {
				r.see(h.seq)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	sp := x.span()
	r.last = max(r.last, sp.last)
	if end < st.Size() {
		r.cut(c, f, end, st.Size(), sp.last)
	}
	if end == 0 {
		return nil
	}
	if sp.n == 0 {
		return errUnreadable
	}
	if n := len(l.segments[c]); n > 0 && l.segments[c][n-1].covers().last >= sp.first {
		return errors.New("its records are numbered as those of an earlier file")
	}
	s := &segment{class: c, first: sp.first, text: end, blocks: x.blocks}
	l.segments[c] = append(l.segments[c], s)
	l.files[c] = activeFile{seg: s, size: end, stale: end > from}
	return nil
}

// maxSeen bounds what see remembers: more than a delivery has there is only
// where an index was lost.
const maxSeen = 1 << 26

// see remembers that a sequence number is there.
func (r *recovery) see(seq uint64) {
	if seq <= r.whole || seq-r.whole > maxSeen {
		return
	}
	i := seq - r.whole - 1
	for uint64(len(r.seen)) <= i/64 {
		r.seen = append(r.seen, 0)
	}
	r.seen[i/64] |= 1 << (i % 64)
}

// holes finds records that a crash has kept from one file while later ones were
// already in another: see deliver. Of which type they were nobody knows.
func (r *recovery) holes() {
	if r.last <= r.whole || r.last-r.whole > maxSeen {
		return
	}
	gap := event.Event{Type: event.Gap, Reason: "torn by a crash"}
	for i := range r.last - r.whole {
		if int(i/64) < len(r.seen) && r.seen[i/64]>>(i%64)&1 != 0 {
			continue
		}
		gap.Lost++
		gap.Through = r.whole + 1 + i
		if gap.From == 0 {
			gap.From = gap.Through
		}
	}
	if gap.Lost > 0 {
		r.gaps = append(r.gaps, gap)
	}
}

// fits reports whether x is the index of what f, of the given size, begins with.
func (x *index) fits(f io.ReaderAt, size int64) bool {
	if x.textLen > size || x.packed != 0 {
		return false
	}
	if len(x.blocks) == 0 {
		return x.textLen == 0
	}
	k := x.blocks[len(x.blocks)-1]
	text := make([]byte, k.len)
	if _, err := f.ReadAt(text, k.off); err != nil || text[len(text)-1] != '\n' {
		return false
	}
	var sp span
	spanOf(text, &sp)
	return sp == k.span
}

// cut takes a torn line off the end of a file.
func (r *recovery) cut(c class, f *os.File, end, size int64, last uint64) {
	gap := event.Event{Type: event.Gap, Source: source[c], Lost: 1, Reason: "torn by a crash"}
	b := make([]byte, min(size-end, 256))
	if _, err := f.ReadAt(b, end); err == nil {
		// As if it were whole, so that its head can be read.
		if h, ok := parseHead(append(b, ",}"...)); ok && h.seq > last {
			r.last = max(r.last, h.seq)
			r.see(h.seq)
			gap.From, gap.Through = h.seq, h.seq
			if h.typ != event.Gap {
				gap.Source = h.typ
			}
		}
	}
	if err := os.Truncate(f.Name(), end); err != nil {
		r.l.log.Warn("a torn line cannot be cut off the event log", "file", f.Name(), "error", err)
	}
	r.gaps = append(r.gaps, gap)
}

// bad sets the file of c aside.
func (r *recovery) bad(c class, why error) {
	name := r.l.path(activeName(c) + textSuffix)
	if err := os.Rename(name, name+badSuffix); err != nil {
		why = errors.Join(why, err)
	}
	r.l.log.Error("a file of the event log cannot be read and is set aside", "file", name+badSuffix, "error", why)
	r.gaps = append(r.gaps, event.Event{Type: event.Gap, Source: source[c], Lost: -1, Reason: "unreadable"})
}

// base finds where the log begins, before which nothing is missing.
func (r *recovery) base() {
	b, _ := readSmall(r.l.path(bootFile)) // without it, at the beginning
	r.said = strings.Fields(string(b))
	if len(r.said) < 3 {
		return
	}
	if n, err := strconv.ParseUint(r.said[2], 10, 63); err == nil {
		r.l.base, r.whole, r.last = n, n, n
	}
}

// boot finds where this boot of the host begins in the log.
func (r *recovery) boot() {
	l := r.l
	l.bootSeq, l.bootNew = r.last+1, true
	if len(r.said) < 2 || r.said[0] != bootID() {
		return
	}
	if n, err := strconv.ParseUint(r.said[1], 10, 63); err == nil && n <= r.last+1 {
		l.bootSeq, l.bootNew = n, false
	}
}

// readSmall reads the first bytes of a regular file.
func readSmall(name string) ([]byte, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 256))
}
