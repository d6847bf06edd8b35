package wasi

import (
	"context"
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// Types of subscriptions (eventtype).
const (
	toClock = 0
	toRead  = 1
	toWrite = 2
)

const (
	subscriptionSize = 48
	eventSize        = 32
	mostEvents       = 4096

	forever = time.Duration(-1)
)

// A subscription is one event for which a module waits.
type subscription struct {
	data uint64
	kind uint8
	fd   int           // descriptor of the host to poll; -1: none
	wait time.Duration // timeout of a clock, from the start of the call

	due   bool
	errno errno
	bytes uint64
}

// pollOneoff waits until at least one event has occurred, and returns all that have.
func pollOneoff(c *call) errno {
	count := c.u32(2)
	if count == 0 || count > mostEvents {
		return eInval
	}
	in, ok := c.memory(c.u32(0), count*subscriptionSize)
	if !ok {
		return eFault
	}
	out, ok := c.memory(c.u32(1), count*eventSize)
	if !ok {
		return eFault
	}
	subs := make([]subscription, count)
	for i := range subs {
		if n := c.subscribe(&subs[i], in[i*subscriptionSize:]); n != eOK {
			return n
		}
	}
	if err := await(c.ctx, subs); err != nil {
		return number(err)
	}
	return c.put32(c.u32(3), putEvents(out, subs))
}

func (c *call) subscribe(s *subscription, b []byte) errno {
	s.data, s.kind, s.fd = binary.LittleEndian.Uint64(b), b[8], -1
	switch s.kind {
	case toClock:
		s.errno = s.setClock(b)
		s.due = s.errno != eOK || s.wait <= 0
		return eOK
	case toRead, toWrite:
	default:
		return eInval
	}
	f, n := c.p.file(binary.LittleEndian.Uint32(b[16:]))
	switch {
	case n != eOK:
		s.errno, s.due = n, true
	case f.stream() && f.fd >= 0:
		s.fd = f.fd
	default:
		s.due, s.bytes = true, f.left()
	}
	return eOK
}

// left returns the minimum number of bytes that can be read from a file.
func (f *file) left() uint64 {
	var st unix.Stat_t
	if f.stream() || f.kind != regular || unix.Fstat(f.fd, &st) != nil {
		return 1
	}
	at, _ := unix.Seek(f.fd, 0, unix.SEEK_CUR)
	return uint64(max(st.Size-at, 0))
}

func (s *subscription) setClock(b []byte) errno {
	id, n := clock(binary.LittleEndian.Uint32(b[16:]))
	if n != eOK {
		return n
	}
	timeout := binary.LittleEndian.Uint64(b[24:])
	switch binary.LittleEndian.Uint16(b[40:]) {
	case 0:
		s.wait = time.Duration(min(timeout, 1<<62))
	case 1:
		var now unix.Timespec
		if err := unix.ClockGettime(id, &now); err != nil {
			return number(err)
		}
		s.wait = time.Duration(int64(min(timeout, 1<<62)) - now.Nano())
	default:
		return eInval
	}
	return eOK
}

// await waits until a subscription is due. It polls the descriptors of the host at least once, even
// if another subscription is already due.
func await(ctx context.Context, subs []subscription) error {
	wait := forever
	var in, out []int
	for _, s := range subs {
		switch {
		case s.due:
			wait = 0
		case s.kind == toClock && (wait < 0 || s.wait < wait):
			wait = s.wait
		case s.kind == toRead:
			in = append(in, s.fd)
		case s.kind == toWrite:
			out = append(out, s.fd)
		}
	}
	if len(out) > 0 {
		wait = 0 // streams of the host are always writable
	}
	begun := time.Now()
	readable, err := ready(ctx, in, unix.POLLIN, wait)
	if err != nil {
		return err
	}
	if len(readable) > 0 {
		wait = min(time.Since(begun), max(wait, 0)) // the poll may have ended before the timeout
	}
	for i := range subs {
		s := &subs[i]
		switch {
		case s.kind == toClock && wait >= 0 && s.wait <= wait, s.kind == toWrite:
			s.due = true
		case s.kind == toRead && s.fd >= 0 && readable[s.fd]:
			s.due, s.bytes = true, 1
		}
	}
	return nil
}

// slice bounds a single poll, after which the context is checked.
const slice = 50 * time.Millisecond

// ready waits until descriptors of the host are ready, wait has passed, or ctx has ended. It
// returns the ready descriptors.
func ready(ctx context.Context, fds []int, events int16, wait time.Duration) (map[int]bool, error) {
	if len(fds) == 0 {
		return nil, sleep(ctx, wait)
	}
	end := time.Now().Add(wait)
	polled := make([]unix.PollFd, len(fds))
	for i, fd := range fds {
		polled[i] = unix.PollFd{Fd: int32(fd), Events: events}
	}
	for {
		next := slice
		if wait >= 0 {
			next = min(next, max(time.Until(end), 0))
		}
		n, err := unix.Poll(polled, int((next+time.Millisecond-1)/time.Millisecond))
		switch {
		case ctx.Err() != nil:
			return nil, unix.EINTR
		case err != nil && err != unix.EINTR:
			return nil, err
		case n > 0:
			found := map[int]bool{}
			for _, p := range polled {
				found[int(p.Fd)] = found[int(p.Fd)] || p.Revents != 0
			}
			return found, nil
		case wait >= 0 && !time.Now().Before(end):
			return nil, nil
		}
	}
}

// sleep waits for the given time, or until ctx ends. A negative time has no end.
func sleep(ctx context.Context, wait time.Duration) error {
	if wait == 0 {
		return nil
	}
	var after <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-after:
		return nil
	case <-ctx.Done():
		return unix.EINTR
	}
}

func putEvents(out []byte, subs []subscription) (count uint32) {
	for _, s := range subs {
		if !s.due {
			continue
		}
		e := fields(out[:eventSize])
		clear(e)
		e.u64(0, s.data)
		e.u16(8, uint16(s.errno))
		e.u8(10, s.kind)
		e.u64(16, s.bytes)
		out = out[eventSize:]
		count++
	}
	return count
}
