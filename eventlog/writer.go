package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/event"
	"glasshouse/internal/atomicfile"
)

// An activeFile is a file that is written. It belongs to the writer.
type activeFile struct {
	file  *os.File
	seg   *segment // nil before the first record
	size  int64    // of whole records in it
	dirty bool     // written since it was last synced
	stale bool     // written since its index was last saved
}

// write is the writer. It takes all that was appended, puts it into the files,
// and says that it is there; then it takes what came meanwhile. It ends when
// nothing has come for a while, and the next Append begins another.
func (l *Log) write() {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	// sleep returns false after d, true if something happened before.
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
		select { // what it says is looked at now
		case <-l.wake:
		default:
		}
		pending, now, closed := l.pending > 0, l.urgent || l.closed, l.closed
		if !pending && closed && !l.owes() {
			l.mu.Unlock()
			l.rest()
			l.mu.Lock()
			l.writing, l.enc = false, nil
			l.stopWaiting()
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()

		if !pending && !closed {
			d := linger
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
			l.rest()
			if l.retire() {
				return
			}
			continue
		}
		if !now {
			sleep(delay)
		}
		l.deliver()
		if second && time.Since(synced) >= time.Second {
			l.sync()
			synced = time.Now()
		}
	}
}

// owes reports whether there are losses to tell of. l.mu must be held.
func (l *Log) owes() bool { return l.owed != counts{} || l.losing }

// retire ends the writer if there is nothing to do.
func (l *Log) retire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending > 0 || l.closed {
		return false
	}
	l.writing, l.enc = false, nil
	return true
}

// stopWaiting lets go those that wait for something to be written. l.mu must be
// held.
func (l *Log) stopWaiting() {
	if l.progress != nil {
		close(l.progress)
		l.progress = nil
	}
}

// deliver writes all that was appended until now. What is appended in one go is
// written as a whole before anything later is, so that a crash can only have
// left out records of the last delivery.
func (l *Log) deliver() {
	l.mu.Lock()
	cut := l.full
	l.full = [classes][]*chunk{}
	for c, k := range l.chunks {
		if k != nil {
			cut[c] = append(cut[c], k)
			l.chunks[c] = nil
		}
	}
	upto := l.seq
	l.pending, l.urgent = 0, false
	l.mu.Unlock()

	whole := true
	for c, chunks := range cut {
		if left, err := l.put(class(c), chunks); len(left) > 0 {
			l.abandon(class(c), left, err)
			whole = false
		}
	}
	if whole {
		l.publish(upto)
	}
	l.mu.Lock()
	if l.owes() {
		l.sayLost()
	}
	l.stopWaiting()
	l.mu.Unlock()
	l.tellTails()
}

// publish shows readers what was written.
func (l *Log) publish(upto uint64) {
	l.disk.Lock()
	defer l.disk.Unlock()
	for c := range l.files {
		if a := &l.files[c]; a.seg != nil {
			a.seg.text = a.size
		}
	}
	l.written.Store(upto)
}

// release gives back the room that chunks took.
func (l *Log) release(chunks []*chunk) {
	n := 0
	for _, k := range chunks {
		n += len(k.text)
		k.free()
	}
	l.mu.Lock()
	l.buffered -= n
	if l.buffered <= hold/2 && !l.losing {
		l.tight.Store(false)
	}
	l.mu.Unlock()
}

// gather is how many chunks are written at once, if there are so many. The page
// cache takes a megabyte at once for less than the same in small pieces.
const gather = 8

// put writes chunks at the end of their file, trying again for as long as the
// disk does not take them. It returns those that are left when the log is closed
// and the disk still does not, with the reason.
func (l *Log) put(c class, chunks []*chunk) (left []*chunk, err error) {
	mayRotate := true
	try := func() error {
		n, err := l.try(c, chunks[:min(len(chunks), gather)], mayRotate)
		if n > 0 {
			l.release(chunks[:n])
			chunks, mayRotate = chunks[n:], false
		}
		l.trouble(err)
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
			// Once more, for the disk may have been freed while we waited.
			if err := try(); err != nil {
				return chunks, err
			}
		case <-time.After(wait):
			wait = min(2*wait, 5*time.Second)
		}
	}
	return nil, nil
}

