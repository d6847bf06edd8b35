package eventlog

import (
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"glasshouse/internal/dirs"
)

// packing finishes the closed segments of all logs of the process, one after
// the other: however many jails there are, one thread compresses.
var packing packer

type packer struct {
	mu    sync.Mutex
	queue []task
	last  time.Time // when a task was added
	busy  bool
}

// A task is a segment to finish, or none to look only for what is too old.
type task struct {
	log *Log
	seg *segment
}

// behind is a queue so long that finishing no longer waits for a calm moment: plain
// segments take the disk instead.
const behind = 32

// calm is how long nothing was closed before compressing begins, unless the
// queue is long: a jail that fills a segment a second is in a hurry, and what
// shares its processors should be no more than its record.
var calm = time.Second // tests do not wait for it

func (p *packer) add(l *Log, s *segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-l.quit:
		return
	default:
	}
	l.wg.Add(1) // not after Close waits: forget takes p.mu between quit and that
	p.queue, p.last = append(p.queue, task{l, s}), time.Now()
	if len(p.queue) >= behind {
		p.begin()
	} else {
		time.AfterFunc(calm, p.beginCalm)
	}
}

// begin works on the queue if nobody does. p.mu must be held.
func (p *packer) begin() {
	if !p.busy && len(p.queue) > 0 {
		p.busy = true
		go p.run()
	}
}

// beginCalm begins if nothing was closed since it was asked for. If something
// was, it will be asked for again.
func (p *packer) beginCalm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) >= calm {
		p.begin()
	}
}

// forget takes the tasks of l from the queue.
func (p *packer) forget(l *Log) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = slices.DeleteFunc(p.queue, func(t task) bool {
		if t.log != l {
			return false
		}
		l.wg.Done()
		return true
	})
}

// run works until the queue is empty. It compresses better while there is time for that.
// Its thread keeps its priority: on a busy host a thread of low priority gets little time,
// and all others of the process wait for what the Go runtime lets it hold meanwhile.
func (p *packer) run() {
	p.mu.Lock()
	calmly := len(p.queue) < behind
	p.mu.Unlock()
	var w *zstd.Encoder
	for {
		p.mu.Lock()
		if len(p.queue) == 0 {
			p.queue, p.busy = nil, false
			p.mu.Unlock()
			return
		}
		if calmly && len(p.queue) >= 2*behind || !calmly && len(p.queue) == 1 {
			calmly, w = !calmly, nil
		}
		if calmly && time.Since(p.last) < calm && len(p.queue) < behind {
			p.busy = false // beginCalm goes on
			p.mu.Unlock()
			return
		}
		t := p.queue[0]
		p.queue = p.queue[1:]
		p.mu.Unlock()
		if w == nil {
			w = newEncoder(calmly)
		}
		t.log.finish(t.seg, w)
		t.log.wg.Done()
	}
}

// newEncoder makes frames as small as pays, if there is time. BenchmarkPack has
// a system call in 33 bytes, or in 38 in half the time; what lies between is no
// smaller than that, and more effort than the first takes four times as long
// for two bytes.
func newEncoder(time bool) *zstd.Encoder {
	level := zstd.SpeedFastest
	if time {
		level = zstd.SpeedBetterCompression
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(level),
		zstd.WithWindowSize(1<<20), zstd.WithEncoderCRC(true))
	if err != nil {
		panic(err) // the options are constants
	}
	return w
}

// unpacker is shared: it has no state but what a call needs.
var unpacker = sync.OnceValue(func() *zstd.Decoder {
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxBlock), zstd.WithDecoderMaxWindow(maxBlock))
	if err != nil {
		panic(err)
	}
	return r
})

var errStopped = errors.New("the log is closed")

// finish hashes, indexes and compresses a closed segment, and drops segments
// that are not to be kept.
func (l *Log) finish(s *segment, w *zstd.Encoder) {
	if s != nil {
		err := l.pack(s, w)
		switch {
		case err == nil:
			l.tellFinished(s)
		case errors.Is(err, errGone), errors.Is(err, errStopped):
		case errors.Is(err, errUnreadable), errors.Is(err, errNotFile), errors.Is(err, unix.EIO):
			l.setAside(s, err)
		default: // a full disk: it stays as it is until the next start
			l.log.Warn("a segment of the event log is not compressed", "error", err)
		}
	}
	l.retain()
}

func (l *Log) tellFinished(s *segment) {
	if l.cfg.Finished == nil {
		return
	}
	// Of a damaged file there is no digest.
	if seg, ok := l.describe(s); ok && seg.SHA256 != "" {
		l.cfg.Finished(seg)
	}
}

// errUnreadable is about the text of a segment, not about what is made of it.
var errUnreadable = errors.New("no record in it can be read")

