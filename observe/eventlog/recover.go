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

	"glasshouse/internal/procstat"
	"glasshouse/observe/event"
)

// bootFile holds the boot ID of the host and the first sequence number of this boot. It is
// needed because each boot restarts the monotonic clock. If the log does not begin with number
// 1, the file also holds the number before the first record.
const bootFile = "boot"

func bootID() string {
	boot, err := procstat.BootID()
	if err != nil {
		return "unknown"
	}
	return boot
}

func (l *Log) bootLine() []byte {
	if l.base > 0 {
		return fmt.Appendf(nil, "%s %d %d\n", bootID(), l.bootSeq, l.base)
	}
	return fmt.Appendf(nil, "%s %d\n", bootID(), l.bootSeq)
}

// Open reads the files of an earlier log in the directory and continues after its last record.
// It truncates a line that a crash has torn, reports missing records in a gap, and quarantines
// unreadable files. No content of the directory makes Open fail. A missing directory is an
// empty log.
//
// A log that was closed, or idle when the daemon died, is opened without reading its records.
func (l *Log) Open() error {
	names, err := os.ReadDir(l.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open event log: %w", err)
	}
	r := recovery{l: l}
	// The steps up to listClosed determine complete, from which recoverActive counts the numbers
	// that it sees. findMissing and findBoot need the last number of all files.
	r.readBase()
	for _, e := range names {
		r.classify(e.Name())
	}
	r.listClosed()
	r.recoverActive()
	r.findMissing()
	r.findBoot()
	r.findCrash()

	l.mu.Lock()
	l.seq = r.last
	l.written.Store(l.seq)
	l.open = true
	l.mu.Unlock()
	// A log that is not open would drop the gaps.
	for i := range r.gaps {
		l.appendGap(&r.gaps[i])
	}
	for i := range r.dropped {
		l.reportDropped(&r.dropped[i].gap, r.dropped[i].index)
	}
	for _, s := range r.unfinished {
		packing.add(l, s)
	}
	if p := l.cfg.Policy; len(l.list()) > 0 && (p.KeepMB > 0 || p.KeepAge > 0) {
		packing.add(l, nil)
	}
	return nil
}

// A recovery is the state of one call of Open.
type recovery struct {
	l          *Log
	active     [classes]bool
	found      [classes]map[uint64]string // suffix of the closed file, by first record
	indexes    []string
	unfinished []*segment

	bootFields []string // fields of the boot file
	complete   uint64   // no record up to here is missing
	last       uint64   // the largest sequence number found
	seen       []uint64 // one bit for each sequence number after complete
	gaps       []event.Event
	dropped    []dropped
	rebooted   bool // the log has no record of this boot of the host
	unclean    bool // the files may have had further records
}

// A dropped segment was removed from the log, and its gap is not yet written: see
// Log.reportDropped.
type dropped struct {
	gap   event.Event
	index string
}

// classify handles one name in the directory. It ignores unknown names, which belong to other
// programs.
func (r *recovery) classify(name string) {
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
	default: // compression was interrupted, and the plain file is complete
		r.l.remove(closedName(c, first) + packedSuffix)
		r.found[c][first] = textSuffix
	}
}

