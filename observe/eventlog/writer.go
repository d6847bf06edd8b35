package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/atomicfile"
	"glasshouse/observe/event"
)

// An activeFile is the file of a class that is being written. Only the writer uses it.
type activeFile struct {
	file  *os.File
	seg   *segment // nil before the first record
	size  int64    // size of the complete records in it
	dirty bool     // written since it was last synced
	stale bool     // written since its index was last saved
}

// write is the writer's goroutine. It collects the appended records, writes them to the files,
// and publishes the new end of the log. It exits after idleTimeout without records; the next
// Append starts another.
func (l *Log) write() {
	timer := time.NewTimer(idleTimeout)
	defer timer.Stop()
	// sleep returns false after d, or true as soon as the writer is woken.
	sleep := func(d time.Duration) bool {
		timer.Reset(d)
		select {
		case <-l.wake:
			return true
		case <-timer.C:
			return false
		}
	}
	second := l.cfg.Policy.Fsync == "second"
	synced := time.Now()
	for {
		l.mu.Lock()
		select { // the state is examined below, so discard a pending wake-up
		case <-l.wake:
		default:
		}
		pending, now, closed := l.pending > 0, l.flushNow || l.closed, l.closed
		if !pending && closed && !l.hasUnreportedLoss() {
			l.mu.Unlock()
			l.closeIdle()
			l.mu.Lock()
			l.writing, l.enc = false, nil
			l.notifyProgress()
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()

		if !pending && !closed {
			d := idleTimeout
			if second && l.dirty() {
				d = time.Until(synced.Add(time.Second))
			}
			if sleep(d) {
				continue
			}
			if second && l.dirty() {
				l.sync()
				synced = time.Now()
				continue
			}
			// Files are closed first: after tryStop, another writer may start, and only one may
			// use them.
			l.closeIdle()
			if l.tryStop() {
				return
			}
			continue
		}
		if !now {
			sleep(flushDelay)
		}
		l.writePending()
		if second && time.Since(synced) >= time.Second {
			l.sync()
			synced = time.Now()
		}
	}
}

// hasUnreportedLoss reports whether losses are not yet reported in a gap. l.mu must be held.
func (l *Log) hasUnreportedLoss() bool { return l.unreported != counts{} || l.dropping }

// tryStop marks the writer as stopped if no records are pending.
func (l *Log) tryStop() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending > 0 || l.closed {
		return false
	}
	l.writing, l.enc = false, nil
	return true
}

// notifyProgress wakes the callers of Flush. l.mu must be held.
func (l *Log) notifyProgress() {
	if l.progress != nil {
		close(l.progress)
		l.progress = nil
	}
}

// writePending writes all records that were appended so far. One batch is written completely
// before any later record, so a crash can only lose records of the last batch.
func (l *Log) writePending() {
	l.mu.Lock()
	cut := l.full
	l.full = [classes][]*chunk{}
	for c, k := range l.chunks {
		if k != nil {
			cut[c] = append(cut[c], k)
			l.chunks[c] = nil
		}
	}
	upto, orphans := l.seq, l.orphans
	l.pending, l.flushNow, l.orphans = 0, false, nil
	l.mu.Unlock()

	complete := true
	for c, chunks := range cut {
		if left, err := l.writeChunks(class(c), chunks); len(left) > 0 {
			l.discard(class(c), left, err)
			complete = false
		}
	}
	if complete {
		for _, name := range orphans {
			l.remove(name)
		}
		l.publish(upto)
	}
	l.mu.Lock()
	if l.hasUnreportedLoss() {
		l.appendLossGaps()
	}
	l.notifyProgress()
	l.mu.Unlock()
	l.wakeTails()
}

// publish makes the written records visible to readers.
func (l *Log) publish(upto uint64) {
	l.disk.Lock()
	defer l.disk.Unlock()
	// Readers load written without a lock and then expect all records up to it, so the text of
	// every file is published before written.
	for c := range l.files {
		if a := &l.files[c]; a.seg != nil {
			a.seg.text = a.size
		}
	}
	l.written.Store(upto)
}

// release returns the buffer space of chunks.
func (l *Log) release(chunks []*chunk) {
	n := 0
	for _, k := range chunks {
		n += len(k.text)
		k.free()
	}
	l.mu.Lock()
	l.buffered -= n
	if l.buffered <= maxBuffered/2 && !l.dropping {
		l.pressure.Store(false)
	}
	l.mu.Unlock()
}

// maxGather is the number of chunks that one pwritev(2) call writes. The page cache accepts a
// megabyte in one call at lower cost than the same in small pieces.
const maxGather = 8

