package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"glasshouse/observe"
)

const (
	// pauseTime is the polling interval while the rings contain records. Polling makes records
	// cheap: waking a thread for each would cost several times as much as the record.
	pauseTime = time.Millisecond

	// pressedTime is the polling interval while a ring is more than a quarter full. Programs wait if
	// it is more than three quarters full (reserve in trace.bpf.c).
	pressedTime = 100 * time.Microsecond

	// After idleRounds without a record the sweeper sleeps until the programs wake it.
	idleRounds = 20

	// finishTime exceeds the time until one CPU sees the stores of another, and the time that
	// most records take to write. Younger records are left for the next round, so that few
	// rounds find an incomplete one.
	finishTime = 200 * time.Microsecond

	// finishLooks is how often a round polls for an incomplete record before it leaves later
	// ones for the next round. Completion usually takes less than a microsecond.
	finishLooks = 500

	// allTime is the time between two rounds that read all rings. Other rounds read those that are
	// marked as dirty. A program on another CPU may miss that the sweeper has just removed the
	// mark, and not set it again: x86 can read the mark before its store of the record is visible
	// (Intel SDM, volume 3, section "Memory Ordering"). A barrier would prevent that, at the cost
	// of every record.
	allTime = time.Second

	endTime = 10 * time.Second
)

// A sweeper empties the rings of all jails.
type sweeper struct {
	source *Source
	m      *machine
	bell   *ringbuf.Reader
	quit   atomic.Bool
	done   sync.WaitGroup
	round  sync.Mutex // held during a round
}

func startSweeper(s *Source, m *machine) (*sweeper, error) {
	bell, err := ringbuf.NewReader(m.bell)
	if err != nil {
		return nil, fmt.Errorf("poll the bell: %w", err)
	}
	sw := &sweeper{source: s, m: m, bell: bell}
	atomic.StoreUint64(&m.ctl().Heartbeat, uint64(observe.Now()))
	sw.done.Go(sw.run)
	return sw, nil
}

func (sw *sweeper) stop() {
	sw.quit.Store(true)
	sw.bell.Close()
	sw.done.Wait()
}

// settle waits for the end of the current round.
func (sw *sweeper) settle() {
	sw.round.Lock()
	defer sw.round.Unlock()
}

func (sw *sweeper) run() {
	sw.raisePriority()
	ctl := sw.m.ctl()
	var rang ringbuf.Record
	readAll := time.Now()
	for idle := 0; !sw.quit.Load(); {
		atomic.StoreUint64(&ctl.Heartbeat, uint64(observe.Now()))
		all := time.Since(readAll) >= allTime
		if all {
			readAll = time.Now()
		}
		busy, pressed := sw.sweep(all)
		if busy {
			idle = 0
		} else {
			idle++
		}
		if idle < idleRounds {
			pause := pauseTime
			if pressed {
				pause = pressedTime
			}
			sleep(pause)
			continue
		}
		atomic.StoreUint64(&ctl.Asleep, 1)
		waitForPrograms() // the record of one that has not seen this store is visible then
		if busy, _ := sw.sweep(true); busy {
			atomic.StoreUint64(&ctl.Asleep, 0)
			idle = 0
			continue
		}
		if err := sw.bell.ReadInto(&rang); errors.Is(err, os.ErrClosed) {
			return
		}
		atomic.StoreUint64(&ctl.Asleep, 0)
		idle = 0
	}
}

// raisePriority gives the calling goroutine a thread with the highest priority: a jail must not be
// able to starve the reader of its own events. The thread exits with the goroutine.
func (sw *sweeper) raisePriority() {
	runtime.LockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20); err != nil {
		sw.source.cfg.Log.Debug("cannot raise the priority of the sweeper", "err", err)
	}
}

// sweep reads the rings of the jails that are marked as dirty, or of all jails, once. It reports
// whether there was a record, and whether a ring is more than a quarter full.
func (sw *sweeper) sweep(all bool) (busy, pressed bool) {
	sw.round.Lock()
	defer sw.round.Unlock()
	ctl, until := sw.m.ctl(), observe.Now()-int64(finishTime)
	for _, w := range *sw.source.watches.Load() {
		if ctl.Dirty[w.index] == 0 && !w.waiting(all) {
			continue
		}
		ctl.Dirty[w.index] = 0
		busy = true
		pressed = w.drain(until) || pressed
	}
	return busy, pressed
}

