package network

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"glasshouse/observe"
)

// A reader is the goroutine that reads the rings of all jails.
//
// While packets arrive it polls the rings every millisecond. Programs do not wake it unless a
// ring is half full, because a wakeup costs more than all other processing of a packet. When
// all rings are empty, it sleeps until the next packet.
type reader struct {
	source *Source
	shared []byte
	state  *uint64
	beat   *uint64 // time of the last poll
	epoll  int
	waking sync.RWMutex // held for reading while wake is written to, for writing while it is closed
	wake   int          // an eventfd, or -1
	done   chan struct{}
	stop   atomic.Bool
	rounds atomic.Uint64 // number of polls; for tests
}

func newReader(s *Source, state *ebpf.Map) (_ *reader, err error) {
	r := &reader{source: s, epoll: -1, wake: -1, done: make(chan struct{})}
	defer func() {
		if err != nil {
			r.free()
		}
	}()
	if r.shared, err = memory(state); err != nil {
		return nil, fmt.Errorf("share the state of the reader: %w", err)
	}
	r.state, r.beat = word(r.shared), word(r.shared[8:])
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if err := r.watch(r.wake); err != nil {
		return nil, err
	}
	go r.run()
	return r, nil
}

// watch makes fd wake the reader.
func (r *reader) watch(fd int) error {
	// Edge-triggered, because a ring is readable until its records are released
	// (kernel/bpf/ringbuf.c, ringbuf_map_poll_kern), which is after the log is written.
	err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)})
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// nudge wakes the reader. It must be called after another goroutine has released records or closed
// a ring: a program that has woken the reader wakes it only once, and epoll discards the wakeup if
// the ring has no records when the reader's thread resumes.
func (r *reader) nudge() {
	r.waking.RLock()
	defer r.waking.RUnlock()
	unix.Write(r.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// States of the reader, as in network.bpf.c.
const (
	awake = iota
	asleep
	napping
)

const (
	pace  = time.Millisecond
	empty = 3 // rounds without a packet before the reader sleeps
)

func (r *reader) run() {
	defer close(r.done)
	for idle := 0; !r.stop.Load(); {
		busy := false
		r.rounds.Add(1)
		// A program that finds a full ring takes the daemon for dead if this time is too old
		// (STALE in network.bpf.c).
		atomic.StoreUint64(r.beat, uint64(observe.Now()))
		for _, w := range *r.source.watches.Load() {
			busy = w.pass() || busy
		}
		if idle++; busy {
			idle = 0
		}
		if idle < empty {
			atomic.StoreUint64(r.state, napping)
			r.wait(pace)
		} else {
			// The state is set before rest looks at the rings, and a program reads the state after
			// its reservation (wakeup_flags in network.bpf.c). So no wakeup is missed.
			atomic.StoreUint64(r.state, asleep)
			if d := r.rest(); d != 0 {
				r.wait(d)
			}
		}
		atomic.StoreUint64(r.state, awake)
	}
}

// rest returns how long the reader may sleep.
func (r *reader) rest() time.Duration {
	least := time.Duration(-1)
	for _, w := range *r.source.watches.Load() {
		d := w.rest()
		if d == 0 {
			return 0
		}
		if d > 0 && (least < 0 || d < least) {
			least = d
		}
	}
	return least
}

// wait waits for a packet, for a nudge, or, if d is not negative, for d.
func (r *reader) wait(d time.Duration) {
	ms := -1
	if d >= 0 {
		// epoll_wait(2) takes milliseconds. A short time rounded down to 0 would not sleep at all.
		ms = int((d + time.Millisecond - 1) / time.Millisecond)
	}
	var events [16]unix.EpollEvent
	n, _ := unix.EpollWait(r.epoll, events[:], ms)
	for _, e := range events[:max(n, 0)] {
		if int(e.Fd) == r.wake {
			var b [8]byte
			unix.Read(r.wake, b[:])
		}
	}
}

func (r *reader) close() error {
	r.stop.Store(true)
	r.nudge()
	// The goroutine uses the descriptors and the shared memory that free releases.
	<-r.done
	return r.free()
}

func (r *reader) free() (err error) {
	r.waking.Lock()
	defer r.waking.Unlock()
	for _, fd := range []*int{&r.epoll, &r.wake} {
		if *fd >= 0 {
			err = errors.Join(err, unix.Close(*fd))
			*fd = -1
		}
	}
	if r.shared != nil {
		err = errors.Join(err, unix.Munmap(r.shared))
	}
	return err
}
