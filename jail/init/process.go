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
	"glasshouse/jail/init/protocol"
)

// maxDrain bounds how long a command's output is read after the end of its main process. Then
// only output from before that end is still read.
const maxDrain = 2 * time.Second

// writeTimeout is the interval in which a writer of stdin checks whether its client is
// connected.
const writeTimeout = 200 * time.Millisecond

// pumpSize is the size of a read from a pipe: the default capacity of a pipe (pipe(7)).
const pumpSize = 64 << 10

var pumpBuffers = sync.Pool{New: func() any { return new([pumpSize]byte) }}

// A process is a command: its main process, its output, and its clients.
type process struct {
	id   id.Exec
	in   *Init
	pid  int
	tty  *os.File   // the terminal's master side, or nil
	outs []*os.File // output pipes or terminal

	stdin        *os.File // nil without stdin; the same as tty on a terminal
	closeStdin   sync.Once
	reaped       chan struct{} // closed when the main process was reaped
	ended        chan struct{} // closed when the command and its output have ended
	inFlight     atomic.Int32  // pumps with output that is neither in the pipe nor in the ring
	stdinWritten atomic.Int64  // bytes of stdin written

	// readMu is held during a read of a pipe, so that no byte is in neither the pipe nor taken. It
	// may be locked while mu is held.
	readMu sync.Mutex
	// +checklocks:readMu
	taken [2]int64 // bytes read, by index of outs

	mu sync.Mutex
	// +checklocks:mu
	status protocol.ExecStatus
	// +checklocks:mu
	ring ring
	// +checklocks:mu
	readers map[*reader]struct{}
	// +checklocks:mu
	moreOutput broadcast // more output, or the end of the output
	// +checklocks:mu
	readerMoved broadcast // a lossless reader has advanced or ended
	// +checklocks:mu
	timer pausableTimer // its timeout; after its end, the drain timer
	// +checklocks:mu
	timersStopped bool // init is parked
	// +checklocks:mu
	restarts int // number of unparks
	// +checklocks:mu
	pumps int // outputs that have not ended
	// +checklocks:mu
	lastRead time.Time // when output was last read
	// +checklocks:mu
	exited time.Time // when the main process was reaped
	// +checklocks:mu
	drainSince time.Time // start of the drain: exited, or the last unpark
	// +checklocks:mu
	drainUntil [2]int64 // bytes that each of outs had been given before exited
}

// A reader is the position of a client in the output.
type reader struct {
	pos      int64 // output before it is acknowledged
	lossless bool
	lastSeen time.Time // time of the last acknowledgement
	lostAt   time.Time // when its connection was lost, or zero
}

// A broadcast wakes all its waiters.
type broadcast struct{ ch chan struct{} }

func (n *broadcast) wait() <-chan struct{} {
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

func (n *broadcast) send() {
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

// snapshot returns the present status of the command.
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

// run starts to read the output. The main process has been started.
func (p *process) run(timeout time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastRead = time.Now()
	for i, f := range p.outs {
		p.in.wg.Go(func() { p.pump(f, i) })
	}
	// The main process may have been reaped already. Then the timer may be that of the drain.
	if timeout > 0 && p.exited.IsZero() {
		p.timer.set(timeout, p.timeOut)
	}
}

// pump reads f, which is outs[i], until all writers have closed it. It continues after the end
// of the command, so that a background process does not get SIGPIPE.
func (p *process) pump(f *os.File, i int) {
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
			// Counted before the read: until output has stored them, the bytes are neither in
			// the pipe nor in the ring, and drain must not end the command.
			p.inFlight.Add(1)
			buf = pumpBuffers.Get().(*[pumpSize]byte)
			n, readErr = p.take(int(fd), i, buf[:])
			if readErr == unix.EAGAIN { // no buffer for an idle command
				pumpBuffers.Put(buf)
				p.inFlight.Add(-1)
				return false
			}
			return true
		})
		if err != nil {
			return
		}
		if n > 0 {
			p.output(protocol.Stream(i+1), buf[:n])
		}
		pumpBuffers.Put(buf)
		p.inFlight.Add(-1)
		if readErr == unix.EIO && p.waitForTTY(f) {
			continue
		}
		if n <= 0 || readErr != nil {
			return
		}
	}
}

// take reads output from fd, the descriptor of outs[i], and counts it. The read of a terminal can
// block, so it is counted only afterwards.
func (p *process) take(fd, i int, buf []byte) (n int, err error) {
	read := func() (int, error) { return unix.Read(fd, buf) }
	if p.tty != nil {
		n, err = ignoringEINTR(read)
		p.readMu.Lock()
		defer p.readMu.Unlock()
	} else {
		p.readMu.Lock()
		defer p.readMu.Unlock()
		n, err = ignoringEINTR(read)
	}
	p.taken[i] += int64(max(n, 0)) // -1 with an error
	return n, err
}

