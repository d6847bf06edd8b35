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

// packing finishes the closed segments of all logs of the process sequentially: one thread
// compresses, regardless of the number of jails.
var packing packer

type packer struct {
	mu    sync.Mutex
	queue []task
	last  time.Time // when a task was added
	busy  bool
}

// A task is a segment to finish. A nil segment requests only the retention check.
type task struct {
	log *Log
	seg *segment
}

// busyQueue is the queue length from which on finishing no longer waits for a quiet period,
// because uncompressed segments fill the disk.
const busyQueue = 32

// quietPeriod is the time without newly closed segments after which compression starts, unless
// the queue is long. A jail that fills a segment a second needs its processors, and recording
// should be the only work that competes for them.
var quietPeriod = time.Second // tests shorten it

func (p *packer) add(l *Log, s *segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-l.quit:
		return
	default:
	}
	l.wg.Add(1) // never after Close calls wg.Wait: removeTasks locks p.mu between close(quit) and Wait
	p.queue, p.last = append(p.queue, task{l, s}), time.Now()
	if len(p.queue) >= busyQueue {
		p.start()
	} else {
		time.AfterFunc(quietPeriod, p.startIfQuiet)
	}
}

// start starts run if it is not active and the queue is not empty. p.mu must be held.
func (p *packer) start() {
	if !p.busy && len(p.queue) > 0 {
		p.busy = true
		go p.run()
	}
}

// startIfQuiet starts run if no segment was closed during the last quietPeriod. Otherwise the
// timer of the later segment calls it again.
func (p *packer) startIfQuiet() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) >= quietPeriod {
		p.start()
	}
}

// removeTasks removes the tasks of l from the queue.
func (p *packer) removeTasks(l *Log) {
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

// run processes the queue until it is empty. While the queue is short, it uses the better
// compression level. Its thread keeps the normal priority: on a busy host a thread of low
// priority gets little time, and the other threads of the process would wait for the runtime
// locks that it holds.
func (p *packer) run() {
	p.mu.Lock()
	thorough := len(p.queue) < busyQueue
	p.mu.Unlock()
	var w *zstd.Encoder
	for {
		p.mu.Lock()
		if len(p.queue) == 0 {
			p.queue, p.busy = nil, false
			p.mu.Unlock()
			return
		}
		// The thresholds are far apart, because each change creates another encoder.
		if thorough && len(p.queue) >= 2*busyQueue || !thorough && len(p.queue) == 1 {
			thorough, w = !thorough, nil
		}
		if thorough && time.Since(p.last) < quietPeriod && len(p.queue) < busyQueue {
			p.busy = false // startIfQuiet continues
			p.mu.Unlock()
			return
		}
		t := p.queue[0]
		p.queue = p.queue[1:]
		p.mu.Unlock()
		if w == nil {
			w = newEncoder(thorough)
		}
		t.log.finish(t.seg, w)
		t.log.wg.Done()
	}
}

// newEncoder returns an encoder with the better level if there is time, and with the fastest
// otherwise. In BenchmarkPack a system call takes 33 bytes with the better level, and 38 bytes
// in half the time with the fastest. The level between them is no smaller than the better one,
// and the best level takes four times as long to save two bytes.
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

// unpacker returns a decoder that all readers share: DecodeAll is safe for concurrent use.
var unpacker = sync.OnceValue(func() *zstd.Decoder {
	// The limits bound the memory that a damaged or replaced file can demand.
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxBlock), zstd.WithDecoderMaxWindow(maxBlock))
	if err != nil {
		panic(err)
	}
	return r
})

var errStopped = errors.New("the log is closed")

// finish hashes, indexes and compresses a closed segment. It then drops the segments that
// exceed the retention policy.
func (l *Log) finish(s *segment, w *zstd.Encoder) {
	if s != nil {
		err := l.pack(s, w)
		switch {
		case err == nil:
			l.notifyFinished(s)
		case errors.Is(err, errRemoved), errors.Is(err, errStopped):
		case errors.Is(err, errUnreadable), errors.Is(err, errNotFile), errors.Is(err, unix.EIO):
			l.quarantine(s, err)
		default: // for example a full disk: the segment stays uncompressed until the next start
			l.log.Warn("cannot compress an event log segment", "error", err)
		}
	}
	l.retain()
}

