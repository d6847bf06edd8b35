package network

import "github.com/cilium/ebpf"

// UseFilters makes s use filters instead of interface links, as on Linux before 6.6.
func UseFilters(s *Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clsact = true
}

// Rounds returns the number of polls of the rings.
func Rounds(s *Source) uint64 { return s.reader.rounds.Load() }

// Held returns the kernel objects that s holds for all jails, and the rings of jails.
func Held(s *Source) (maps []ebpf.MapID, programs []ebpf.ProgramID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []*ebpf.Map{s.maps.Asleep, s.maps.Counts, s.maps.Jails, s.maps.Owners, s.maps.Rings}
	for _, w := range *s.watches.Load() {
		all = append(all, w.ring.m)
	}
	for _, m := range all {
		if info, err := m.Info(); err == nil {
			id, _ := info.ID()
			maps = append(maps, id)
		}
	}
	p := &s.programs
	for _, p := range []*ebpf.Program{p.Loopback, p.Egress, p.Ingress, p.Create, p.Sent} {
		if info, err := p.Info(); err == nil {
			id, _ := info.ID()
			programs = append(programs, id)
		}
	}
	return maps, programs
}

// Egress returns the egress program.
func Egress(s *Source) *ebpf.Program { return s.programs.Egress }

// BreakJails makes changes of the programs' map of jails fail until repair is called.
func BreakJails(s *Source) (repair func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	intact := s.maps.Jails
	broken, err := intact.Clone()
	if err != nil {
		return nil, err
	}
	s.maps.Jails = broken
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.maps.Jails = intact
	}, broken.Close()
}
