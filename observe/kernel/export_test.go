package kernel

// DieBeforeListing has s leave a jail as a daemon does that is killed when it has
// given the jail a slot, and has not yet said so to the programs.
func DieBeforeListing(s *Source, cgroup uint64) error {
	s.mu.Lock()
	err := s.machine.jails.Delete(cgroup)
	s.machine.ctl().Jails--
	s.mu.Unlock()
	if err != nil {
		return err
	}
	// What is pinned stays, whatever the count says.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeper.stop()
	for _, w := range *s.watches.Load() {
		w.unmap()
	}
	s.machine.release()
	s.machine, s.sweeper = nil, nil
	return nil
}