func (l *Log) pack(s *segment, w *zstd.Encoder) (err error) {
	in, packed, err := l.openSegment(s)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if x, err := readIndex(l.path(s.index())); err == nil && x.hasSum && packed == (x.packed > 0) {
		if packed && x.packed == st.Size() || l.cfg.Policy.Plain && x.textLen == st.Size() {
			l.adopt(s, x)
			return nil // done before
		}
	}
	if packed {
		return l.reindex(s, in, st.Size())
	}
	var out *os.File
	final := l.path(closedName(s.class, s.first) + packedSuffix)
	if !l.cfg.Policy.Plain {
		out, err = os.OpenFile(final+tempSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return orGone(err)
		}
		defer func() {
			out.Close()
			if err != nil {
				os.Remove(out.Name())
			}
		}()
	}
	sum := sha256.New()
	x := &index{hasSum: true, whole: l.written.Load()}
	var frame []byte
	_, err = scan(io.NewSectionReader(in, 0, st.Size()), 0, func(k block, text []byte) error {
		select {
		case <-l.quit:
			return errStopped
		default:
		}
		sum.Write(text)
		if out != nil {
			frame = w.EncodeAll(text, frame[:0])
			if _, err := out.Write(frame); err != nil {
				return orGone(err)
			}
			k.zoff, k.zlen = x.packed, int64(len(frame))
		}
		x.add(k, text)
		return nil
	})
	if err != nil {
		return err
	}
	if x.span().n == 0 {
		return errUnreadable
	}
	sum.Sum(x.sum[:0])

	if out == nil {
		if err := x.write(l.path(s.index())); err != nil {
			return orGone(err)
		}
		l.finished(s, x, false)
		return nil
	}
	// The plain file goes when the other is sure to stay.
	if err := out.Sync(); err != nil {
		return orGone(err)
	}
	if err := os.Rename(out.Name(), final); err != nil {
		return orGone(err)
	}
	if err := x.write(l.path(s.index())); err != nil {
		os.Remove(final)
		return orGone(err)
	}
	if err := dirs.Sync(l.cfg.Dir); err != nil {
		os.Remove(final)
		return orGone(err)
	}
	if l.finished(s, x, true) {
		l.remove(closedName(s.class, s.first) + textSuffix)
	} else {
		os.Remove(final) // retention was faster
		l.remove(s.index())
	}
	return nil
}

// orGone returns errGone if err says that the log's directory was removed.
func orGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errGone
	}
	return err
}

// finished makes what was found out about s known, and whether its file is
// another from now on. It returns false if s is gone.
func (l *Log) finished(s *segment, x *index, packed bool) bool {
	l.disk.Lock()
	defer l.disk.Unlock()
	if s.gone {
		return false
	}
	s.learn(x)
	s.blocks = nil
	if packed {
		s.packed, s.size = true, x.packed
	}
	return true
}

// reindex makes the index of a compressed segment that has none.
func (l *Log) reindex(s *segment, f *os.File, size int64) error {
	x := &index{hasSum: true}
	sum := sha256.New()
	err := scanPacked(f, size, func(k block, text []byte) error {
		select {
		case <-l.quit:
			return errStopped
		default:
		}
		sum.Write(text)
		x.add(k, text)
		return nil
	})
	if err != nil {
		return err
	}
	if x.span().n == 0 {
		return errUnreadable
	}
	// Of a damaged file the digest would vouch for what is left.
	x.hasSum = x.packed == size
	sum.Sum(x.sum[:0])
	if err := x.write(l.path(s.index())); err != nil {
		return orGone(err)
	}
	l.finished(s, x, true)
	return nil
}

// scanPacked reads a compressed file frame by frame and calls fn with each as a
// block. It ends at the first frame that is damaged: behind it nothing says
// where the next one begins.
func scanPacked(f io.ReaderAt, size int64, fn func(k block, text []byte) error) error {
	var off, zoff int64
	var text, frame []byte
	for zoff < size {
		n, err := frameLen(f, zoff, size)
		if err != nil {
			return nil
		}
		frame = slices.Grow(frame[:0], int(n))[:n]
		if _, err := f.ReadAt(frame, zoff); err != nil {
			return err
		}
		if text, err = unpacker().DecodeAll(frame, text[:0]); err != nil || len(text) == 0 || len(text) > maxBlock {
			return nil
		}
		k := block{off: off, len: int64(len(text)), zoff: zoff, zlen: n}
		spanOf(text, &k.span)
		if err := fn(k, text); err != nil {
			return err
		}
		off += k.len
		zoff += n
	}
	return nil
}

// frameLen returns how long the frame at off is. See RFC 8878, section 3.1.1.
func frameLen(f io.ReaderAt, off, size int64) (int64, error) {
	var b [zstd.HeaderMaxSize]byte
	n, err := f.ReadAt(b[:min(int64(len(b)), size-off)], off)
	if err != nil {
		return 0, err
	}
	var h zstd.Header
	if err := h.Decode(b[:n]); err != nil {
		return 0, err
	}
	if h.Skippable {
		return 0, errors.New("a frame that is not ours")
	}
	at := off + int64(h.HeaderSize)
	for last := false; !last; {
		if size-at < 3 {
			return 0, io.ErrUnexpectedEOF
		}
		if _, err := f.ReadAt(b[:3], at); err != nil {
			return 0, err
		}
		head := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
		last = head&1 != 0
		length := int64(head >> 3)
		if head>>1&3 == 1 { // one byte, repeated
			length = 1
		}
		at += 3 + length
		if at-off > 2*maxBlock {
			return 0, errors.New("a frame too long to be ours")
		}
	}
	if h.HasCheckSum {
		at += 4
	}
	if at > size {
		return 0, io.ErrUnexpectedEOF
	}
	return at - off, nil
}