// waitForTTY reports whether f is a terminal that no process has open while the main process
// is alive and may open it again. Closing the master would send SIGHUP to the main process,
// also when it is about to exit. waitForTTY waits briefly before it returns true.
func (p *process) waitForTTY(f *os.File) bool {
	if f != p.tty {
		return false
	}
	select {
	case <-p.reaped:
		return false
	default:
	}
	p.mu.Lock()
	freed := p.readerMoved.wait()
	p.mu.Unlock()
	select {
	case <-p.reaped: // read again
	case <-freed: // possibly after an unpark with another clock
	case <-time.After(50 * time.Millisecond):
	}
	return true
}

// output stores data. It waits for lossless readers if necessary.
func (p *process) output(stream protocol.Stream, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastRead = time.Now()
	for len(data) > 0 {
		n := p.makeRoom(stream, len(data))
		if p.status.Ended != nil {
			return // the output has ended already
		}
		p.ring.append(stream, data[:n])
		data = data[n:]
		if stream == protocol.Stdout {
			p.status.Stdout += int64(n)
		} else {
			p.status.Stderr += int64(n)
		}
		p.moreOutput.send()
	}
	p.lastRead = time.Now()
}

// makeRoom waits until no lossless reader needs the output that is overwritten next, and
// returns how many of n bytes may be appended. A reader that has been silent for the grace
// time is no longer lossless. p.mu is held, but not during the wait.
//
// +checklocks:p.mu
func (p *process) makeRoom(stream protocol.Stream, n int) int {
	began, restarts := time.Now(), p.restarts
	for {
		fit := p.ring.fit(n)
		until := p.retainUntil(p.ring.reserve(stream, fit), began)
		if until.IsZero() || p.status.Ended != nil {
			return fit
		}
		freed := p.readerMoved.wait()
		p.mu.Unlock()
		timer := time.NewTimer(time.Until(until))
		select {
		case <-freed:
		case <-timer.C:
		}
		timer.Stop()
		p.mu.Lock()
		if time.Since(until) > freezeTolerance || restarts != p.restarts {
			began, restarts = p.restartGrace(), p.restarts
		}
	}
}

// freezeTolerance is the delay of a timer from which on it is assumed that the jail was
// frozen. Readers could not send acknowledgements then, and their grace time starts again.
const freezeTolerance = time.Second

// restartGrace restarts the grace time of all readers at the present time, which it returns.
// Times from before are meaningless on the clock of another host. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *process) restartGrace() time.Time {
	now := time.Now()
	for r := range p.readers {
		r.lastSeen = now
		if !r.lostAt.IsZero() {
			r.lostAt = now
		}
	}
	return now
}

// retainUntil returns how long output before offset drop must be retained, zero if it may be
// overwritten. The writer has been waiting since began. Readers whose grace time is over lose
// the right to it. The caller holds p.mu.
//
// +checklocks:p.mu
func (p *process) retainUntil(drop int64, began time.Time) (until time.Time) {
	now := time.Now()
	for r := range p.readers {
		deadline := later(r.lastSeen, began).Add(p.in.ReaderGrace)
		if !r.lostAt.IsZero() {
			deadline = r.lostAt.Add(p.in.ReaderGrace)
		}
		if p.timersStopped { // clients cannot connect
			deadline = now.Add(p.in.ReaderGrace)
		}
		switch {
		case !r.lossless || r.pos >= drop:
		case deadline.After(now):
			until = later(until, deadline)
		case r.lostAt.IsZero():
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

// outputClosed records that all writers of f have closed it.
func (p *process) outputClosed(f *os.File) {
	f.Close()
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	p.mu.Lock()
	p.pumps--
	p.conclude(p.pumps == 0 && !p.exited.IsZero())
}

// exit records the exit status of the main process. Init.pids is held.
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
	p.timer.stop()
	if p.pumps > 0 {
		p.drainSince = p.exited
		p.drainUntil = p.written()
		p.timer.set(p.in.Idle, p.drain)
	}
	p.conclude(p.pumps == 0)
}

// drain ends a command whose main process has ended and whose output is held open by others.
// The command ends when there is no output for Init.Idle or, with continuous output, when all
// output from before the exit has been read and maxDrain is over.
func (p *process) drain() {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	p.mu.Lock()
	silent := time.Since(p.lastRead) >= p.in.Idle && p.unread() == 0 && p.inFlight.Load() == 0
	stored := p.status.Stdout >= p.drainUntil[0] && p.status.Stderr >= p.drainUntil[1]
	drained := stored && time.Since(p.drainSince) >= maxDrain
	over := silent || drained
	if !over && p.status.Ended == nil {
		p.timer.set(max(p.in.Idle-time.Since(p.lastRead), p.in.Idle/10), p.drain)
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
		p.moreOutput.send()
		p.readerMoved.send()
	}
	p.mu.Unlock()
	if ended {
		p.closeStdinPipe()
		p.in.retire(p)
	}
}

func (p *process) memory() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ring.memory()
}

// release frees the memory of the output. Readers see the lost bytes as a gap.
func (p *process) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ring.release()
}

