// Package eventlog stores the event log of one jail. It numbers records, appends them to
// files, and serves any number of readers, of past records and of new ones as they arrive.
//
// The directory of a log holds four files that are being written: syscalls.jsonl,
// filesystem.jsonl, network.jsonl and processes.jsonl. One record is one line, and its
// sequence number orders it among all four files. A file that exceeds the segment size is
// closed: the number of its first record becomes part of its name. Later it is compressed into
// frames that can be decompressed one by one, and an index file lists the position of each
// frame. `cat` and `zstd -dc` read all files.
//
// Append never waits for the disk. Records that cannot be stored are counted, and the count
// becomes a record of type gap, so every loss is reported in the log.
package eventlog

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe/event"
)

// A Policy configures durability, segment size and retention. It corresponds to events.* in
// the daemon's configuration. The zero value is usable.
type Policy struct {
	Fsync     string        // none: left to the kernel's writeback; second: once a second; segment: when a file is closed
	SegmentMB int           // size at which a file is closed and a new one started; 0 is 64
	KeepMB    int           // limit of the closed segments per jail, as stored on disk; 0 keeps all
	KeepAge   time.Duration // 0 keeps all
	Plain     bool          // leave closed segments uncompressed
}

// Check returns a fault.Invalid error that names the first wrong field below
// prefix.
func (p Policy) Check(op, prefix string) error {
	switch {
	case p.Fsync != "" && p.Fsync != "none" && p.Fsync != "second" && p.Fsync != "segment":
		return fault.Fieldf(op, prefix+"fsync", "%q is not one of [none second segment]", p.Fsync)
	case p.SegmentMB < 0:
		return fault.Fieldf(op, prefix+"segment_mb", "%d is negative", p.SegmentMB)
	case p.KeepMB < 0:
		return fault.Fieldf(op, prefix+"keep_mb", "%d is negative", p.KeepMB)
	case p.KeepAge < 0:
		return fault.Fieldf(op, prefix+"keep_age", "%v is negative", p.KeepAge)
	}
	return nil
}

// Config holds the parameters of a Log.
type Config struct {
	Dir    string // created with the first record; its parent must exist
	Jail   id.Jail
	Policy Policy
	Log    *slog.Logger // nil is slog.Default

	// Finished, if it is not nil, is called with each closed segment after its digest has been
	// computed: once after the segment was closed, or after the next Open if the daemon ended
	// before that. Segments lists those that were finished earlier. Calls come from one
	// goroutine, and the next segment is not processed until Finished returns.
	Finished func(Segment)
}

// maxBuffered bounds the memory for records that are not yet written. A record that arrives
// when the buffer is full is dropped and counted. Sources that can delay their reads should do
// so when it is half full: see HasRoom. At a million records a second, maxBuffered covers a disk
// stall of 30 ms.
const (
	maxBuffered    = 8 << 20
	chunkSize      = 128 << 10
	flushThreshold = 4 * chunkSize // the writer does not wait for more than this
)

// flushDelay is how long a record may wait to be written together with later ones. idleTimeout
// is how long a log keeps its files open after the last write.
const (
	flushDelay  = 20 * time.Millisecond
	idleTimeout = 10 * time.Second
)

// A Log stores the records of one jail. It is safe for concurrent use. A log without writes
// and followers has no goroutine, no open file, and no timer except the one for retention by
// age.
type Log struct {
	cfg     Config
	segment int64  // size in bytes at which a file is closed
	base    uint64 // the sequence number before the first: 0, or the argument of SetBase
	bootSeq uint64
	bootNew bool // the file that holds bootSeq is not yet written

	written  atomic.Uint64 // all records up to this number are in the host's page cache
	pressure atomic.Bool   // the buffer is at least half full
	quit     chan struct{} // closed by Close
	wake     chan struct{} // wakes the writer. Sent under mu
	wg       sync.WaitGroup
	drained  chan struct{} // closed by Close when all records are written
	tailing  sync.WaitGroup

	// Lock order: a tail's mu, follow, disk, mu.

	mu            sync.Mutex
	open          bool
	closed        bool
	seq           uint64         // the last one assigned
	enc           *event.Encoder // nil while the writer does not run
	chunks        [classes]*chunk
	full          [classes][]*chunk
	pending       int  // bytes that the writer has not collected
	buffered      int  // bytes not yet in the page cache, pending or collected
	flushNow      bool // the writer should not wait for further records
	writing       bool // the writer runs
	progress      chan struct{}
	orphans       []string // indexes of dropped segments, which are removed when the pending records are written
	dropping      bool     // records are dropped until there is room
	lost          counts
	unreported    counts                  // lost, and not yet reported in a gap
	unreportedMin [event.Lineage + 1]bool // the count is a lower bound of the loss
	err           string                  // why writes fail; "" if they succeed
	syncErr       string                  // why an fsync failed; "" if none did

	segmentList
	expire *time.Timer // retention by age. Guarded by disk

	follow sync.Mutex
	tails  map[string]*tail // by the text of the filter
	ended  bool             // no new tail may start

	files [classes]activeFile // used only by the writer
}

