package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// Flags of struct slot in trace.bpf.c.
const (
	slotFiles = 1 << iota
	slotThrottle
	slotMute
)

// A watch observes one jail. It uses a slot of the machine and a ring per CPU.
//
// +checklocksalias:state.w.mu=mu
type watch struct {
	source *Source
	m      *machine // not closed before the slot is vacated
	target observe.Target
	sink   observe.Sink
	index  int // of slot
	slot   *traceSlot
	ctl    *traceCtl

	installing sync.WaitGroup // installation and removal of rings

	mu sync.Mutex
	// +checklocks:mu
	sets []*rings // those in use are the last; earlier ones are still read. Empty after close
	// +checklocks:mu
	exchanging bool // the rings are being replaced
	// +checklocks:mu
	retiring bool // no program uses the earlier rings
	// +checklocks:mu
	busy int64 // last time at which the rings needed more than a part of a chunk
	// +checklocks:mu
	held uint64 // waits of programs for room in the rings in use
	// +checklocks:mu
	refit int64 // time before which the rings are not replaced again
	// +checklocks:mu
	pos []uint64 // read position of each ring of all sets
	// +checklocks:mu
	unsaved []mark // read, but not known to be written
	// +checklocks:mu
	kept map[key]int64 // times up to which an earlier daemon wrote events; nil once they are passed
	// +checklocks:mu
	behind bool // the last round left records because of its limit
	// +checklocks:mu
	young bool // the last round left records that were too recent
	// +checklocks:mu
	writing bool // an incomplete record is older than the limit of the round
	// +checklocks:mu
	frozen bool // the jail is frozen until the log has room
	// +checklocks:mu
	state decoding // see decode.go
	// +checklocks:mu
	recorded losses // losses recorded in the log
	// +checklocks:mu
	seen uint64 // events appended
	// +checklocks:mu
	err   error         // the error that stopped reading
	waits atomic.Uint64 // number of times the jail was throttled
	// +checklocks:mu
	scratch []*traceRecord // the next record of each ring
	// +checklocks:mu
	limits []uint64 // the end of the current round in each ring
	// +checklocks:mu
	looks []look // one per ring
}

// A mark is a position up to which the rings can be released once the event seq is written.
// The losses in it then count as recorded.
type mark struct {
	seq      uint64
	pos      []uint64
	recorded losses
	at       int64 // time of appending seq, or slightly later
}

// losses counts the records that did not fit into the rings.
type losses struct {
	count [len(sources) + 1]uint64 // by source; the last element counts records on CPUs without a ring
	at    uint64                   // time of the last gap included
}

const (
	otherSource     = len(sources) // in losses
	fullReason      = "the ring was full"
	elsewhereReason = "made on a processor that was added to the host later"
)

// slotJail returns the last jail of a slot.
func slotJail(s *traceSlot) id.Jail {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&s.Jail[0])), len(s.Jail))
	name, _, _ := bytes.Cut(b, []byte{0})
	return id.Jail(name)
}

// watch allocates a slot for a jail, or finds its existing one. The caller holds s.mu.
//
// +checklocks:s.mu
func (s *Source) watch(t observe.Target, sink observe.Sink) (*watch, error) {
	live := map[int]bool{} // slots observed by this daemon
	for _, w := range *s.watches.Load() {
		live[w.index] = true
	}
	free, own := -1, -1
	for i := range slotCount {
		sl := s.machine.slot(i)
		if sl.Cgroup != 0 && !live[i] && slotJail(sl) == t.Jail && s.machine.emptied(i) {
			if err := s.machine.vacate(i); err != nil {
				return nil, err
			}
		}
		switch {
		case sl.Cgroup == 0 && !live[i] && free < 0:
			free = i
		case sl.Cgroup == 0 || slotJail(sl) != t.Jail:
		case sl.Cgroup == t.Cgroup && live[i]:
			return nil, fault.Newf(fault.Conflict, "kernel.watch", string(t.Jail), "the cgroup is already watched")
		case sl.Cgroup == t.Cgroup:
			own = i
		case !live[i]:
			// It was restarted or rewound while no daemon ran.
			if err := s.finish(i, t.Jail, sink); err != nil {
				return nil, fmt.Errorf("collect the events of an earlier instance: %w", err)
			}
		}
	}
	switch {
	case own >= 0:
		return s.resume(own, t, sink)
	case free < 0:
		return nil, fault.Newf(fault.Exhausted, "kernel.watch", string(t.Jail), "the maximum of %d watched jails is reached", slotCount)
	}
	return s.begin(free, t, sink)
}

