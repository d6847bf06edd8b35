package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/link"

	"glasshouse/observe"
	"glasshouse/observe/event"
)

// Flags of a jail, as in network.bpf.c. The last two are used when a daemon takes over.
const (
	flagRecord = 1 << iota
	flagThrottle
	flagMuted
	flagFlows
	flagReleased
)

// A watch records the packets of one jail.
type watch struct {
	source *Source
	target observe.Target
	sink   observe.Sink
	netns  uint32
	slot   uint32
	pins   string        // pin directory of the jail
	count  *networkCount // in memory shared with the programs
	links  []link.Link   // links at interfaces
	hooks  []link.Link   // links at the cgroup
	filter []filter      // filters on kernels without interface links
	ifaces map[uint32]iface
	outer  netip.Addr // host address that is translated to inner; both zero if none
	inner  netip.Addr

	installing sync.WaitGroup // installation of the ring

	mu sync.Mutex // guards the fields below and reading of ring
	// +checklocks:mu
	key       networkJail // the jail's entry in the programs' map
	ring      *ring       // nil after the end of the watch
	selection event.Selection
	talks     conversations
	names     names
	adopted   bool // an earlier daemon recorded the jail
	capture   *capture
	yielded   bool // another watch of the jail captures packet bytes
	marks     []mark
	kept      map[keep]int // records in the ring that an earlier daemon has written
	keptUntil uint64       // end position of kept
	recorded  mark
	due       int64 // NS of the next check of flows; 0 is never
	status    observe.Status
	base      observe.Status // lost and throttled counts before the watch began
	clock     int64          // offset from NS to the Unix epoch in nanoseconds
	event     event.Event    // reused for every event
}

// A mark is the ring position and the counts to commit when the event seq is written.
type mark struct {
	seq, pos        uint64
	lost, throttled uint64
}

// A keep identifies equal records.
type keep struct {
	typ           event.Type
	ns            int64
	dir, src, dst string
	bytes         int64
	lost          int64
	reason        string
}

func keepOf(e *event.Event) keep {
	return keep{e.Type, e.NS, e.Dir, e.Src, e.Dst, e.Bytes, e.Lost, e.Reason}
}

// batch bounds the records read before other jails are served.
const batch = 4096

// pass reads available records. It reports whether there were any or more remain.
func (w *watch) pass() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ring == nil {
		return false
	}
	n := w.take(batch)
	w.flows(observe.Now())
	w.commit()
	return n > 0 || !w.ring.empty()
}

// take reads up to limit records while the log has room.
func (w *watch) take(limit int) (n int) {
	// The wall clock may have been set since the previous call.
	w.clock = time.Now().UnixNano() - observe.Now()
	for ; n < limit; n++ {
		if n%64 == 0 && !w.sink.HasRoom() {
			break
		}
		b := w.ring.next()
		if b == nil {
			break
		}
		if w.kept != nil && w.ring.read > w.keptUntil {
			w.kept = nil
		}
		if r, frame, ok := decode(b); ok {
			w.missed(int64(r.Ns), extend(w.recorded.lost, r.Lost), extend(w.recorded.throttled, r.Throttled))
			w.record(r, frame)
		}
	}
	// Each record contains the counts, but a record does not have to follow a loss.
	if w.ring.empty() {
		w.missed(observe.Now(), atomic.LoadUint64(&w.count.Lost), atomic.LoadUint64(&w.count.Throttled))
	}
	if n > 0 && w.capture != nil {
		w.failed(w.capture.flush())
	}
	return n
}

// extend returns the 64-bit count with the lower half low that is not less than from, or from
// if the record is older.
func extend(from uint64, low uint32) uint64 {
	d := low - uint32(from)
	// A program reads the count before it reserves space. With several processors, a record can
	// therefore have an older count than the record before it.
	if d > 1<<31 {
		return from
	}
	return from + uint64(d)
}

// missed records a gap if the loss count has increased until ns.
func (w *watch) missed(ns int64, lost, throttled uint64) {
	if n := lost - w.recorded.lost; lost > w.recorded.lost {
		w.recorded.lost = lost
		w.gap(ns, int64(n), "the ring was full")
	}
	if n := throttled - w.recorded.throttled; throttled > w.recorded.throttled {
		w.recorded.throttled = throttled
		w.gap(ns, 0, fmt.Sprintf("throttled: %d packets were dropped, not passed, because they could not be recorded", n))
	}
}

func (w *watch) gap(ns, lost int64, reason string) {
	e := w.fresh(event.Gap, ns)
	e.Source, e.Lost, e.Reason = event.Net, lost, reason
	w.append(e)
}