// counts holds the number of records by type; index 0 is the unknown type.
type counts [event.Lineage + 1]int64

func (c *counts) add(o *counts) {
	for t := range c {
		c[t] += o[t]
	}
}

func (c *counts) sub(o *counts) {
	for t := range c {
		c[t] -= o[t]
	}
}

// A chunk is encoded text of one class that is queued for the writer.
type chunk struct {
	text []byte
	span
	done int // number of its bytes that are written
}

var chunkPool = sync.Pool{New: func() any { return &chunk{text: make([]byte, 0, chunkSize)} }}

func (k *chunk) free() {
	if cap(k.text) > 2*chunkSize {
		return // grown by an unusually long record; do not keep so large a buffer in the pool
	}
	*k = chunk{text: k.text[:0]}
	chunkPool.Put(k)
}

// New returns a log in cfg.Dir. It does not access the file system; Open does.
func New(cfg Config) *Log {
	l := &Log{
		cfg:     cfg,
		segment: int64(cfg.Policy.SegmentMB) << 20,
		quit:    make(chan struct{}),
		drained: make(chan struct{}),
		wake:    make(chan struct{}, 1),
		tails:   map[string]*tail{},
	}
	l.dir, l.log = cfg.Dir, cmp.Or(cfg.Log, slog.Default()).With("jail", string(cfg.Jail))
	if l.segment == 0 {
		l.segment = 64 << 20
	}
	return l
}

// SetBase sets the sequence number before the first record of an empty log, for a jail that was
// branched from another. It becomes durable with the first record. Repeating the call with the
// same number has no effect.
func (l *Log) SetBase(seq uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open || l.closed {
		return fault.Newf(fault.Unavailable, "eventlog.SetBase", string(l.cfg.Jail), "the log is not open")
	}
	if l.seq == seq && l.base == seq {
		return nil
	}
	if l.seq != l.base || l.writing {
		return fault.Newf(fault.Conflict, "eventlog.SetBase", string(l.cfg.Jail), "the log already has records, up to number %d", l.seq)
	}
	l.base, l.seq, l.bootSeq, l.bootNew = seq, seq, seq+1, true
	l.written.Store(seq)
	return nil
}

// Append assigns the next sequence number to e and stores e. It never waits for the disk and
// keeps no reference to e. If the buffer is full, e is dropped, e.Seq is 0, and a later gap
// reports the loss.
func (l *Log) Append(e *event.Event) {
	c := classOf(e)
	l.mu.Lock()
	l.appendOrCount(c, e)
	l.mu.Unlock()
}

// appendOrCount calls append, or countLost if the buffer is full. l.mu must be held.
func (l *Log) appendOrCount(c class, e *event.Event) {
	// After the first loss, records are dropped until the buffer is half empty, so that one gap
	// per type reports them: see appendLossGaps.
	if l.dropping || l.buffered >= maxBuffered || !l.open || l.closed {
		l.countLost(e)
		return
	}
	l.append(c, e)
}

// append encodes e into the chunk of class c. The caller has checked that the buffer has room.
// l.mu must be held.
func (l *Log) append(c class, e *event.Event) {
	l.seq++
	e.Seq = l.seq
	e.Jail = l.cfg.Jail
	k := l.chunks[c]
	if k == nil {
		k = chunkPool.Get().(*chunk)
		l.chunks[c] = k
	}
	if l.enc == nil {
		l.enc = new(event.Encoder)
	}
	before := len(k.text)
	k.text = append(l.enc.Append(k.text, e), '\n')
	k.add(e.Seq, e.TS, e.NS)
	n := len(k.text) - before
	// A chunk is closed with 4 KB to spare, because a longer text would have to grow its buffer.
	if len(k.text) > chunkSize-4<<10 {
		l.full[c] = append(l.full[c], k)
		l.chunks[c] = nil
	}
	l.buffered += n
	if l.buffered > maxBuffered/2 && !l.pressure.Load() {
		l.pressure.Store(true)
	}
	l.pending += n
	// Only the first record and the threshold wake the writer. In between, it waits flushDelay
	// for more records.
	if l.pending == n || l.pending >= flushThreshold && !l.flushNow {
		l.flushNow = l.pending >= flushThreshold
		l.wakeWriter()
	}
}