// writeChunks appends chunks to the file of c and retries until the disk accepts them. If the
// log is closed and the disk still does not accept them, it returns the remaining chunks and
// the reason.
func (l *Log) writeChunks(c class, chunks []*chunk) (left []*chunk, err error) {
	// rotate makes the published text the size of the closed file. So a file can be closed only
	// before the first record of a batch is written to it.
	mayRotate := true
	try := func() error {
		n, err := l.tryWrite(c, chunks[:min(len(chunks), maxGather)], mayRotate)
		if n > 0 {
			l.release(chunks[:n])
			chunks, mayRotate = chunks[n:], false
		}
		l.setWriteError(err)
		return err
	}
	const first = 50 * time.Millisecond
	for wait := first; len(chunks) > 0; {
		if try() == nil {
			wait = first
			continue
		}
		select {
		case <-l.quit:
			// Try a last time: disk space may have been freed during the wait.
			if err := try(); err != nil {
				return chunks, err
			}
		case <-time.After(wait):
			wait = min(2*wait, 5*time.Second)
		}
	}
	return nil, nil
}

// setWriteError records why writes fail, or with nil that they succeed again.
func (l *Log) setWriteError(err error) {
	if err == nil && l.err == "" {
		return // only the writer sets l.err, so reading it needs no lock
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.err = ""
		l.log.Info("event log writes succeed again")
	case l.err == "":
		l.log.Error("cannot write the event log; records are buffered, and dropped when the buffer is full", "error", err)
		fallthrough
	default:
		l.err = err.Error()
	}
}

// tryWrite writes the remaining text of chunks, and returns how many chunks are complete. A
// partly written chunk remembers its progress, so nothing is written twice and no torn line
// remains.
func (l *Log) tryWrite(c class, chunks []*chunk, mayRotate bool) (int, error) {
	a := &l.files[c]
	if mayRotate && chunks[0].done == 0 && a.seg != nil && a.size >= l.segment {
		if err := l.rotate(c); err != nil {
			return 0, err
		}
	}
	if a.file == nil {
		if err := l.openActive(c, chunks[0]); err != nil {
			return 0, err
		}
	}
	a.dirty = true
	n, err := writeTo(a.file, a.size, chunks)
	if n > 0 {
		l.commit(c, chunks[:n])
	}
	if err != nil {
		a.file.Close() // the descriptor itself may be the cause, so reopen the file
		a.file = nil
		return n, fmt.Errorf("write %s: %w", activeName(c), err)
	}
	return n, nil
}

// writeTo writes the remaining text of chunks to f, where the first chunk begins at off, and
// returns how many chunks are complete. It does not use File.WriteAt, which does not report
// the bytes that a full disk accepted before the error.
func writeTo(f *os.File, off int64, chunks []*chunk) (int, error) {
	var parts [maxGather][]byte
	for n := 0; n < len(chunks); {
		for i, k := range chunks[n:] {
			parts[i] = k.text[k.done:]
		}
		took, err := unix.Pwritev(int(f.Fd()), parts[:len(chunks)-n], off+int64(chunks[n].done))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, err
		}
		// A disk that becomes full accepts a part of the bytes; the next call fails (write(2)).
		for ; n < len(chunks); n++ {
			k := chunks[n]
			part := min(took, len(k.text)-k.done)
			k.done += part
			took -= part
			if k.done < len(k.text) {
				break
			}
			off += int64(len(k.text))
		}
	}
	return len(chunks), nil
}

// commit adds chunks to the index of the file of c.
func (l *Log) commit(c class, chunks []*chunk) {
	a := &l.files[c]
	l.disk.Lock()
	defer l.disk.Unlock()
	if a.seg == nil {
		a.seg = &segment{class: c, first: chunks[0].first}
		l.segments[c] = append(l.segments[c], a.seg)
	}
	for _, k := range chunks {
		a.seg.grow(a.size, k)
		a.size += int64(len(k.text))
	}
	a.stale = true
}

// grow adds k, which is at offset off, to the blocks of s. segmentList.disk must be held.
func (s *segment) grow(off int64, k *chunk) {
	if n := len(s.blocks); n > 0 && s.blocks[n-1].len+int64(len(k.text)) <= blockSize {
		s.blocks[n-1].join(k.span)
		s.blocks[n-1].len += int64(len(k.text))
		return
	}
	s.blocks = append(s.blocks, block{span: k.span, off: off, len: int64(len(k.text))})
}

// openActive opens the file of a class. For the first record it creates the log's directory.
// It does not create the parent directory, which belongs to the jail: if that was removed, the
// log must not recreate it.
func (l *Log) openActive(c class, k *chunk) error {
	if l.bootNew {
		// The boot file precedes the records. After a crash, Open learns from it which records
		// have times of this boot's clock, and that the numbers up to base belong to another
		// log.
		if err := l.mkdir(); err != nil {
			return err
		}
		if err := atomicfile.Write(l.path(bootFile), l.bootLine(), 0o600); err != nil {
			return fmt.Errorf("write boot file: %w", err)
		}
		l.bootNew = false
	}
	name := l.path(activeName(c) + textSuffix)
	// No O_APPEND: with it, Linux ignores the offset of a write (pwrite(2), Bugs). O_NONBLOCK
	// makes open(2) fail with ENXIO if the name is a FIFO without a reader, instead of blocking.
	const flags = os.O_WRONLY | os.O_CREATE | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(name, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := l.mkdir(); err != nil {
			return err
		}
		f, err = os.OpenFile(name, flags, 0o600)
	}
	if err != nil {
		return err
	}
	a := &l.files[c]
	st, err := f.Stat()
	if err == nil && st.Size() < a.size+int64(k.done) {
		l.log.Error("an event log file was truncated or removed by another process", "file", name)
		l.reportRemoved(c)
		k.done = 0
	}
	// The excess belongs to no chunk: for example a torn line that Open could not truncate.
	if err == nil && st.Size() > a.size+int64(k.done) {
		err = f.Truncate(a.size + int64(k.done))
	}
	if err != nil {
		f.Close()
		return err
	}
	a.file = f
	return nil
}

