package network

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// spareRings are made before a jail needs them: that a jail which is taken back
// or branched off runs again does not wait for the kernel to clear a megabyte.
const spareRings = 2

// spares are the rings of jails to come.
type spares struct {
	size   uint32
	mu     sync.Mutex
	list   []*ring // guarded by mu
	closed bool    // guarded by mu
	making sync.WaitGroup
}

func (s *spares) new() (*ring, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "packets", Type: ebpf.RingBuf, MaxEntries: s.size})
	if err != nil {
		return nil, fmt.Errorf("make a ring: %w", err)
	}
	r, err := newRing(m)
	if err != nil {
		m.Close()
	}
	return r, err
}

// take returns a ring, which is the caller's, and has others made.
func (s *spares) take() (*ring, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.making.Go(s.refill)
	}
	if n := len(s.list); n > 0 {
		r := s.list[n-1]
		s.list = s.list[:n-1]
		return r, nil
	}
	return s.new()
}

// refill makes rings until there are enough to spare. That one cannot be made is
// said to whoever needs it.
func (s *spares) refill() {
	for {
		s.mu.Lock()
		enough := s.closed || len(s.list) >= spareRings
		s.mu.Unlock()
		if enough {
			return
		}
		r, err := s.new()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed || len(s.list) >= spareRings {
			r.close()
		} else {
			s.list = append(s.list, r)
		}
		s.mu.Unlock()
	}
}

func (s *spares) close() {
	s.mu.Lock()
	s.closed = true
	list := s.list
	s.list = nil
	s.mu.Unlock()
	for _, r := range list {
		r.close()
	}
	s.making.Wait()
}
