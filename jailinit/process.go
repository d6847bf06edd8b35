package jailinit

import (
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jailinit/protocol"
)

// drainAtMost ends a command whose output goes on without it: by then only
// what was in the pipes at its end is waited for.
const drainAtMost = 2 * time.Second

// writePatience is how often a writer of stdin looks whether its client is
// still there.
const writePatience = 200 * time.Millisecond

// pumpSize is how much is read from a pipe at a time: all it can hold.
const pumpSize = 64 << 10

var pumpBuffers = sync.Pool{New: func() any { return new([pumpSize]byte) }}

// A process is a command: its main process, its output, and what holds it.
type process struct {
	id   id.Exec
	in   *Init
	pid  int
	tty  *os.File   // the terminal's master side, or nil
	outs []*os.File // what its output is read from

	stdin      *os.File // nil without stdin; the same as tty on a terminal
	closeStdin sync.Once
	reaped     chan struct{} // closed when the main process was reaped
	ended      chan struct{} // closed when the command has ended, output and all
	inHand     atomic.Int32  // pumps with output that is in neither pipe nor ring
	taken      atomic.Int64  // bytes of output read
	given      atomic.Int64  // bytes of stdin written

	mu sync.Mutex
	// +checklocks:mu
	status protocol.ExecStatus
	// +checklocks:mu
	ring ring
	// +checklocks:mu
	readers map[*reader]struct{}
	// +checklocks:mu
	grown notice // there is more output, or it has ended
	// +checklocks:mu
	freed notice // a lossless reader has taken something, or has gone
	// +checklocks:mu
	alarm alarm // its timeout, then what ends it when its output does not
	// +checklocks:mu
	still bool // init is parked: time does not count
	// +checklocks:mu
	thaws int // how often that was over
	// +checklocks:mu
	pumps int // outputs not at their end
	// +checklocks:mu
	lastRead time.Time // when output was last read
	// +checklocks:mu
	exited time.Time // when the main process was reaped
	// +checklocks:mu
	draining time.Time // since when its output is waited for: exited, or when time last went on
	// +checklocks:mu
	pending int64 // output offset of the end of its output
}

// A reader is the position of a client in the output.
type reader struct {
	pos      int64 // everything before it was taken
	lossless bool
	progress time.Time // when it was last heard from
	gone     time.Time // when its connection broke, or zero
}

// A notice wakes all who wait for it.
type notice struct{ ch chan struct{} }

func (n *notice) wait() <-chan struct{} {
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

func (n *notice) wake() {
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

// snapshot is the command's status now.
func (p *process) snapshot() protocol.ExecStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current()
}

// current returns the status with the bounds of the kept output. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *process) current() protocol.ExecStatus {
	s := p.status
	s.Oldest, s.Next = p.ring.oldest, p.ring.next
	return s
}

// run begins to read the output. The main process has been started.
func (p *process) run(timeout time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastRead = time.Now()
	for i, f := range p.outs {
		p.in.wg.Go(func() { p.pump(f, protocol.Stream(i+1)) })
	}
	if timeout > 0 && p.exited.IsZero() {
		p.alarm.set(timeout, p.timeOut)
	}
}

// pump reads f until nobody holds its other end. After the command has ended
// it goes on, so that a daemon left behind does not die of a broken pipe.
func (p *process) pump(f *os.File, stream protocol.Stream) {
	defer p.outputClosed(f)
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	for {
		var buf *[pumpSize]byte
		var n int
		var readErr error
		err := raw.Read(func(fd uintptr) bool {
			p.inHand.Add(1)
			buf = pumpBuffers.Get().(*[pumpSize]byte)
			n, readErr = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), buf[:]) })
			if readErr == unix.EAGAIN { // an idle command holds no buffer
				pumpBuffers.Put(buf)
				p.inHand.Add(-1)
				return false
			}
			return true
		})
		if err != nil {
			return
		}
		if n > 0 {
			p.taken.Add(int64(n))
			p.output(stream, buf[:n])
		}
		pumpBuffers.Put(buf)
		p.inHand.Add(-1)
		if readErr == unix.EIO && p.unattended(f) {
			continue
		}
		if n <= 0 || readErr != nil {
			return
		}
	}
}

// unattended tells whether f is a terminal that nobody has open, though the
// main process is alive and may open it again. Closing it would send that one
// SIGHUP, also when it is just about to exit. It waits a little before it
// returns true.
func (p *process) unattended(f *os.File) bool {
	if f != p.tty {
		return false
	}
	select {
	case <-p.reaped:
		return false
	default:
	}
	p.mu.Lock()
	freed := p.freed.wait()
	p.mu.Unlock()
	select {
	case <-p.reaped: // read once more
	case <-freed: // maybe time goes on after init was parked, and the clock is another
	case <-time.After(50 * time.Millisecond):
	}
	return true
}