func (w *watch) fresh(t event.Type, ns int64) *event.Event {
	w.event = event.Event{Type: t, Jail: w.target.Jail, NS: ns, TS: (ns + w.clock) / 1e6, FD: -1}
	return &w.event
}

func (w *watch) append(e *event.Event) {
	if w.kept != nil {
		if k := keepOf(e); w.kept[k] > 0 {
			w.kept[k]--
			return
		}
	}
	w.sink.Append(e)
	if e.Type == event.Net {
		w.status.Seen++
	}
}

// record converts a record to the events that the selection requires.
func (w *watch) record(r *networkRecord, frame []byte) {
	var flags event.Flags
	if r.Flags&injected != 0 {
		flags = event.Injected
	}
	var v *conversation
	var dir int
	owner := &r.Owner
	if owner.HostPid == 0 {
		owner = nil
	}
	if internet(r) || r.Ethertype == etherARP {
		src, dst := ends(r)
		if w.outer.IsValid() {
			src.addr, dst.addr = w.translated(src.addr), w.translated(dst.addr)
		}
		v, dir = w.between(r, src, dst)
		owner = w.learn(v, dir, r, frame, owner)
		v.add(dir, r, flags)
	}
	if w.capture != nil && w.selection.Packets > 0 {
		w.keepBytes(r, frame, owner)
	}
	if w.selection.Network == "flows" && v != nil {
		if at := v.due(); w.due == 0 || at < w.due {
			w.due = at
		}
		return
	}
	e := w.fresh(event.Net, int64(r.Ns))
	e.Flags = flags
	e.Dir, e.Proto, e.Bytes, e.Iface = directions[r.Flags&direction], protocol(r), int64(r.Len), w.ifaces[r.Ifindex].name
	if r.Segments > 1 {
		e.Packets = int64(r.Segments)
	}
	if v != nil {
		e.Src, e.Dst, e.Host, e.TCP = v.text[dir], v.text[1-dir], v.host, tcpFlags[r.Tcp]
	} else {
		e.Src, e.Dst = hardware(r.Src), hardware(r.Dst)
	}
	by(e, owner)
	w.append(e)
}

func (w *watch) translated(a netip.Addr) netip.Addr {
	if a == w.outer {
		return w.inner
	}
	return a
}

// between returns the conversation of a packet and its direction.
func (w *watch) between(r *networkRecord, src, dst end) (*conversation, int) {
	proto := r.Proto
	if r.Ethertype == etherARP {
		proto = 255 // not an assigned IP protocol number
	}
	v, dir, gone := w.talks.between(proto, src, dst)
	if v.again(r) {
		w.sum(v)
		w.talks.forget(v)
		v, dir, _ = w.talks.between(proto, src, dst)
	}
	if gone != nil {
		w.sum(gone)
	}
	return v, dir
}

// learn updates the process and the host name of a conversation. It returns the packet's
// process: the owner of its socket, or the last known owner on its side.
func (w *watch) learn(v *conversation, dir int, r *networkRecord, frame []byte, owner *networkOwner) *networkOwner {
	side := dir // the end that belongs to the process
	other := v.ends[1-dir]
	if r.Flags&direction == ingress {
		side, other = 1-dir, v.ends[dir]
	}
	switch {
	case owner == nil:
		owner = v.owner[side]
	case v.owner[side] == nil || *v.owner[side] != *owner:
		o := *owner // a copy, because the record is in the ring
		v.owner[side] = &o
	}
	if r.Worth != 0 && int(r.Payload) <= len(frame) {
		w.read(v, r, frame[r.Payload:])
	}
	if v.host == "" && v.age < w.names.age && r.Flags&direction != loopback {
		v.host, v.age = w.names.name(other.addr), w.names.age
	}
	return owner
}

// read extracts host names from the payload.
func (w *watch) read(v *conversation, r *networkRecord, b []byte) {
	host := ""
	switch r.Worth {
	case worthDNS:
		if r.Proto == protoUDP {
			answers(b, w.names.learn)
		} else {
			stream(b, func(msg []byte) { answers(msg, w.names.learn) })
		}
	case worthTLS:
		host = serverName(b)
	case worthHTTP:
		host = hostHeader(b)
	}
	if host != "" {
		if _, err := netip.ParseAddr(host); err != nil {
			v.host = host
		}
	}
}