func (l *Log) notifyFinished(s *segment) {
	if l.cfg.Finished == nil {
		return
	}
	// A damaged file has no digest.
	if seg, ok := l.describe(s); ok && seg.SHA256 != "" {
		l.cfg.Finished(seg)
	}
}

// errUnreadable reports that the text of a segment contains no valid record. It is not used
// for failures to write the index or the compressed file.
var errUnreadable = errors.New("no readable record")

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
			return nil // finished earlier
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
			return mapNotExist(err)
		}
		defer func() {
			out.Close()
			if err != nil {
				os.Remove(out.Name())
			}
		}()
	}
	sum := sha256.New()
	x := &index{hasSum: true, complete: l.written.Load()}
	var frame []byte
	_, err = scan(io.NewSectionReader(in, 0, st.Size()), 0, func(k block, text []byte) error {
		select {
		case <-l.quit:
			return errStopped
		default:
		}
		sum.Write(text)
		if out != nil {
			// Each block is a frame of its own, so that a reader can start at it.
			frame = w.EncodeAll(text, frame[:0])
			if _, err := out.Write(frame); err != nil {
				return mapNotExist(err)
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
			return mapNotExist(err)
		}
		l.setFinished(s, x, false)
		return nil
	}
	// Remove the plain file only after the compressed one is durable.
	if err := out.Sync(); err != nil {
		return mapNotExist(err)
	}
	if err := os.Rename(out.Name(), final); err != nil {
		return mapNotExist(err)
	}
	if err := x.write(l.path(s.index())); err != nil {
		os.Remove(final)
		return mapNotExist(err)
	}
	// The fsync of a file need not make its directory entry durable (fsync(2)).
	if err := dirs.Sync(l.cfg.Dir); err != nil {
		os.Remove(final)
		return mapNotExist(err)
	}
	if l.setFinished(s, x, true) {
		l.remove(closedName(s.class, s.first) + textSuffix)
	} else {
		os.Remove(final) // retention dropped the segment meanwhile
		l.remove(s.index())
	}
	return nil
}

// mapNotExist returns errRemoved if err reports that the log's directory or file was removed.
func mapNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errRemoved
	}
	return err
}

// setFinished stores the index data of s, and whether its file is now the compressed one. It
// returns false if s was removed.
func (l *Log) setFinished(s *segment, x *index, packed bool) bool {
	l.disk.Lock()
	defer l.disk.Unlock()
	if s.removed {
		return false
	}
	s.setIndex(x)
	s.blocks = nil
	if packed {
		s.packed, s.size = true, x.packed
	}
	return true
}

// reindex creates the index of a compressed segment that has none.
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
	// A digest of a damaged file would certify only the readable part.
	x.hasSum = x.packed == size
	sum.Sum(x.sum[:0])
	if err := x.write(l.path(s.index())); err != nil {
		return mapNotExist(err)
	}
	l.setFinished(s, x, true)
	return nil
}

// scanPacked reads a compressed file frame by frame and calls fn with each frame as a block.
// It stops at the first damaged frame, because the start of the next one is then unknown.
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
		text, err = unpacker().DecodeAll(frame, text[:0])
		if err != nil || len(text) == 0 || len(text) > maxBlock {
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

// frameLen returns the length of the zstd frame at off. See RFC 8878, section 3.1.1.
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
		return 0, errors.New("unexpected skippable frame")
	}
	at := off + int64(h.HeaderSize)
	for last := false; !last; {
		if size-at < 3 {
			return 0, io.ErrUnexpectedEOF
		}
		if _, err := f.ReadAt(b[:3], at); err != nil {
			return 0, err
		}
		// Block_Header, little endian: 1 bit Last_Block, 2 bits Block_Type, 21 bits Block_Size
		// (RFC 8878, section 3.1.1.2).
		head := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
		last = head&1 != 0
		length := int64(head >> 3)
		if head>>1&3 == 1 { // one byte, repeated
			length = 1
		}
		at += 3 + length
		// The limit also bounds the buffer of scanPacked.
		if at-off > 2*maxBlock {
			return 0, errors.New("frame too long")
		}
	}
	if h.HasCheckSum {
		at += 4 // Content_Checksum (RFC 8878, section 3.1.1)
	}
	if at > size {
		return 0, io.ErrUnexpectedEOF
	}
	return at - off, nil
}