// finish reads the remaining records of a slot that an earlier daemon left and that is no
// longer in use. The caller holds s.mu.
//
// +checklocks:s.mu
func (s *Source) finish(i int, jail id.Jail, sink observe.Sink) error {
	if s.machine.emptied(i) {
		return s.machine.vacate(i)
	}
	w, err := s.resume(i, observe.Target{Jail: jail}, sink)
	if err != nil {
		return err
	}
	return w.end()
}

// begin starts to observe a new jail.
//
// +checklocks:s.mu
func (s *Source) begin(i int, t observe.Target, sink observe.Sink) (_ *watch, err error) {
	m := s.machine
	level, err := levels(t.CgroupDir, t.Cgroup)
	if err != nil {
		return nil, err
	}
	if m.ctl().Jails > 0 && m.ctl().Level != level {
		return nil, fault.Newf(fault.Unsupported, "kernel.begin", string(t.Jail), "the cgroup has depth %d, but all watched jails must have the same depth, now %d", level, m.ctl().Level)
	}
	depth, err := namespaceDepth(t.PID)
	if err != nil {
		return nil, err
	}
	if depth == 0 { // the programs ignore all processes of this namespace
		return nil, fault.Newf(fault.Unsupported, "kernel.begin", string(t.Jail), "process %d is in the pid namespace of the host, but a watched jail must have one of its own", t.PID)
	}
	ring, err := m.spares.Take()
	if err != nil {
		return nil, fmt.Errorf("create the rings of %s: %w", t.Jail, err)
	}
	defer ring.m.Close()
	sl := m.slot(i)
	*sl = traceSlot{Level: depth, Epoch: uint64(observe.Now())}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&sl.Jail[0])), len(sl.Jail)), t.Jail)
	w := s.newWatch(i, t, sink, ring)
	if err := w.install(ring); err != nil {
		return nil, errors.Join(fmt.Errorf("install the rings of %s: %w", t.Jail, err), w.unmap(), m.vacate(i))
	}
	if err := w.Select(t.Selection); err != nil {
		return nil, errors.Join(err, w.unmap(), m.vacate(i))
	}
	// The programs read the level only while jails is not 0. If the daemon is killed after it has
	// stored the cgroup, the next one counts the jail (recount) and adds its entry (list).
	m.ctl().Level = level
	sl.Cgroup = t.Cgroup
	atomic.AddUint32(&m.ctl().Jails, 1)
	// Recording starts here.
	if err := m.jails.Put(t.Cgroup, uint32(i)); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", t.Jail, err), w.unmap(), m.vacate(i))
	}
	if t.Resumed {
		w.recordUnwatched()
	}
	// Recording has begun, so a process that starts during this listing has two events rather
	// than none.
	w.existing()
	return w, nil
}

// recordUnwatched records a gap of unknown size for each source.
func (w *watch) recordUnwatched() {
	for _, of := range sources {
		w.sink.Append(&event.Event{Type: event.Gap, TS: time.Now().UnixMilli(), NS: observe.Now(), Source: of, Lost: -1, Reason: "not watched before"})
	}
}

// resume takes over the slot of an earlier daemon.
//
// +checklocks:s.mu
func (s *Source) resume(i int, t observe.Target, sink observe.Sink) (*watch, error) {
	sets, err := s.machine.foundRings(i)
	if err != nil {
		return nil, fmt.Errorf("open the rings of %s: %w", t.Jail, err)
	}
	w := s.newWatch(i, t, sink, sets...)
	if err := w.findRecorded(); err != nil {
		return nil, errors.Join(err, w.unmap())
	}
	// The daemon that muted the jail has exited and cannot unmute it.
	if err := w.Mute(false); err != nil {
		return nil, errors.Join(err, w.unmap())
	}
	// The path numbers were known only to the earlier daemon, so the programs report the paths
	// again.
	atomic.AddUint64(&w.slot.Moves, 1)
	if t.Cgroup != 0 {
		err := w.Select(t.Selection)
		if err == nil {
			err = w.list()
		}
		if err != nil {
			return nil, errors.Join(err, w.unmap())
		}
	}
	return w, nil
}

