package network

// UseFilters has s do without links at interfaces, as on Linux before 6.6.
func UseFilters(s *Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clsact = true
}

// Rounds is how often the reader has looked at the rings.
func Rounds(s *Source) uint64 { return s.reader.rounds.Load() }