func (w *watch) keepBytes(r *networkRecord, frame []byte, owner *networkOwner) {
	comment := ""
	if owner != nil {
		comment = fmt.Sprintf("pid %d %s", owner.Pid, comm(owner))
	}
	length := r.Len + uint32(r.Link)
	frame = frame[:min(len(frame), w.selection.Packets)]
	w.failed(w.capture.packet(r.Ifindex, int64(r.Ns)+w.clock, frame, length, r.Flags&direction == ingress, comment))
}

// failed ends the capture after an error and records a gap.
func (w *watch) failed(err error) {
	if err == nil {
		return
	}
	w.capture.f.Close()
	w.capture = nil
	w.status.Err = "capture packets: " + err.Error()
	w.source.log.Error("stopped capturing packets", "jail", w.target.Jail, "error", err)
	w.gap(observe.Now(), 0, "the capture of packet bytes has ended: "+err.Error())
}

// sum records the totals of a conversation since the last event, one event per direction.
func (w *watch) sum(v *conversation) {
	if w.selection.Network != "flows" {
		return
	}
	for dir := range v.sums {
		s := &v.sums[dir]
		if s.packets == 0 {
			continue
		}
		e := w.fresh(event.Net, s.last)
		e.Flags = s.flags
		e.Dir, e.Iface = directions[s.dir], w.ifaces[s.index].name
		e.Proto = protocol(&networkRecord{Ethertype: etherIPv4, Proto: v.proto})
		switch {
		case v.proto == 255:
			e.Proto = "arp"
		}
		e.Src, e.Dst, e.Host, e.TCP = v.text[dir], v.text[1-dir], v.host, tcpFlags[s.tcp]
		e.Packets, e.Bytes, e.Begin = s.packets, s.bytes, s.begin
		side := dir
		if s.dir == ingress {
			side = 1 - dir
		}
		by(e, v.owner[side])
		w.append(e)
		s.packets, s.bytes = 0, 0
	}
}

// flows records the flows that are due at ns.
func (w *watch) flows(ns int64) {
	if w.due == 0 || ns < w.due {
		return
	}
	w.due = 0
	w.talks.all(func(v *conversation) {
		over := v.over(ns)
		if over || ns >= v.due() {
			w.sum(v)
		}
		if over {
			w.talks.forget(v)
		} else if at := v.due(); w.due == 0 || at < w.due {
			w.due = at
		}
	})
}

// allFlows records all flows.
func (w *watch) allFlows() {
	w.talks.all(w.sum)
}

// commit releases the records whose events are written.
func (w *watch) commit() {
	at := w.recorded
	at.pos, at.seq = w.ring.read, w.sink.Last()
	last := w.ring.released()
	if n := len(w.marks); n > 0 {
		last = w.marks[n-1].pos
	}
	if at.pos != last || at.lost != w.count.SaidLost || at.throttled != w.count.SaidThrottled {
		if n := len(w.marks); n > 0 && w.marks[n-1].seq == at.seq {
			w.marks[n-1] = at
		} else if n == 0 || w.marks[n-1] != at {
			w.marks = append(w.marks, at)
		}
	}
	written := w.sink.Written()
	safe := 0
	// Without pins, no later daemon finds the ring, and records are released at once.
	for safe < len(w.marks) && (w.marks[safe].seq <= written || !w.source.pins()) {
		safe++
	}
	if safe > 0 {
		m := w.marks[safe-1]
		// A daemon that is killed between these stores reports a loss twice, but never omits it.
		w.ring.release(m.pos)
		atomic.StoreUint64(&w.count.SaidLost, m.lost)
		atomic.StoreUint64(&w.count.SaidThrottled, m.throttled)
		w.marks = append(w.marks[:0], w.marks[safe:]...)
	}
	// Records that are read but not released take space that the programs need.
	if w.ring.read-w.ring.released() > w.ring.size()/4 {
		w.sink.FlushSoon()
	}
}

// rest is called before the reader sleeps. It returns the maximum sleep time; 0 means not at
// all, and a negative time means without limit.
func (w *watch) rest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ring == nil {
		return -1
	}
	if !w.ring.empty() {
		return 0
	}
	d := time.Duration(-1)
	if w.due != 0 {
		d = time.Duration(max(w.due-observe.Now(), int64(time.Millisecond)))
	}
	if len(w.marks) > 0 {
		w.sink.FlushSoon()
		// A Sink does not report when events are written, so commit has to run again.
		if d < 0 || d > 20*time.Millisecond {
			d = 20 * time.Millisecond
		}
	}
	return d
}