// wakeWriter starts the writer if it does not run, and wakes it otherwise. l.mu must be held.
func (l *Log) wakeWriter() {
	if !l.writing {
		l.writing = true
		l.wg.Go(l.write)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// countLost counts e as lost. For a gap it counts the loss that the gap reports. l.mu must be
// held.
func (l *Log) countLost(e *event.Event) {
	e.Seq = 0
	e.Jail = l.cfg.Jail
	t, n := e.Type, int64(1)
	if t == event.Gap {
		// The loss that a gap reports must not be lost with the gap.
		t, n = e.Source, max(e.Lost, 0)
	}
	if t > event.Lineage {
		t = 0
	}
	l.lost[t] += n
	if l.closed || !l.open {
		return
	}
	l.unreported[t] += n
	l.dropping = true
	l.unreportedMin[t] = l.unreportedMin[t] || e.Type == event.Gap && e.Lost < 0
}

// appendLossGaps appends one gap for each type with unreported losses and ends the dropping of
// records, if the buffer has room. l.mu must be held.
func (l *Log) appendLossGaps() {
	if l.buffered > maxBuffered/2 {
		return
	}
	l.pressure.Store(false)
	l.dropping = false
	for t, n := range l.unreported {
		if l.unreportedMin[t] {
			n = -1
		}
		if n == 0 {
			continue
		}
		e := event.Event{Type: event.Gap, Source: event.Type(t), Lost: n, Reason: "the log could not be written fast enough"}
		stamp(&e)
		l.append(classOf(&e), &e)
	}
	l.unreported, l.unreportedMin = counts{}, [event.Lineage + 1]bool{}
}

// HasRoom reports whether the buffer is less than half full. A source that can delay its reads
// should do so while HasRoom returns false.
func (l *Log) HasRoom() bool { return !l.pressure.Load() }

// Last returns the last assigned sequence number.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// Written returns a sequence number up to which every record is in the host's page cache.
// These records are visible to readers and survive the end of the daemon, but not a power
// failure.
func (l *Log) Written() uint64 { return l.written.Load() }

// FlushSoon wakes the writer, so that it writes the appended records without waiting for more.
func (l *Log) FlushSoon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending > 0 && !l.flushNow {
		l.flushNow = true
		l.wakeWriter()
	}
}

// Flush blocks until all records that were appended before the call are written. It returns an
// error if ctx ends first or the log is closed without writing them.
func (l *Log) Flush(ctx context.Context) error {
	want := l.Last()
	for {
		l.mu.Lock()
		if l.written.Load() >= want {
			l.mu.Unlock()
			return nil
		}
		if l.closed && !l.writing {
			l.mu.Unlock()
			return fault.Newf(fault.Unavailable, "eventlog.Flush", string(l.cfg.Jail), "the log is closed")
		}
		// The writer stores written and then closes progress under mu. So a write that the check
		// above did not see closes this channel.
		if l.progress == nil {
			l.progress = make(chan struct{})
		}
		ch, why := l.progress, l.err
		if l.pending > 0 && !l.flushNow {
			l.flushNow = true
			l.wakeWriter()
		}
		l.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			if why != "" {
				return fmt.Errorf("write the event log: %s: %w", why, context.Cause(ctx))
			}
			return fmt.Errorf("write the event log: %w", context.Cause(ctx))
		}
	}
}

// Stats are the figures of a log.
type Stats struct {
	Events    int64            // kept
	Bytes     int64            // on disk
	Segments  int              // files
	Last      uint64           // last assigned sequence number
	Written   uint64           // see Log.Written
	OldestSeq uint64           // oldest stored record; 0 for an empty log
	Oldest    time.Time        // time of the oldest stored record
	Lost      map[string]int64 // by type, since the log was opened; gaps in the log report number and position
	Err       string           // why writes fail at present, or why an fsync failed since the log was opened; "" otherwise
}

// Stats returns the figures of the log. The first call reads the indexes of closed segments.
func (l *Log) Stats() Stats {
	st := Stats{Lost: map[string]int64{}}
	segs, err := l.Segments()
	for _, s := range segs {
		st.Segments++
		st.Events += s.Events
		if s.Compressed > 0 {
			st.Bytes += s.Compressed
		} else {
			st.Bytes += s.Bytes
		}
		if st.OldestSeq == 0 || s.First < st.OldestSeq {
			st.OldestSeq, st.Oldest = s.First, time.UnixMilli(s.FirstTS)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	st.Last, st.Written, st.Err = l.seq, l.written.Load(), l.err
	for t, n := range l.lost {
		if n > 0 {
			st.Lost[event.Type(t).String()] = n
		}
	}
	if st.Err == "" {
		st.Err = l.syncErr
	}
	if st.Err == "" && err != nil {
		st.Err = err.Error()
	}
	return st
}

// Close writes the appended records, ends all tails and streams, and releases the resources of
// the log. If the disk does not accept the records, they are lost, and the error reports their
// number. Close may be called twice, and without Open.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		<-l.drained
		l.tailing.Wait()
		return nil
	}
	l.closed = true
	before := l.lost
	close(l.quit)
	if l.writing {
		l.wakeWriter()
	}
	l.mu.Unlock()

	packing.removeTasks(l)
	l.disk.Lock()
	if l.expire != nil && l.expire.Stop() {
		l.expire = nil
	}
	l.disk.Unlock()
	l.wg.Wait()
	// drained is closed after the last write, because streams then read the rest of the log
	// themselves. ended is set before that, because no tail may be added to tailing while Close
	// waits for it (sync.WaitGroup.Go).
	l.follow.Lock()
	l.ended = true
	l.follow.Unlock()
	close(l.drained)
	l.tailing.Wait()

	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for t := range l.lost {
		n += l.lost[t] - before[t]
	}
	if n > 0 {
		return fmt.Errorf("%d records are lost: %s", n, l.err)
	}
	return nil
}