// output keeps data, waiting for lossless readers where it must.
func (p *process) output(stream protocol.Stream, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastRead = time.Now()
	for len(data) > 0 {
		n := p.makeRoom(stream, len(data))
		if p.status.Ended != nil {
			return // nobody will ask for it
		}
		p.ring.append(stream, data[:n])
		data = data[n:]
		if stream == protocol.Stdout {
			p.status.Stdout += int64(n)
		} else {
			p.status.Stderr += int64(n)
		}
		p.grown.wake()
	}
	p.lastRead = time.Now()
}

// makeRoom waits until no lossless reader needs what the next output will
// overwrite, and returns how much of n bytes may be appended. A reader that
// was not heard from for the grace time is lossless no more. p.mu is held, but
// not while waiting.
//
// +checklocks:p.mu
func (p *process) makeRoom(stream protocol.Stream, n int) int {
	began, thaws := time.Now(), p.thaws
	for {
		fit := p.ring.fit(n)
		until := p.hold(p.ring.reserve(stream, fit), began)
		if until.IsZero() || p.status.Ended != nil {
			return fit
		}
		freed := p.freed.wait()
		p.mu.Unlock()
		timer := time.NewTimer(time.Until(until))
		select {
		case <-freed:
		case <-timer.C:
		}
		timer.Stop()
		p.mu.Lock()
		if time.Since(until) > thawing || thaws != p.thaws {
			began, thaws = p.thawed(), p.thaws
		}
	}
}

// thawing is how late a timer is if the jail was frozen meanwhile. A reader
// could not be heard then, and has its grace again.
const thawing = time.Second

// thawed lets the grace of all readers begin now, which it returns. What is
// recorded of the time before means nothing on the clock of another host. The caller
// holds p.mu.
//
// +checklocks:p.mu
func (p *process) thawed() time.Time {
	now := time.Now()
	for r := range p.readers {
		r.progress = now
		if !r.gone.IsZero() {
			r.gone = now
		}
	}
	return now
}

// hold returns until when output before offset drop has to be kept, which
// somebody has been waiting to overwrite since began; zero if nobody needs it.
// Readers whose grace is over are not asked again. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *process) hold(drop int64, began time.Time) (until time.Time) {
	now := time.Now()
	for r := range p.readers {
		deadline := later(r.progress, began).Add(p.in.Grace)
		if !r.gone.IsZero() {
			deadline = r.gone.Add(p.in.Grace)
		}
		if p.still { // nobody can come
			deadline = now.Add(p.in.Grace)
		}
		switch {
		case !r.lossless || r.pos >= drop:
		case deadline.After(now):
			until = later(until, deadline)
		case r.gone.IsZero():
			r.lossless = false
		default:
			delete(p.readers, r)
		}
	}
	return until
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// outputClosed tells that nobody can write to f any more.
func (p *process) outputClosed(f *os.File) {
	f.Close()
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	p.mu.Lock()
	p.pumps--
	p.conclude(p.pumps == 0 && !p.exited.IsZero())
}

// exit records how the main process ended. Init.pids is held.
func (p *process) exit(status unix.WaitStatus) {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	p.mu.Lock()
	p.exited = time.Now()
	close(p.reaped)
	p.status.Code = status.ExitStatus()
	if status.Signaled() {
		p.status.Code = 128 + int(status.Signal())
		p.status.Signal = signalName(status.Signal())
	}
	p.alarm.stop()
	if p.pumps > 0 {
		p.draining = p.exited
		p.pending = p.taken.Load() + p.unread()
		p.alarm.set(p.in.Idle, p.drain)
	}
	p.conclude(p.pumps == 0)
}

// drain ends a command whose main process has gone but whose output somebody
// still holds open: once it falls silent or, if it never does, once all that
// was written before is read.
func (p *process) drain() {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	p.mu.Lock()
	silent := time.Since(p.lastRead) >= p.in.Idle && p.unread() == 0 && p.inHand.Load() == 0
	drained := p.ring.next >= p.pending && time.Since(p.draining) >= drainAtMost
	over := silent || drained
	if !over && p.status.Ended == nil {
		p.alarm.set(max(p.in.Idle-time.Since(p.lastRead), p.in.Idle/10), p.drain)
	}
	p.conclude(over)
}

