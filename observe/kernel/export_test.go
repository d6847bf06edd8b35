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
	s.die()
	return nil
}

// DieWhileEnding has s leave a jail as a daemon does that is killed when it has
// taken the jail's rings away, and not yet its slot.
func DieWhileEnding(s *Source, cgroup uint64) error {
	s.mu.Lock()
	err := s.machine.jails.Delete(cgroup)
	for i := range slotCount {
		if err == nil && s.machine.slot(i).Cgroup == cgroup {
			err = s.machine.rings.Delete(uint32(i))
		}
	}
	s.mu.Unlock()
	if err == nil {
		s.die()
	}
	return err
}

// die lets go of everything. What is pinned stays, whatever the count says.
func (s *Source) die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeper.stop()
	for _, w := range *s.watches.Load() {
		w.unmap()
	}
	s.machine.release()
	s.machine, s.sweeper = nil, nil
}