// trouble remembers why nothing can be written, or that it can.
func (l *Log) trouble(err error) {
	if err == nil && l.err == "" {
		return // nobody but the writer sets it
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.err = ""
		l.log.Info("the event log is written again")
	case l.err == "":
		l.log.Error("the event log cannot be written; records wait, and are counted when too many do", "error", err)
		fallthrough
	default:
		l.err = err.Error()
	}
}

// try writes what is left of chunks, and returns how many of them are written.
// How much the disk took of the next one is remembered in it, so that nothing is
// written twice and no line stays torn.
func (l *Log) try(c class, chunks []*chunk, mayRotate bool) (int, error) {
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
		a.file.Close() // it may be the descriptor that is at fault
		a.file = nil
		return n, fmt.Errorf("write %s: %w", activeName(c), err)
	}
	return n, nil
}

// writeTo writes what is left of chunks to f, in which the first begins at off,
// and returns how many of them are written. It is not File.WriteAt, which does
// not count what a full disk took in part.
func writeTo(f *os.File, off int64, chunks []*chunk) (int, error) {
	var parts [gather][]byte
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

// commit remembers that chunks are in the file of c.
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

// grow adds k, which lies at off, to the blocks of s. Log.disk must be held.
func (s *segment) grow(off int64, k *chunk) {
	if n := len(s.blocks); n > 0 && s.blocks[n-1].len+int64(len(k.text)) <= blockSize {
		s.blocks[n-1].join(k.span)
		s.blocks[n-1].len += int64(len(k.text))
		return
	}
	s.blocks = append(s.blocks, block{span: k.span, off: off, len: int64(len(k.text))})
}

// openActive opens the file of a class, and makes the log's directory if this is
// its first record. The directory above is the jail's: if that is gone, it is not
// for the log to bring it back.
func (l *Log) openActive(c class, k *chunk) error {
	if l.bootNew {
		if err := l.mkdir(); err != nil {
			return err
		}
		if err := atomicfile.Write(l.path(bootFile), l.bootLine(), 0o600); err != nil {
			return fmt.Errorf("note where this boot begins: %w", err)
		}
		l.bootNew = false
	}
	name := l.path(activeName(c) + textSuffix)
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
		l.log.Error("a file of the event log was cut or removed by somebody else", "file", name)
		l.vanished(c)
		k.done = 0
	}
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

// mkdir makes the log's directory.
func (l *Log) mkdir() error {
	if err := os.Mkdir(l.cfg.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// vanished says that what was in the file of c is no longer there.
func (l *Log) vanished(c class) {
	a := &l.files[c]
	l.disk.Lock()
	gap := event.Event{Type: event.Gap, Source: source[c], Lost: -1, Reason: "the file was removed"}
	if a.seg != nil {
		sp := a.seg.covers()
		gap.Lost, gap.From, gap.Through = sp.n, sp.first, sp.last
		l.forget(a.seg)
	}
	l.disk.Unlock()
	*a = activeFile{}
	l.say(&gap)
}

// rotate closes the file of c; the next record begins another.
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
		l.vanished(c)
		return nil
	}
	if err != nil {
		return err
	}
	*a = activeFile{}
	l.saveIndex(c)
	packing.add(l, s)
	return nil
}

// saveIndex writes the index of the file of c, so that the next Open need not
// read the file. If that fails it does.
func (l *Log) saveIndex(c class) {
	a := &l.files[c]
	l.disk.Lock()
	x := &index{whole: l.written.Load(), textLen: a.size}
	if a.seg != nil {
		x.blocks = append(x.blocks, a.seg.blocks...)
	}
	l.disk.Unlock()
	if err := x.write(l.path(activeName(c) + indexSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Debug("the index of an event log is not saved", "error", err)
	}
	a.stale = false
}

// dirty reports whether a file was written since the last sync.
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
			l.trouble(fmt.Errorf("sync %s: %w", activeName(class(c)), err))
		}
	}
}

// rest closes the files of a log that is not written for now.
func (l *Log) rest() {
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

// abandon gives up chunks of c that the disk did not take because of err. Of a chunk that
// it took in part, whole lines stay.
func (l *Log) abandon(c class, chunks []*chunk, err error) {
	for _, k := range chunks {
		n, size := k.n, len(k.text)
		k.text, k.span = k.text[:bytes.LastIndexByte(k.text[:k.done], '\n')+1], span{}
		if spanOf(k.text, &k.span); k.n > 0 {
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
		os.Truncate(l.path(activeName(c)+textSuffix), l.files[c].size) // or Open will
	}
}