// listClosed builds the list of closed segments.
func (r *recovery) listClosed() {
	l := r.l
	indexed := map[string]bool{}
	for _, name := range r.indexes {
		c, first, _, _ := parseName(name)
		if r.found[c][first] == "" {
			r.reportOrphan(c, first, name)
			continue
		}
		indexed[name] = true
	}
	for c := range r.found {
		for first, suffix := range r.found[c] {
			s := &segment{class: class(c), first: first, closed: true, packed: suffix == packedSuffix}
			st, err := os.Lstat(l.path(s.file()))
			if err != nil || !st.Mode().IsRegular() {
				l.segments[c] = append(l.segments[c], s)
				r.quarantine(s, errNotFile)
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
			r.findLast(l.segments[c][n-1])
		}
	}
	slices.SortFunc(r.unfinished, func(a, b *segment) int { return cmp.Compare(a.first, b.first) })
}

// reportOrphan reports the segment of an index that has no file: see Log.reportDropped.
func (r *recovery) reportOrphan(c class, first uint64, name string) {
	l := r.l
	x, sp, err := readHeader(l.path(name))
	if err != nil || sp.n == 0 || sp.first != first {
		l.remove(name)
		return
	}
	reason := "retention"
	for _, suffix := range []string{textSuffix, packedSuffix} {
		if _, err := os.Lstat(l.path(closedName(c, first) + suffix + badSuffix)); err == nil {
			reason = "unreadable"
		}
	}
	s := &segment{class: c, first: first}
	s.setHeader(x, sp)
	r.dropped = append(r.dropped, dropped{s.lossGap(reason), name})
	r.last, r.complete = max(r.last, sp.last), max(r.complete, sp.last)
}

// findLast determines the last record of the closed segments of a class from the newest one.
// It is needed because the file being written may be empty.
func (r *recovery) findLast(s *segment) {
	r.last = max(r.last, s.first)
	if err := r.l.loadSpan(s); err != nil {
		r.quarantine(s, err)
		return
	}
	if s.span.n == 0 {
		r.quarantine(s, errUnreadable)
		return
	}
	r.last = max(r.last, s.span.last)
	// A file is closed between two batches, so all records up to its last one were in the files:
	// see writeChunks.
	r.complete = max(r.complete, s.span.last)
}

func (r *recovery) quarantine(s *segment, why error) {
	if gap, ok := r.l.quarantineFile(s, why); ok {
		r.dropped = append(r.dropped, dropped{gap, s.index()})
	}
}

// recoverActive recovers the files that were being written, as far as they are readable.
func (r *recovery) recoverActive() {
	var files [classes]*os.File
	var indexes [classes]*index
	for c := range r.active {
		if !r.active[c] {
			continue
		}
		f, x, err := r.open(class(c))
		if err != nil {
			r.quarantineActive(class(c), err)
			continue
		}
		defer f.Close()
		files[c], indexes[c] = f, x
		r.complete = max(r.complete, x.complete)
	}
	// markSeen counts from complete, so all indexes are read before the first record.
	for c, f := range files {
		if f == nil {
			continue
		}
		if err := r.recover(class(c), f, indexes[c]); err != nil {
			r.quarantineActive(class(c), err)
		}
	}
}

// open opens the active file of c and reads the index that was last saved for it.
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
	if err != nil || !x.matchesFile(f, st.Size()) {
		x, r.unclean = &index{}, true
	}
	if x.textLen < st.Size() {
		r.unclean = true
	}
	return f, x, nil
}

// recover reads the records that were written to the file of c since x was saved, truncates a
// torn line, and continues the file as the active one.
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
				r.markSeen(h.seq)
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
		return errors.New("sequence numbers overlap with an earlier file")
	}
	s := &segment{class: c, first: sp.first, text: end, blocks: x.blocks}
	l.segments[c] = append(l.segments[c], s)
	l.files[c] = activeFile{seg: s, size: end, stale: end > from}
	return nil
}

// maxSeen bounds the memory of markSeen. Only after the loss of an index are there more
// records than one batch of the writer.
const maxSeen = 1 << 26

// markSeen records that a sequence number exists.
func (r *recovery) markSeen(seq uint64) {
	if seq <= r.complete || seq-r.complete > maxSeen {
		return
	}
	i := seq - r.complete - 1
	for uint64(len(r.seen)) <= i/64 {
		r.seen = append(r.seen, 0)
	}
	r.seen[i/64] |= 1 << (i % 64)
}