// conclude ends the command if it is over and has not ended yet. The caller holds
// p.in.mu and p.mu; conclude unlocks p.mu.
//
// +checklocks:p.in.mu
// +checklocksrelease:p.mu
func (p *process) conclude(over bool) {
	ended := over && p.status.Ended == nil
	if ended {
		p.status.Ended = &p.exited
		p.ring.shrink()
		close(p.ended)
		p.grown.wake()
		p.freed.wake()
	}
	p.mu.Unlock()
	if ended {
		p.dropStdin()
		p.in.retire(p)
	}
}

func (p *process) memory() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ring.memory()
}

// release gives the output's memory back. Readers learn what they have lost.
func (p *process) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ring.release()
}

// join adds a reader from offset a.From on.
func (p *process) join(a protocol.Attach) (*reader, protocol.ExecStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.From > p.ring.next {
		return nil, protocol.ExecStatus{}, fault.Fieldf("exec.Attach", "from", "%d is past the end of the output at %d", a.From, p.ring.next)
	}
	r := &reader{pos: a.From, lossless: a.Lossless, progress: time.Now()}
	if a.From < 0 {
		r.pos = p.ring.oldest
	}
	if r.lossless {
		p.resume(r.pos)
	}
	p.readers[r] = struct{}{}
	return r, p.current(), nil
}

// resume frees the place that was held for a reader that is back at pos. The caller
// holds p.mu.
//
// +checklocks:p.mu
func (p *process) resume(pos int64) {
	var back *reader
	for r := range p.readers {
		if !r.gone.IsZero() && r.pos <= pos && (back == nil || r.pos > back.pos) {
			back = r
		}
	}
	if back != nil {
		delete(p.readers, back)
	}
	p.freed.wake()
}

// leave takes a reader out. If its connection broke, its place is held.
func (p *process) leave(r *reader, broke bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if broke && r.lossless && p.status.Ended == nil {
		r.gone = time.Now()
	} else {
		delete(p.readers, r)
	}
	p.freed.wake()
}

// took records that r has everything before offset. If it had that already, it only
// says that it is still there: its grace begins again.
func (p *process) took(r *reader, offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if offset < r.pos || offset > p.ring.next {
		return
	}
	r.pos, r.progress = offset, time.Now()
	p.freed.wake()
}

// read returns output from offset pos on, copied into buf. If there is none
// it returns what to wait for, or nothing at all if there will be none.
func (p *process) read(pos int64, buf []byte) (c protocol.Chunk, ok bool, more <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok = p.ring.read(pos, buf); ok {
		return c, true, nil
	}
	if p.status.Ended != nil {
		return c, false, nil
	}
	return c, false, p.grown.wait()
}

// dropStdin closes stdin, unless that is a terminal, which its pump closes.
func (p *process) dropStdin() {
	if p.stdin != nil && p.stdin != p.tty {
		p.closeStdin.Do(func() { p.stdin.Close() })
	}
}

// errParked means that a write was given up because init is to be parked.
var errParked = errors.New("init is to be parked")

// write gives data to the command's stdin or terminal, and returns how much of
// it that took. When quit is closed it goes on only as long as the command
// takes something, when parked is closed not at all.
func (p *process) write(data []byte, quit, parked <-chan struct{}) (taken int, err error) {
	for taken < len(data) {
		// Another writer moves the deadline too, which is as good.
		p.stdin.SetWriteDeadline(time.Now().Add(writePatience))
		select {
		case <-parked: // after the deadline was set, or who parks would set it too early
			return taken, errParked
		default:
		}
		n, err := p.stdin.Write(data[taken:])
		taken += n
		p.given.Add(int64(n))
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return taken, fault.Newf(fault.Conflict, "exec.Stdin", string(p.id), "the command takes no more input")
		}
		if n > 0 {
			continue
		}
		select {
		case <-quit:
			return taken, net.ErrClosed
		default:
		}
	}
	return taken, nil
}

func (p *process) resize(size protocol.Size) error {
	if p.tty == nil {
		return fault.Newf(fault.Conflict, "exec.Resize", string(p.id), "the command has no terminal")
	}
	return setSize(p.tty, size)
}

// truncated is argv as far as a status repeats it.
func truncated(argv []string) []string {
	left := protocol.MaxStatusArgv
	for i, a := range argv {
		if left -= len(a) + 1; left < 0 {
			cut := a[:max(0, left+len(a)+1)]
			return append(append([]string{}, argv[:i]...), strings.ToValidUTF8(cut, "")+"…")
		}
	}
	return argv
}

// unread is how many bytes wait in the command's pipes or terminal.
func (p *process) unread() (sum int64) {
	for _, f := range p.outs {
		raw, err := f.SyscallConn()
		if err != nil {
			continue
		}
		raw.Control(func(fd uintptr) {
			n, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			sum += int64(n)
		})
	}
	return sum
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}