// list starts recording into a slot that was taken over, if the earlier daemon ended before it
// did so.
func (w *watch) list() error {
	jails, cgroup := w.m.jails, w.target.Cgroup
	var at uint32
	err := jails.Lookup(cgroup, &at)
	if err == nil {
		return nil
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = jails.Put(cgroup, uint32(w.index))
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.target.Jail, err)
	}
	w.recordUnwatched()
	w.existing()
	return nil
}

// newWatch returns a watch that reads from sets and takes ownership of their memory. The last set
// is in use.
//
// +checklocks:s.mu
func (s *Source) newWatch(i int, t observe.Target, sink observe.Sink, sets ...*rings) *watch {
	w := &watch{source: s, m: s.machine, target: t, sink: sink, index: i, slot: s.machine.slot(i), ctl: s.machine.ctl()}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range sets {
		w.add(r)
	}
	w.exchanging = len(sets) > 1
	w.retiring = w.exchanging
	w.recorded = losses{w.slot.Reported, w.slot.ReportedAt}
	w.state = newDecoding(w)
	return w
}

// findRecorded determines from the log which records in the rings and which losses an earlier
// daemon has written, so that they are not recorded again.
func (w *watch) findRecorded() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.sink.Kept(int64(w.recorded.at)+1, event.Gap, w.countRecordedGap); err != nil {
		return fmt.Errorf("read the log of %s: %w", w.target.Jail, err)
	}
	since := int64(-1)
	for i, pos := range w.pos {
		for end := atomic.LoadUint64(&w.ring(i).Head); pos != end; {
			r := w.record(i, pos)
			if r.Kind != kindPath || !r.valid() {
				if ns := int64(r.Ns); since < 0 || ns < since {
					since = ns
				}
				break
			}
			pos += uint64(r.Size) // the record that needs the path has an earlier time
		}
	}
	if since < 0 {
		return nil
	}
	kept := map[key]int64{}
	for _, of := range sources {
		err := w.sink.Kept(since, of, func(e *event.Event) {
			// An Existing event has the time of its listing. It does not show that earlier records
			// of the process were written.
			if e.Flags&event.Existing == 0 {
				kept[keyOf(e)] = max(kept[keyOf(e)], e.NS)
			}
		})
		if err != nil {
			return fmt.Errorf("read the log of %s: %w", w.target.Jail, err)
		}
	}
	w.kept = kept
	return nil
}

// ring returns the header of the ring with an index of pos.
//
// +checklocks:w.mu
func (w *watch) ring(i int) *traceRing {
	n := w.sets[0].count
	return w.sets[i/n].ring(i % n)
}

// record returns the record at a position of a ring.
//
// +checklocks:w.mu
func (w *watch) record(i int, pos uint64) *traceRecord {
	n := w.sets[0].count
	return w.sets[i/n].record(i%n, pos)
}

// Select implements observe.Watch.
func (w *watch) Select(sel event.Selection) error {
	var flags uint32
	if sel.Files != "off" {
		flags |= slotFiles
	}
	if sel.OnOverload != "count" {
		flags |= slotThrottle
	}
	w.slot.Want = wanted(sel)
	w.slot.Sample = uint32(sel.Sample)
	for {
		old := atomic.LoadUint32(&w.slot.Flags)
		if atomic.CompareAndSwapUint32(&w.slot.Flags, old, old&slotMute|flags) {
			return nil
		}
	}
}

// Mute implements observe.Watch.
func (w *watch) Mute(on bool) error {
	if on {
		atomic.OrUint32(&w.slot.Flags, slotMute)
	} else {
		atomic.AndUint32(&w.slot.Flags, ^uint32(slotMute))
	}
	return nil
}

// Drain implements observe.Watch.
func (w *watch) Drain(ctx context.Context) error {
	until := observe.Now()
	time.Sleep(finishTime) // after that the marks of programs that read the clock before until are visible
	for {
		w.drain(until)
		w.mu.Lock()
		done, err := !w.behind && !w.writing, w.err
		w.mu.Unlock()
		switch {
		case err != nil:
			return err
		case done:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		sleep(pauseTime)
	}
}

// Status implements observe.Watch.
func (w *watch) Status() observe.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := observe.Status{Seen: w.seen, Throttled: w.waits.Load()}
	for _, n := range w.recorded.count {
		st.Lost += n
	}
	for i := range w.pos {
		st.Throttled += atomic.LoadUint64(&w.ring(i).Waits)
	}
	if w.err != nil {
		st.Err = w.err.Error()
	}
	return st
}

