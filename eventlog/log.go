// Package eventlog is the log of what one jail did: records are numbered,
// appended to files, and read by as many as want to, live and from the past.
//
// The directory of a log holds four files that are written: syscalls.jsonl,
// filesystem.jsonl, network.jsonl and processes.jsonl. One record is one line,
// and a record's sequence number orders it among all four. A file that has grown
// large is closed: it gets the number of its first record into its name, and a
// little later it is compressed, in frames that can be unpacked one by one, with
// an index beside it that says what is where. `cat` and `zstd -dc` read it all.
//
// Append never waits for the disk. What cannot be kept is counted, and the count
// becomes a record of type gap: the log never ends, and never leaves out
// anything without saying so.
package eventlog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/event"
	"glasshouse/fault"
	"glasshouse/id"
)

// A Policy says how records are kept. It is what the daemon's configuration
// says in events.*; the zero value works.
type Policy struct {
	Fsync     string        // none: when the host's kernel likes; second: once a second; segment: when a file is closed
	SegmentMB int           // a file is closed and a new one begun beyond this; 0 is 64
	KeepMB    int           // of closed segments per jail, as they are on disk; 0 keeps all
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

// Config is what a Log is made of.
type Config struct {
	Dir    string // made when there is something to keep, in a directory that is there
	Jail   id.Jail
	Policy Policy
	Log    *slog.Logger // nil is slog.Default

	// Finished, if it is not nil, is told of each closed segment when its digest is
	// known: once after it was closed, or after Open if the daemon ended before.
	// Those that were finished earlier are among Segments. It is called from one
	// goroutine, and the next segment waits for it.
	Finished func(Segment)
}

// What is held in memory. A record that arrives when hold bytes wait for the disk
// is lost, and counted; sources that can hold back do when half of that waits.
// At a million records a second the whole is 30 ms of a disk that does not answer.
const (
	hold      = 8 << 20
	chunkSize = 128 << 10
	urgent    = 4 * chunkSize // so much is written at once
)

// delay is how long a record may wait to be written with others. linger is how
// long a log that was written keeps its files open.
const (
	delay  = 20 * time.Millisecond
	linger = 10 * time.Second
)

// A Log keeps the records of one jail. It is safe for concurrent use. A log that
// is not written and not followed has no goroutine, no timer but one for records
// that grow too old, and no open file.
type Log struct {
	cfg     Config
	log     *slog.Logger
	segment int64  // bytes of text a file is closed beyond
	base    uint64 // the sequence number before the first: 0, or as Begin said
	bootSeq uint64
	bootNew bool // the file that says bootSeq is not yet written

	written atomic.Uint64 // everything up to it is in the host's kernel
	tight   atomic.Bool   // half of what may wait is waiting
	quit    chan struct{} // closed by Close
	wake    chan struct{} // to the writer: look again. Sent under mu
	wg      sync.WaitGroup
	drained chan struct{} // closed by Close when all is written
	tailing sync.WaitGroup

	// Lock order: a tail's mu, follow, disk, mu.

	mu       sync.Mutex
	open     bool
	closed   bool
	seq      uint64         // given last
	enc      *event.Encoder // nil while the writer does not run
	chunks   [classes]*chunk
	full     [classes][]*chunk
	pending  int  // bytes the writer has not taken
	buffered int  // bytes not yet in the kernel, pending or taken
	urgent   bool // the writer should not wait for more
	writing  bool // the writer runs
	progress chan struct{}
	losing   bool // records are lost until there is room
	lost     counts
	owed     counts                  // lost, and not yet said in a gap
	vague    [event.Lineage + 1]bool // owed is less than what is lost
	err      string                  // why the writer gets nowhere; "" if it does

	disk     sync.Mutex
	segments [classes][]*segment // of each class from the oldest; only the last may be open
	dropped  [classes]uint64     // the largest sequence number dropped since Open
	expire   *time.Timer         // retention by age

	follow sync.Mutex
	tails  map[string]*tail // by the text of their filter
	ended  bool             // no tail begins any more

	files [classes]activeFile // the writer's own
}

// counts counts records by type; 0 is unknown.
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

// A chunk is text of one class that is to be written.
type chunk struct {
	text []byte
	span
	done int // bytes of it that are written
}

var chunkPool = sync.Pool{New: func() any { return &chunk{text: make([]byte, 0, chunkSize)} }}

func (k *chunk) free() {
	if cap(k.text) > 2*chunkSize {
		return // a giant's; the next one need not be
	}
	*k = chunk{text: k.text[:0]}
	chunkPool.Put(k)
}

// New returns a log in cfg.Dir. It touches nothing; Open does.
func New(cfg Config) *Log {
	l := &Log{
		cfg:     cfg,
		log:     cfg.Log,
		segment: int64(cfg.Policy.SegmentMB) << 20,
		quit:    make(chan struct{}),
		drained: make(chan struct{}),
		wake:    make(chan struct{}, 1),
		tails:   map[string]*tail{},
	}
	if l.log == nil {
		l.log = slog.Default()
	}
	l.log = l.log.With("jail", string(cfg.Jail))
	if l.segment == 0 {
		l.segment = 64 << 20
	}
	return l
}

// Begin has a log that holds nothing count from after seq, as the log of a jail
// that goes on from another's. It is durable with the first record.
func (l *Log) Begin(seq uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open || l.closed {
		return fault.Newf(fault.Unavailable, "eventlog.Begin", string(l.cfg.Jail), "the log is not open")
	}
	if l.seq == seq && l.base == seq {
		return nil
	}
	if l.seq != l.base || l.writing {
		return fault.Newf(fault.Conflict, "eventlog.Begin", string(l.cfg.Jail), "the log has records already, up to %d", l.seq)
	}
	l.base, l.seq, l.bootSeq, l.bootNew = seq, seq, seq+1, true
	l.written.Store(seq)
	return nil
}

// Append gives e the next sequence number and keeps it. It never waits for the
// disk, and keeps no reference to e. If too much waits already, e is lost,
// and a gap will say so; e.Seq is then 0.
func (l *Log) Append(e *event.Event) {
	c := classOf(e)
	l.mu.Lock()
	if l.losing || l.buffered >= hold || !l.open || l.closed {
		l.lose(e)
		l.mu.Unlock()
		return
	}
	l.append(c, e)
	l.mu.Unlock()
}

// append is Append where there is room. l.mu must be held.
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
	if len(k.text) > chunkSize-4<<10 {
		l.full[c] = append(l.full[c], k)
		l.chunks[c] = nil
	}
	l.buffered += n
	if l.buffered > hold/2 && !l.tight.Load() {
		l.tight.Store(true)
	}
	l.pending += n
	if l.pending == n || l.pending >= urgent && !l.urgent {
		l.urgent = l.pending >= urgent
		l.rouse()
	}
}