// waiting reports whether a jail that is not marked as dirty needs processing. With all it also
// looks for records in the rings.
func (w *watch) waiting(all bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.behind || w.young || len(w.unsaved) > 0 || w.frozen || w.hasLargeRings() || all && w.hasNew()
}

// hasNew reports whether a ring has records that were not read.
//
// +checklocks:w.mu
func (w *watch) hasNew() bool {
	for i := range w.pos {
		if atomic.LoadUint64(&w.ring(i).Head) != w.pos[i] {
			return true
		}
	}
	return false
}

// hasLargeRings reports whether the jail may have rings to free.
//
// +checklocks:w.mu
func (w *watch) hasLargeRings() bool {
	return len(w.sets) > 0 && (w.exchanging || w.sets[0].chunks > 1)
}

// drain reads the rings up to a time. It merges the records of all CPUs by time. It reports
// whether a ring is more than a quarter full although the log has room.
func (w *watch) drain(until int64) (pressed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.sets) == 0 || w.err != nil {
		w.behind, w.young, w.writing = false, false, false
		return false
	}
	defer w.relieve()
	w.reclaim()
	w.behind, w.young = !w.sink.HasRoom(), false
	if w.behind {
		return false // the rings fill, and the jail is throttled
	}
	made := w.made(until)
	w.writing, until = made < until, made
	w.young = w.writing
	w.state.begin()
	for i := range w.pos {
		w.limits[i] = atomic.LoadUint64(&w.ring(i).Head)
		w.next(i, until)
	}
	w.merge(until)
	w.state.endAllRuns()
	if !w.behind && !w.young {
		w.kept = nil // all records that an earlier daemon can have read are processed
	}
	w.recordLosses()

	w.remember()
	if w.fullest() > 1./8 {
		w.sink.FlushSoon()
	}
	w.reclaim()
	pressed = !w.behind && !w.frozen && !w.stuck() && w.fullest() > 1./4
	w.fit()
	return pressed
}

// remember stores the read positions of the rings, to be released when the events are written.
//
// +checklocks:w.mu
func (w *watch) remember() {
	m := mark{w.sink.Last(), slices.Clone(w.pos), w.recorded, observe.Now()}
	// The disk may be blocked for hours, and there is a round every millisecond.
	if n := len(w.unsaved); n > 0 && w.unsaved[n-1].seq == m.seq {
		m.at = w.unsaved[n-1].at
		w.unsaved = w.unsaved[:n-1]
	}
	w.unsaved = append(w.unsaved, m)
}

// A look describes an incomplete record that the last round found in a ring.
type look struct {
	writing uint64
	at      int64 // time of the round
	before  int64 // a time before the incomplete record was begun
}

// made returns the time up to which all records are in the rings, at most most, which is in
// the past. A program may be preempted between reading the clock and writing its record. Later
// records of other CPUs must not precede it in the log.
//
// +checklocks:w.mu
func (w *watch) made(until int64) int64 {
	// A program marks its ring before it reads the clock, but x86 can delay the store beyond that
	// (Intel SDM, volume 3, section "Memory Ordering"). A ring without a mark may therefore still
	// have received records shortly before.
	now := observe.Now() - int64(finishTime)
	for i := range w.pos {
		writing, l := &w.ring(i).Writing, &w.looks[i]
		was := atomic.LoadUint64(writing)
		done := was%2 == 0
		for n := 0; n < finishLooks && !done; n++ {
			done = atomic.LoadUint64(writing) != was
		}
		if done {
			*l = look{was, now, now}
			continue
		}
		if was != l.writing {
			l.writing, l.before = was, l.at
		}
		l.at = now
		until = min(until, l.before)
	}
	return until
}

// fullest returns the part of the fullest ring that contains records that are not released.
//
// +checklocks:w.mu
func (w *watch) fullest() float64 {
	var most float64
	for _, r := range w.sets {
		for cpu := range r.count {
			most = max(most, float64(r.used(cpu))/float64(r.size()))
		}
	}
	return most
}