// mkdir creates the log's directory.
func (l *Log) mkdir() error {
	if err := os.Mkdir(l.cfg.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// reportRemoved appends a gap for the records of the removed file of c.
func (l *Log) reportRemoved(c class) {
	a := &l.files[c]
	l.disk.Lock()
	gap := event.Event{Type: event.Gap, Source: source[c], Lost: -1, Reason: "the file was removed"}
	if a.seg != nil {
		sp := a.seg.covers()
		gap.Lost, gap.From, gap.Through = sp.n, sp.first, sp.last
		l.unlist(a.seg)
	}
	l.disk.Unlock()
	*a = activeFile{}
	l.appendGap(&gap)
}

// rotate closes the file of c. The next record starts a new file.
func (l *Log) rotate(c class) error {
	a := &l.files[c]
	if a.file != nil {
		if l.cfg.Policy.Fsync == "second" || l.cfg.Policy.Fsync == "segment" {
			if err := a.file.Sync(); err != nil {
				return fmt.Errorf("sync %s: %w", activeName(c), err)
			}
		}
		a.file.Close()
		a.file = nil
	}
	s := a.seg
	l.disk.Lock()
	err := os.Rename(l.path(activeName(c)+textSuffix), l.path(closedName(c, s.first)+textSuffix))
	if err == nil {
		s.closed, s.size = true, s.text
	}
	l.disk.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		l.reportRemoved(c)
		return nil
	}
	if err != nil {
		return err
	}
	*a = activeFile{}
	// The next file gets the active name. An empty index replaces that of the closed file.
	l.saveIndex(c)
	packing.add(l, s)
	return nil
}

// saveIndex writes the index of the file of c, so that the next Open does not have to read the
// file. A failure is not reported: Open then reads the file.
func (l *Log) saveIndex(c class) {
	a := &l.files[c]
	l.disk.Lock()
	x := &index{complete: l.written.Load(), textLen: a.size}
	if a.seg != nil {
		x.blocks = append(x.blocks, a.seg.blocks...)
	}
	l.disk.Unlock()
	if err := x.write(l.path(activeName(c) + indexSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Debug("cannot save an event log index", "error", err)
	}
	a.stale = false
}

// dirty reports whether a file was written since the last fsync.
func (l *Log) dirty() bool {
	for c := range l.files {
		if l.files[c].dirty && l.files[c].file != nil {
			return true
		}
	}
	return false
}

func (l *Log) sync() {
	for c := range l.files {
		a := &l.files[c]
		if !a.dirty || a.file == nil {
			continue
		}
		a.dirty = false
		if err := a.file.Sync(); err != nil {
			l.reportSyncError(fmt.Errorf("sync %s: %w", activeName(class(c)), err))
		}
	}
}

// reportSyncError records that records may not survive a power failure. That stays true when
// later writes and fsyncs succeed: the kernel reports a failed writeback once and may then have
// dropped the pages (fsync(2), Notes).
func (l *Log) reportSyncError(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.syncErr == "" {
		l.log.Error("cannot sync the event log; its records may not survive a power failure", "error", err)
	}
	l.syncErr = err.Error()
}

// closeIdle closes the files of an idle log and saves their indexes.
func (l *Log) closeIdle() {
	if l.cfg.Policy.Fsync == "second" {
		l.sync()
	}
	for c := range l.files {
		a := &l.files[c]
		if a.file != nil {
			a.file.Close()
			a.file, a.dirty = nil, false
		}
		if a.stale {
			l.saveIndex(class(c))
		}
	}
}

// discard drops chunks of c that the disk rejected with err. The complete lines of a partly
// written chunk are kept.
func (l *Log) discard(c class, chunks []*chunk, err error) {
	for _, k := range chunks {
		n, size := k.n, len(k.text)
		k.text, k.span = k.text[:bytes.LastIndexByte(k.text[:k.done], '\n')+1], span{}
		spanOf(k.text, &k.span)
		if k.n > 0 {
			l.commit(c, []*chunk{k})
		}
		l.mu.Lock()
		l.lost[source[c]] += n - k.n
		l.buffered -= size
		l.err = err.Error() // another class may have been written since
		l.mu.Unlock()
		k.free()
	}
	if l.files[c].size > 0 {
		os.Truncate(l.path(activeName(c)+textSuffix), l.files[c].size) // if this fails, Open truncates the file
	}
}