// addReader adds a reader at offset a.From.
func (p *process) addReader(a protocol.Attach) (*reader, protocol.ExecStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.From > p.ring.next {
		return nil, protocol.ExecStatus{}, fault.Fieldf("exec.Attach", "from", "%d is past the end of the output at %d", a.From, p.ring.next)
	}
	r := &reader{pos: a.From, lossless: a.Lossless, lastSeen: time.Now()}
	if a.From < 0 {
		r.pos = p.ring.oldest
	}
	if r.lossless {
		p.replaceReader(r.pos)
	}
	p.readers[r] = struct{}{}
	return r, p.current(), nil
}

// replaceReader removes the retained position of a lost reader that has reconnected at pos.
// The caller holds p.mu.
//
// +checklocks:p.mu
func (p *process) replaceReader(pos int64) {
	var back *reader
	for r := range p.readers {
		if !r.lostAt.IsZero() && r.pos <= pos && (back == nil || r.pos > back.pos) {
			back = r
		}
	}
	if back != nil {
		delete(p.readers, back)
	}
	p.readerMoved.send()
}

// removeReader removes a reader. If its connection was lost, its position is retained for the
// grace time.
func (p *process) removeReader(r *reader, lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lost && r.lossless && p.status.Ended == nil {
		r.lostAt = time.Now()
	} else {
		delete(p.readers, r)
	}
	p.readerMoved.send()
}

// acknowledge records that r has all output before offset. An acknowledgement of the same
// offset restarts the grace time.
func (p *process) acknowledge(r *reader, offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if offset < r.pos || offset > p.ring.next {
		return
	}
	r.pos, r.lastSeen = offset, time.Now()
	p.readerMoved.send()
}

// read returns output from offset pos on, copied into buf. Without such output it returns a
// channel to wait on, or nil if the output has ended.
func (p *process) read(pos int64, buf []byte) (c protocol.Chunk, ok bool, more <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok = p.ring.read(pos, buf); ok {
		return c, true, nil
	}
	if p.status.Ended != nil {
		return c, false, nil
	}
	return c, false, p.moreOutput.wait()
}

// closeStdinPipe closes stdin, except for a terminal, which its pump closes.
func (p *process) closeStdinPipe() {
	if p.stdin != nil && p.stdin != p.tty {
		p.closeStdin.Do(func() { p.stdin.Close() })
	}
}

// errParked means that a write was interrupted because init is being parked.
var errParked = errors.New("init is being parked")

// write writes data to the command's stdin or terminal, and returns the number of bytes
// written. After quit is closed it continues only as long as the command reads. After parked
// is closed it stops.
func (p *process) write(data []byte, quit, parked <-chan struct{}) (taken int, err error) {
	for taken < len(data) {
		// Another writer may change the deadline, which has the same effect.
		p.stdin.SetWriteDeadline(time.Now().Add(writeTimeout))
		select {
		case <-parked: // checked after the deadline was set, which would overwrite that of requestPark
			return taken, errParked
		default:
		}
		n, err := p.stdin.Write(data[taken:])
		taken += n
		p.stdinWritten.Add(int64(n))
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return taken, fault.Newf(fault.Conflict, "exec.Stdin", string(p.id), "the command does not read its input")
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

// truncated returns argv, shortened to the size limit of a status.
func truncated(argv []string) []string {
	left := protocol.MaxStatusArgv
	for i, a := range argv {
		left -= len(a) + 1
		if left < 0 {
			cut := a[:max(0, left+len(a)+1)]
			return append(append([]string{}, argv[:i]...), strings.ToValidUTF8(cut, "")+"…")
		}
	}
	return argv
}

// written returns the number of bytes that were written to each of outs.
func (p *process) written() (n [2]int64) {
	p.readMu.Lock()
	defer p.readMu.Unlock()
	for i, f := range p.outs {
		n[i] = p.taken[i] + unread(f)
	}
	return n
}

// unread returns the number of bytes in the command's pipes or terminal.
func (p *process) unread() (sum int64) {
	for _, f := range p.outs {
		sum += unread(f)
	}
	return sum
}

// unread returns the number of bytes in a pipe or terminal, 0 if f is closed.
func unread(f *os.File) (n int64) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Control(func(fd uintptr) {
		// TIOCINQ is FIONREAD (ioctl_tty(2)), which pipes have as well (pipe(7)).
		bytes, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		n = int64(bytes)
	})
	return n
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}
