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

// A space is one address space with missing memory.
type space struct {
	branch *branch
	file   []byte   // mapped pages file
	fd     *os.File // its userfaultfd
	soon   []uint64

	mu sync.Mutex
	// +checklocks:mu
	missing runs
	// +checklocks:mu
	waiting []uint64 // faults that could not be resolved yet
	// +checklocks:mu
	next uint64 // end of the last loaded range
	// +checklocks:mu
	ahead uint64 // number of pages in the last loaded range
	// +checklocks:mu
	over bool
}

// again is the retry interval of a fault that could not be resolved: an event about the
// address space is pending, or the jail is out of memory.
const again = time.Millisecond

// errGone means that the last process of the address space has exited.
var errGone = errors.New("the process has ended")

// run resolves faults until nothing is missing or the processes have exited.
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
		// A thread that forks, remaps or discards memory blocks until its event is read, and
		// UFFDIO_COPY fails with EAGAIN meanwhile (mm/userfaultfd.c). Events must be
		// processed before further pages are loaded: otherwise a child would permanently lack
		// pages that its parent got.
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

// heard processes one event. The caller holds mu, as for all methods below.
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
		return fmt.Errorf("unexpected userfaultfd event %#x", m.event())
	}
	return nil
}

// answer resolves the pending faults. Faults that the kernel rejects for now stay pending. The
// caller holds s.mu.
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

// mostAhead limits the read-ahead of sequential access, in pages.
const mostAhead = 16

// give loads the page at an address: from the file, or zeros if nothing is missing there.
// Sequential access gets increasing read-ahead. Other access gets none: for a restored
// interpreter it would save a third of the faults but load 50 % more pages. The caller holds
// s.mu.
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
		// The rest may be in another mapping now.
		r = r.part(at, at+pageSize)
		_, err = copyIn(s.fd, at, s.file[r.Off:r.Off+int64(pageSize)])
	} else {
		err = zeroIn(s.fd, at, pageSize)
	}
	switch err {
	case unix.EEXIST, unix.ENOENT: // already loaded, or unmapped
		err = wake(s.fd, at, pageSize)
	case unix.ESRCH:
		return errGone
	}
	if err == nil {
		s.missing.cut(at, at+pageSize)
	}
	return err
}

// copy loads a run and returns the number of bytes that the kernel accepted.
func (s *space) copy(r Run) uint64 {
	n, _ := copyIn(s.fd, r.Start, s.file[r.Off:r.Off+int64(r.End-r.Start)])
	return uint64(n)
}

// fillStep is the number of untouched bytes that are loaded per step, so that faults can be
// resolved in between.
const fillStep = 1 << 20

// fill loads a part of the missing memory. It reports whether the kernel accepts more
// immediately.
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
	if err == unix.ENOENT { // the range spans several mappings: load from its start
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

// hurry loads the pages that the kernel reads without waiting.
func (s *space) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.soon {
		if _, missing := s.missing.find(at); missing && !s.over {
			s.give(at &^ (pageSize - 1)) // a failed page is loaded when it is touched
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
	// A page that is neither missing nor present reads as zeros anyway.
	const lowest = 1 << 16 // above vm.mmap_min_addr, so that the page may be mapped
	if zeroIn(s.fd, s.missing.present(lowest, pageSize), pageSize) == unix.ESRCH {
		s.end(errGone)
	}
	return !s.over
}

// left returns the number of missing bytes.
func (s *space) left() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing.bytes()
}

// end releases the address space if nothing is missing or its processes have exited. For another
// error it reports that the memory is lost and keeps the userfaultfd open, so that processes that
// touch a missing page block instead of reading zeros. The caller holds s.mu.
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
	s.fd.Close() // after this, missing pages read as zeros, also for blocked threads (userfaultfd(2))
	s.branch.drop(s)
}