// Close implements observe.Watch.
func (w *watch) Close() error {
	err := w.end()
	w.source.forget(w, true)
	return err
}

// end stops recording, reads the remaining records and releases the slot.
func (w *watch) end() error {
	w.mu.Lock()
	over := len(w.sets) == 0
	w.mu.Unlock()
	if over {
		return nil
	}
	if w.slot.Cgroup != 0 {
		if err := w.m.jails.Delete(w.slot.Cgroup); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("stop watching %s: %w", w.target.Jail, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	err := w.Drain(ctx)
	w.sink.FlushSoon()
	w.thaw()
	return errors.Join(err, w.unmap(), w.m.vacate(w.index))
}

// vacate releases a slot and its kernel state. Afterwards the slot can be reused.
func (m *machine) vacate(i int) error {
	sl := m.slot(i)
	sl.Epoch = 0 // invalidates the processes known to belong to the jail
	var err error
	for _, second := range []uint32{1 - sl.Second, sl.Second} { // those in use last (emptied)
		if e := m.rings.Delete(element(i, second)); !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, e)
		}
	}
	listed := sl.Cgroup != 0
	*sl = traceSlot{}
	if listed {
		atomic.AddUint32(&m.ctl().Jails, ^uint32(0))
	}
	if err != nil {
		return fmt.Errorf("free the rings: %w", err)
	}
	return nil
}

// emptied reports whether a slot has no rings: a daemon was killed while releasing it, after
// all records were written.
func (m *machine) emptied(i int) bool {
	var inner uint32
	return errors.Is(m.rings.Lookup(element(i, m.slot(i).Second), &inner), ebpf.ErrKeyNotExist)
}

// Release implements observe.Watch.
func (w *watch) Release() error {
	w.thaw() // no other component would
	err := w.unmap()
	w.source.forget(w, w.source.cfg.Pin == "")
	return err
}

func (w *watch) unmap() error {
	w.mu.Lock()
	sets := w.sets
	w.sets, w.pos, w.retiring = nil, nil, false
	w.mu.Unlock()
	w.installing.Wait()
	var errs []error
	for _, r := range sets {
		errs = append(errs, r.unmap())
	}
	return errors.Join(errs...)
}

// levels returns the depth of a cgroup in its tree.
func levels(dir string, cgroup uint64) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("find the cgroup %s: %w", dir, err)
	}
	if st.Ino != cgroup {
		return 0, fault.Newf(fault.Invalid, "kernel.levels", dir, "the cgroup has inode %d, want %d", st.Ino, cgroup)
	}
	depth := uint32(0)
	for at := dir; ; depth++ {
		up := at[:max(strings.LastIndexByte(at, '/'), 0)]
		var fs unix.Statfs_t
		if up == "" || unix.Statfs(up, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			return depth, nil
		}
		at = up
	}
}

// namespaceDepth returns the number of PID namespaces of a process below the host's.
func namespaceDepth(pid int) (uint32, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the status of the jail's init: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if pids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return uint32(len(strings.Fields(pids)) - 1), nil
		}
	}
	return 0, errors.New("the kernel does not report pids in namespaces")
}

// A key identifies a sequence of events that are in time order in the log: if one was written,
// all earlier ones were written, too.
type key struct {
	of event.Type
	by int32
	op string
}

func keyOf(e *event.Event) key {
	k := key{of: e.Type, by: e.TID}
	if e.Type != event.Syscall {
		k.op = e.Op
	}
	return k
}

// append appends an event to the log unless an earlier daemon has written it.
//
// +checklocks:w.mu
func (w *watch) append(e *event.Event) {
	if w.kept != nil && e.NS <= w.kept[keyOf(e)] {
		return
	}
	w.seen++
	w.sink.Append(e)
}

// reclaim releases the parts of rings whose events are written.
//
// +checklocks:w.mu
func (w *watch) reclaim() {
	written := w.sink.Written()
	n := 0
	for n < len(w.unsaved) && w.unsaved[n].seq <= written {
		n++
	}
	if n == 0 {
		return
	}
	last := w.unsaved[n-1]
	for i, pos := range last.pos {
		atomic.StoreUint64(&w.ring(i).Tail, pos)
	}
	w.slot.ReportedAt, w.slot.Reported = last.recorded.at, last.recorded.count
	w.unsaved = slices.Delete(w.unsaved, 0, n)
}