// findMissing finds records that a crash kept from one file while later records had reached
// another file: see writePending. Their type is unknown.
func (r *recovery) findMissing() {
	if r.last <= r.complete || r.last-r.complete > maxSeen {
		return
	}
	gap := event.Event{Type: event.Gap, Reason: "torn by a crash"}
	for i := range r.last - r.complete {
		if int(i/64) < len(r.seen) && r.seen[i/64]>>(i%64)&1 != 0 {
			continue
		}
		gap.Lost++
		gap.Through = r.complete + 1 + i
		if gap.From == 0 {
			gap.From = gap.Through
		}
	}
	if gap.Lost > 0 {
		r.gaps = append(r.gaps, gap)
	}
}

// matchesFile reports whether x is the index of a prefix of f, which has the given size.
func (x *index) matchesFile(f io.ReaderAt, size int64) bool {
	if x.textLen > size || x.packed != 0 {
		return false
	}
	if len(x.blocks) == 0 {
		return x.textLen == 0
	}
	// The length proves nothing: if the daemon was killed in rotate, the index is of the closed
	// file, and another file has its name. The last block then has other records.
	k := x.blocks[len(x.blocks)-1]
	text := make([]byte, k.len)
	if _, err := f.ReadAt(text, k.off); err != nil || text[len(text)-1] != '\n' {
		return false
	}
	var sp span
	spanOf(text, &sp)
	return sp == k.span
}

// cut truncates a torn line at the end of a file and reports it in a gap.
func (r *recovery) cut(c class, f *os.File, end, size int64, last uint64) {
	gap := event.Event{Type: event.Gap, Source: source[c], Lost: 1, Reason: "torn by a crash"}
	b := make([]byte, min(size-end, 256))
	if _, err := f.ReadAt(b, end); err == nil {
		// Complete the line, so that parseHead accepts it.
		if h, ok := parseHead(append(b, ",}"...)); ok && h.seq > last {
			// This gap reports the record, so findMissing must not report it again.
			r.last = max(r.last, h.seq)
			r.markSeen(h.seq)
			gap.From, gap.Through = h.seq, h.seq
			if h.typ != event.Gap {
				gap.Source = h.typ
			}
		}
	}
	if err := os.Truncate(f.Name(), end); err != nil {
		r.l.log.Warn("cannot truncate a torn line of the event log", "file", f.Name(), "error", err)
	}
	r.gaps = append(r.gaps, gap)
}

// quarantineActive renames the active file of c and reports it in a gap.
func (r *recovery) quarantineActive(c class, why error) {
	name := r.l.path(activeName(c) + textSuffix)
	if err := os.Rename(name, name+badSuffix); err != nil {
		why = errors.Join(why, err)
	}
	r.l.log.Error("quarantined an unreadable event log file", "file", name+badSuffix, "error", why)
	r.gaps = append(r.gaps, event.Event{Type: event.Gap, Source: source[c], Lost: -1, Reason: "unreadable"})
}

// readBase reads the number before the first record from the boot file.
func (r *recovery) readBase() {
	b, _ := readSmall(r.l.path(bootFile)) // without the file the log begins with 1
	r.bootFields = strings.Fields(string(b))
	if len(r.bootFields) < 3 {
		return
	}
	if n, err := strconv.ParseUint(r.bootFields[2], 10, 63); err == nil {
		r.l.base, r.complete, r.last = n, n, n
	}
}

// findBoot determines the first sequence number of the current boot of the host.
func (r *recovery) findBoot() {
	l := r.l
	l.bootSeq, l.bootNew, r.rebooted = r.last+1, true, len(r.bootFields) > 0
	if len(r.bootFields) < 2 || r.bootFields[0] != bootID() {
		return
	}
	if n, err := strconv.ParseUint(r.bootFields[1], 10, 63); err == nil && n <= r.last+1 {
		l.bootSeq, l.bootNew, r.rebooted = n, false, false
	}
}

// findCrash reports that the log was not closed before the host was started again. The files
// survive the end of the daemon completely, but not a power failure: the last pages of each file
// may be missing, without a trace in the others.
func (r *recovery) findCrash() {
	if r.rebooted && (r.unclean || len(r.l.list()) == 0) {
		r.gaps = append(r.gaps, event.Event{Type: event.Gap, Lost: -1, Reason: "the host ended without the daemon"})
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
