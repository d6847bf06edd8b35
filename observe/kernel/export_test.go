package kernel

import (
	"sync"
	"testing"
	"time"

	"glasshouse/observe"
)

// DieBeforeListing leaves a jail in the state of a daemon that was killed after it allocated the
// jail's slot and before it started recording.
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

// DieWhileEnding leaves a jail in the state of a daemon that was killed after it removed the
// jail's rings and before it freed its slot.
func DieWhileEnding(s *Source, cgroup uint64) error {
	s.mu.Lock()
	err := s.machine.jails.Delete(cgroup)
	for i := range slotCount {
		if err == nil && s.machine.slot(i).Cgroup == cgroup {
			err = s.machine.rings.Delete(element(i, s.machine.slot(i).Second))
		}
	}
	s.mu.Unlock()
	if err == nil {
		s.die()
	}
	return err
}

// die releases all resources of the daemon. Pins stay, even if no jail is counted.
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

// Stall keeps the sweeper of a watch from reading for a time, as a busy machine may do, and returns
// how long. It has the priority of the sweeper, because other processes would prolong the stall.
func Stall(w observe.Watch, d time.Duration) (stalled time.Duration) {
	s := w.(*watch).source
	s.mu.Lock()
	sw := s.sweeper
	s.mu.Unlock()
	var done sync.WaitGroup
	done.Go(func() {
		sw.raisePriority()
		sw.round.Lock()
		defer sw.round.Unlock()
		began := time.Now()
		sleep(d)
		stalled = time.Since(began)
	})
	done.Wait()
	return stalled
}

// LoseMark calls act, during which the sweeper does not read, and then removes the mark that the
// rings of a watch have records.
func LoseMark(w observe.Watch, act func()) {
	jail := w.(*watch)
	jail.source.mu.Lock()
	sw := jail.source.sweeper
	jail.source.mu.Unlock()
	sw.round.Lock()
	defer sw.round.Unlock()
	act()
	sw.m.ctl().Dirty[jail.index] = 0
}

// SetCalmTime sets calmTime for a test, which must not run next to others.
func SetCalmTime(t *testing.T, d time.Duration) {
	old := calmTime
	calmTime = d
	t.Cleanup(func() { calmTime = old })
}

// ExchangeRings replaces the rings of a watch, as fit does.
func ExchangeRings(w observe.Watch, chunks int) error {
	jail := w.(*watch)
	jail.mu.Lock()
	jail.exchanging = true
	jail.mu.Unlock()
	return jail.exchange(chunks)
}

// RingChunks returns the number of chunks of the rings that the jail uses.
func RingChunks(w observe.Watch) int {
	jail := w.(*watch)
	jail.mu.Lock()
	defer jail.mu.Unlock()
	return jail.sets[len(jail.sets)-1].chunks
}

// RingSets returns how many sets of rings are read.
func RingSets(w observe.Watch) int {
	jail := w.(*watch)
	jail.mu.Lock()
	defer jail.mu.Unlock()
	return len(jail.sets)
}

// LargeRings returns how many bytes of larger rings are counted.
func LargeRings(s *Source) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.large.Load()
}