// next finds the next record of a ring that belongs to this round. It decodes paths at once: a path
// precedes the record that needs it, but that has an earlier time, and the ring's records would be
// merged by the time of the path.
//
// +checklocks:w.mu
func (w *watch) next(i int, until int64) {
	w.scratch[i] = nil
	for w.pos[i] != w.limits[i] {
		r := w.record(i, w.pos[i])
		if r.Kind != kindPath || !r.valid() {
			if int64(r.Ns) > until {
				w.young = true
				return
			}
			w.scratch[i] = r
			return
		}
		w.state.path(r)
		w.pos[i] += uint64(r.Size)
	}
}

// readPaths decodes the paths in all rings.
//
// +checklocks:w.mu
func (w *watch) readPaths() {
	for i, pos := range w.pos {
		for end := atomic.LoadUint64(&w.ring(i).Head); pos != end; {
			r := w.record(i, pos)
			if !r.valid() {
				break
			}
			if r.Kind == kindPath {
				w.state.path(r)
			}
			pos += uint64(r.Size)
		}
	}
}

// valid reports whether a record has a possible size.
func (r *traceRecord) valid() bool {
	return int(r.Size) >= fixedSize && int(r.Size) <= slackSize && r.Size%8 == 0
}

// merge decodes records until no ring has one.
//
// +checklocks:w.mu
func (w *watch) merge(until int64) {
	for n := 0; ; n++ {
		first, second := -1, ^uint64(0)
		for i, r := range w.scratch {
			if r == nil {
				continue
			}
			if first < 0 || r.Ns < w.scratch[first].Ns {
				if first >= 0 {
					second = w.scratch[first].Ns
				}
				first = i
			} else if r.Ns < second {
				second = r.Ns
			}
		}
		if first < 0 {
			return
		}
		// Consecutive records are usually from the same CPU.
		for r := w.scratch[first]; r != nil && r.Ns <= second; r = w.scratch[first] {
			if !r.valid() {
				w.err = fmt.Errorf("invalid record of %d bytes in the ring of CPU %d", r.Size, first%w.sets[0].count)
				w.source.cfg.Log.Error("stopped watching a jail", "jail", w.target.Jail, "err", w.err)
				w.behind = false
				return
			}
			w.state.decode(r)
			w.pos[first] += uint64(r.Size)
			w.next(first, until)
			if n++; n%1024 == 0 {
				atomic.StoreUint64(&w.ctl.Heartbeat, uint64(observe.Now()))
				if !w.sink.HasRoom() {
					w.behind = true
					return
				}
			}
		}
	}
}

// stuckTime is how long writing events may take before the log counts as stuck.
const stuckTime = 100 * time.Millisecond

// stuck reports whether the log accepts events but does not write them. The rings keep records
// until they are written, so they fill although the log has room.
//
// +checklocks:w.mu
func (w *watch) stuck() bool {
	return len(w.unsaved) > 0 && observe.Now()-w.unsaved[0].at > int64(stuckTime)
}

// relieve freezes the jail when its rings fill because the log has no room or is stuck. It
// thaws the jail when there is room again.
//
// +checklocks:w.mu
func (w *watch) relieve() {
	most := w.fullest()
	switch {
	case !w.frozen && w.target.Freeze != nil && most > 1./2 && (w.behind || w.stuck()) && atomic.LoadUint32(&w.slot.Flags)&slotThrottle != 0:
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := w.target.Freeze(ctx); err == nil {
			w.frozen = true
			w.waits.Add(1)
		}
	case w.frozen && most < 1./4 && !w.behind:
		w.thawLocked()
	}
}

func (w *watch) thaw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.thawLocked()
}

// +checklocks:w.mu
func (w *watch) thawLocked() {
	if !w.frozen {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	if err := w.target.Thaw(ctx); err != nil {
		w.source.cfg.Log.Error("failed to thaw a throttled jail", "jail", w.target.Jail, "err", err)
		return
	}
	w.frozen = false
}

// sleep blocks the thread. It resumes sooner than a goroutine, which needs another thread to wake it.
func sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	unix.Nanosleep(&ts, nil)
}