// Drain waits until all packets that passed before are in the log.
func (w *watch) Drain(ctx context.Context) error {
	defer w.source.reader.nudge()
	w.mu.Lock()
	if w.ring == nil {
		w.mu.Unlock()
		return nil
	}
	// Packets that arrive during the wait do not prolong it.
	until := w.ring.written()
	for {
		w.take(batch)
		done := w.ring.read >= until
		if done {
			w.allFlows()
			w.missed(observe.Now(), atomic.LoadUint64(&w.count.Lost), atomic.LoadUint64(&w.count.Throttled))
		}
		w.commit()
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain the packets of jail %s: %w", w.target.Jail, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
		w.mu.Lock()
		if w.ring == nil {
			w.mu.Unlock()
			return nil
		}
	}
}

func (w *watch) Status() observe.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.status
	if w.ring == nil { // the slot of the counts may belong to another jail
		return s
	}
	s.Lost = atomic.LoadUint64(&w.count.Lost) - w.base.Lost
	s.Throttled = atomic.LoadUint64(&w.count.Throttled) - w.base.Throttled
	return s
}

// Select changes the selection. Earlier packets are recorded with the previous selection.
func (w *watch) Select(sel event.Selection) error {
	sel = sel.Defaults(event.Selection{})
	defer w.source.reader.nudge()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ring == nil {
		return nil
	}
	if err := w.configure(sel); err != nil {
		return err
	}
	for !w.ring.empty() && w.take(batch) > 0 {
	}
	if w.selection.Network != sel.Network {
		w.allFlows()
		w.talks, w.due = conversations{}, 0
	}
	if err := w.chooseCapture(sel); err != nil {
		return err
	}
	w.selection = sel
	w.commit()
	return nil
}

func (w *watch) chooseCapture(sel event.Selection) error {
	wanted := sel.Packets > 0 && sel.Network != "off" && !w.yielded
	if !wanted && w.capture != nil {
		err := w.capture.close()
		w.capture = nil
		if err != nil {
			return fmt.Errorf("close the capture: %w", err)
		}
		return nil
	}
	if wanted && w.capture == nil {
		c, err := openCapture(filepath.Join(w.target.Dir, "events"), w.ifaces)
		if err != nil {
			return fmt.Errorf("capture the packets of jail %s: %w", w.target.Jail, err)
		}
		w.capture = c
	}
	return nil
}

// yieldCapture ends the capture, because another watch continues the file.
func (w *watch) yieldCapture() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ring == nil {
		return nil
	}
	for !w.ring.empty() && w.take(batch) > 0 {
	}
	w.yielded = true
	return w.chooseCapture(w.selection)
}

func (w *watch) regainCapture() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.yielded = false
	if w.ring == nil {
		return nil
	}
	return w.chooseCapture(w.selection)
}

// configure writes the selection to the programs' map. The caller holds mu.
//
// +checklocks:w.mu
func (w *watch) configure(sel event.Selection) error {
	k := w.key
	k.Flags &= flagMuted
	if sel.Network != "off" {
		k.Flags |= flagRecord
	}
	if sel.Network == "flows" {
		k.Flags |= flagFlows
	}
	if sel.OnOverload != "count" {
		k.Flags |= flagThrottle
	}
	k.Snap = uint32(sel.Packets)
	return w.put(k)
}

// +checklocks:w.mu
func (w *watch) put(k networkJail) error {
	if err := w.source.maps.Jails.Put(w.netns, &k); err != nil {
		return fmt.Errorf("configure jail %s: %w", w.target.Jail, err)
	}
	w.key = k
	return nil
}

// Mute marks packets as Injected until Mute(false).
func (w *watch) Mute(on bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ring == nil {
		return nil
	}
	k := w.key
	k.Flags &^= flagMuted
	if on {
		k.Flags |= flagMuted
	}
	return w.put(k)
}

// Close ends the watch. It leaves no resources on the host.
func (w *watch) Close() error { return w.source.end(w, false) }

// Release ends the watch. If pinned, recording continues until the ring is full.
func (w *watch) Release() error { return w.source.end(w, true) }

// finish reads the remaining records, up to a limit, and releases memory.
func (w *watch) finish() error {
	// take reads nothing while the log has no room, so Drain could wait without end.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := w.Drain(ctx)

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.capture != nil {
		err = errors.Join(err, w.capture.close())
		w.capture = nil
	}
	return err
}

// counted returns the counts of a slot.
func counted(b []byte, slot uint32) *networkCount {
	return (*networkCount)(unsafe.Pointer(&b[uintptr(slot)*unsafe.Sizeof(networkCount{})]))
}