// rouse has the writer look at what there is to do. l.mu must be held.
func (l *Log) rouse() {
	if !l.writing {
		l.writing = true
		l.wg.Go(l.write)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// lose counts e. A gap that is lost is what it told of. l.mu must be held.
func (l *Log) lose(e *event.Event) {
	e.Seq = 0
	e.Jail = l.cfg.Jail
	t, n := e.Type, int64(1)
	if t == event.Gap {
		t, n = e.Source, max(e.Lost, 0)
	}
	if t > event.Lineage {
		t = 0
	}
	l.lost[t] += n
	if l.closed || !l.open {
		return
	}
	l.owed[t] += n
	l.losing = true
	l.vague[t] = l.vague[t] || e.Type == event.Gap && e.Lost < 0
}

// sayLost ends a time of loss with one gap for each type, if there is room.
// l.mu must be held.
func (l *Log) sayLost() {
	if l.buffered > hold/2 {
		return
	}
	l.tight.Store(false)
	l.losing = false
	for t, n := range l.owed {
		if l.vague[t] {
			n = -1
		}
		if n == 0 {
			continue
		}
		e := event.Event{Type: event.Gap, Source: event.Type(t), Lost: n, Reason: "the log could not be written fast enough"}
		stamp(&e)
		l.append(classOf(&e), &e)
	}
	l.owed, l.vague = counts{}, [event.Lineage + 1]bool{}
}

// Room reports whether there is room for more. A source that can hold back
// should while there is not.
func (l *Log) Room() bool { return !l.tight.Load() }

// Last is the sequence number given last.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// Written is a sequence number up to which every record is in the host's
// kernel: it survives the end of the daemon, and readers see it.
func (l *Log) Written() uint64 { return l.written.Load() }

// Push has what was appended written now, rather than when there is more.
func (l *Log) Push() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending > 0 && !l.urgent {
		l.urgent = true
		l.rouse()
	}
}

// Flush returns when everything that was appended before is written.
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
		if l.progress == nil {
			l.progress = make(chan struct{})
		}
		ch, why := l.progress, l.err
		if l.pending > 0 && !l.urgent {
			l.urgent = true
			l.rouse()
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

// Stats is what a log says of itself.
type Stats struct {
	Events    int64            // kept
	Bytes     int64            // on disk
	Segments  int              // files
	Last      uint64           // sequence number given last
	Written   uint64           // see Log.Written
	OldestSeq uint64           // of the records kept; 0 if there are none
	Oldest    time.Time        // when that was
	Lost      map[string]int64 // by type, since the log was opened; gaps say how many and where
	Err       string           // why records cannot be written now; "" if they can
}

// Stats reads the indexes of closed segments when it is called first.
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
	if st.Err == "" && err != nil {
		st.Err = err.Error()
	}
	return st
}

// Close writes what was appended, ends what follows the log, and lets go of
// everything. If the disk takes no more, what waits is lost, and the error says
// how many records. It may be called twice, and without Open.
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
		l.rouse()
	}
	l.mu.Unlock()

	packing.forget(l)
	l.disk.Lock()
	if l.expire != nil && l.expire.Stop() {
		l.expire = nil
	}
	l.disk.Unlock()
	l.wg.Wait()
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
