package pages

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

var pageSize = uint64(os.Getpagesize())

// A space is one address space of which memory is missing.
type space struct {
	branch *branch
	file   []byte   // with the pages, mapped
	fd     *os.File // its userfaultfd
	soon   []uint64

	mu sync.Mutex
	// +checklocks:mu
	missing runs
	// +checklocks:mu
	waiting []uint64 // faults that could not be answered yet
	// +checklocks:mu
	next uint64 // where what was given last ends
	// +checklocks:mu
	ahead uint64 // how many pages were given then
	// +checklocks:mu
	over bool
}

// again is how long a fault waits that could not be answered: something happens
// to the address space of which there will be a message, or its jail has no
// memory left.
const again = time.Millisecond

// errGone is that of an address space whose last process has ended.
var errGone = errors.New("the process has ended")

// run answers until nothing is missing or the processes are gone.
func (s *space) run() {
	var buf [16]message
	for {
		s.mu.Lock()
		deadline := time.Time{}
		if len(s.waiting) > 0 {
			deadline = time.Now().Add(again)
		}
		s.mu.Unlock()
		s.fd.SetReadDeadline(deadline)
		err := untilReadable(s.fd)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		s.mu.Lock()
		if s.over {
			s.mu.Unlock()
			return
		}
		// Who forks, moves or discards memory waits until its message is read, and until
		// then nothing can be given. If others could give something after that and before
		// it is known here, a child would lack, for good, what its parent was given.
		n := 0
		if err == nil {
			n, err = receive(s.fd, buf[:])
		}
		for i := 0; err == nil && i < n; i++ {
			err = s.heard(&buf[i])
		}
		if err == nil {
			err = s.answer()
		}
		s.end(err)
		over := s.over
		s.mu.Unlock()
		if over || err != nil {
			return
		}
	}
}

// heard takes note of one message. The caller holds mu, as for all below.
//
// +checklocks:s.mu
func (s *space) heard(m *message) error {
	switch m.event() {
	case eventFault:
		if at := m.fault() &^ (pageSize - 1); !slices.Contains(s.waiting, at) {
			s.waiting = append(s.waiting, at)
		}
	case eventFork:
		s.branch.add(&space{branch: s.branch, file: s.file, fd: os.NewFile(uintptr(m.fork()), "userfaultfd"), missing: slices.Clone(s.missing)})
	case eventRemap:
		s.missing.move(m.arg(0), m.arg(1), m.arg(2))
	case eventRemove, eventUnmap:
		s.missing.cut(m.arg(0), m.arg(1))
	default:
		return fmt.Errorf("the kernel tells of an event %#x", m.event())
	}
	return nil
}

// answer gives what is waited for. What the kernel does not take now waits on. The caller
// holds s.mu.
//
// +checklocks:s.mu
func (s *space) answer() error {
	faults := s.waiting
	s.waiting = nil
	for i, at := range faults {
		err := s.give(at)
		switch {
		case err == unix.EAGAIN, err == unix.ENOMEM:
			s.waiting = append(s.waiting, at)
		case err != nil:
			s.waiting = append(s.waiting, faults[i:]...)
			return err
		}
	}
	return nil
}

// mostAhead bounds how many pages are given at a time to who reads in order.
const mostAhead = 16

// give gives the page at an address: that of the file, or zeros where nothing is
// missing. Who touches one page after the other is given more each time. Nobody else
// is given what he did not touch: of an interpreter that goes on, every third fault
// could be spared so, and it would have half as many pages again as it needs. The caller
// holds s.mu.
//
// +checklocks:s.mu
func (s *space) give(at uint64) error {
	r, missing := s.missing.find(at)
	var err error
	if missing {
		if s.ahead = min(2*s.ahead, mostAhead); at != s.next {
			s.ahead = 1
		}
		n := s.copy(r.part(at, min(r.End, at+s.ahead*pageSize)))
		s.next = at + max(n, pageSize)
		if n > 0 {
			s.missing.cut(at, at+n)
			return nil
		}
		// The rest may be in a mapping of its own by now.
		r = r.part(at, at+pageSize)
		_, err = copyIn(s.fd, at, s.file[r.Off:r.Off+int64(pageSize)])
	} else {
		err = zeroIn(s.fd, at, pageSize)
	}
	switch err {
	case unix.EEXIST, unix.ENOENT: // it came already, or what was there is gone
		err = wake(s.fd, at, pageSize)
	case unix.ESRCH:
		return errGone
	}
	if err == nil {
		s.missing.cut(at, at+pageSize)
	}
	return err
}

// copy gives a run, and returns how much of it the kernel takes.
func (s *space) copy(r Run) uint64 {
	n, _ := copyIn(s.fd, r.Start, s.file[r.Off:r.Off+int64(r.End-r.Start)])
	return uint64(n)
}

// fillStep is how much is given at a time that nobody has touched: faults come in
// between.
const fillStep = 1 << 20

// fill gives a part of what is missing. It reports whether the kernel takes more
// at once.
func (s *space) fill() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return true
	}
	if len(s.missing) == 0 {
		s.end(nil)
		return true
	}
	r := s.missing[0]
	r = r.part(r.Start, min(r.End, r.Start+fillStep))
	n, err := copyIn(s.fd, r.Start, s.file[r.Off:r.Off+int64(r.End-r.Start)])
	if err == unix.ENOENT { // it is in several mappings: what is at its start is in one
		n, err = copyIn(s.fd, r.Start, s.file[r.Off:r.Off+int64(pageSize)])
	}
	s.missing.cut(r.Start, r.Start+uint64(n))
	switch {
	case err == nil, err == unix.EAGAIN && n > 0:
		err = nil
	case err == unix.EEXIST, err == unix.ENOENT:
		s.missing.cut(r.Start, r.Start+pageSize)
		err = wake(s.fd, r.Start, pageSize)
	case err == unix.EAGAIN, err == unix.ENOMEM:
		return false
	case err == unix.ESRCH:
		err = errGone
	}
	s.end(err)
	return true
}

// hurry gives what others will read without waiting.
func (s *space) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.soon {
		if _, missing := s.missing.find(at); missing && !s.over {
			s.give(at &^ (pageSize - 1)) // what fails here somebody will wait for
		}
	}
}

// alive reports whether the address space has a process, and forgets it if not.
func (s *space) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	// What is not missing, and not there, holds zeros already.
	const lowest = 1 << 16 // that the kernel lets anybody map
	if zeroIn(s.fd, s.missing.present(lowest, pageSize), pageSize) == unix.ESRCH {
		s.end(errGone)
	}
	return !s.over
}

// left returns how much is missing.
func (s *space) left() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing.bytes()
}

// end lets go of the address space if it needs nobody any more, or says that its
// memory is lost: then it is kept, so that who touches it waits and finds no zeros. The
// caller holds s.mu.
//
// +checklocks:s.mu
func (s *space) end(err error) {
	switch {
	case s.over:
		return
	case err != nil && err != errGone:
		s.branch.lose(err)
		return
	case err == nil && len(s.missing) > 0:
		return
	}
	s.over = true
	s.fd.Close() // the kernel gives zeros from here on, to those who wait as well
	s.branch.drop(s)
}
