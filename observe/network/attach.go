package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/netns"
	"glasshouse/internal/undo"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// An iface is a network interface of a jail.
type iface struct {
	name string
	bare bool // packets have no link-layer header
	loop bool
}

// A filter is a program that is attached to an interface as a traffic control filter instead
// of by a link.
type filter struct {
	index  int
	parent uint32
}

// nsID returns the inode number of a namespace.
func nsID(path string) (uint32, error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return uint32(inode(st)), nil
}

func inode(st os.FileInfo) uint64 { return st.Sys().(*syscall.Stat_t).Ino }

// netnsOf returns the path of the network namespace in which the packets of a jail are recorded.
func netnsOf(t observe.Target) string {
	if t.Netns != "" {
		return t.Netns
	}
	return ownNetns(t.PID)
}

func ownNetns(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// hooksOf returns the cgroup whose sockets are associated with processes. The sockets of a virtual
// machine are not those of the host.
func hooksOf(t observe.Target) string {
	if t.Guest {
		return ""
	}
	return t.CgroupDir
}

// attach starts to record a jail. The caller holds s.mu.
func (s *Source) attach(ctx context.Context, t observe.Target, sink observe.Sink) (_ *watch, err error) {
	const op = "network.Attach"
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	id, err := nsID(netnsOf(t))
	if err != nil {
		return nil, fault.New(fault.NotFound, op, string(t.Jail), err)
	}
	pidns, err := nsID(fmt.Sprintf("/proc/%d/ns/pid", t.PID))
	if err != nil {
		return nil, fault.New(fault.NotFound, op, string(t.Jail), err)
	}
	if own, err := nsID(ownNetns(os.Getpid())); err != nil {
		return nil, fmt.Errorf("read the host's network namespace: %w", err)
	} else if own == id {
		// The programs would record the host's packets and, with throttling, drop them.
		return nil, fault.Newf(fault.Invalid, op, string(t.Jail), "the jail uses the host's network")
	}
	for _, w := range *s.watches.Load() {
		if w.netns == id {
			return nil, fault.Newf(fault.Conflict, op, string(t.Jail), "the network is already recorded")
		}
	}

	var undone undo.Stack
	defer func() {
		if err != nil {
			err = errors.Join(err, undone.Run())
		}
	}()
	defer fault.Recover(&err)

	w := &watch{source: s, target: t, sink: sink, netns: id, selection: t.Selection.Defaults(event.Selection{})}
	if err := s.takeRing(w, &undone); err != nil {
		return nil, err
	}
	undone.Push("remove the jail from the map", func() error { return s.forget(w.netns, w.slot) })
	w.mu.Lock()
	// The ring is installed before this entry: without a ring, the programs count the packets of
	// a jail as lost, or drop them.
	w.key = networkJail{Slot: w.slot, Pidns: pidns, Half: uint32(w.ring.size() / 2)}
	err = w.configure(w.selection)
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	undone.Push("detach", w.unlink)
	if err := w.link(); err != nil {
		return nil, err
	}
	for _, other := range *s.watches.Load() {
		if other.target.Jail != t.Jail { // otherwise it is the same jail before a rewind
			continue
		}
		if err := other.yieldCapture(); err != nil {
			return nil, fmt.Errorf("pause the capture of the earlier instance: %w", err)
		}
		undone.Push("resume the capture", other.regainCapture)
	}
	if err := w.chooseCapture(w.selection); err != nil {
		return nil, err
	}
	if err := s.reader.watch(w.ring.m.FD()); err != nil {
		return nil, err
	}
	undone.Keep()
	return w, nil
}

// raw returns an address as in a packet, read as native integers.
func raw(a netip.Addr) uint32 {
	if !a.Is4() {
		return 0
	}
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func unraw(n uint32) netip.Addr {
	if n == 0 {
		return netip.Addr{}
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

// takeRing gives w the ring of an earlier daemon, or a new one.
func (s *Source) takeRing(w *watch, undone *undo.Stack) error {
	left, err := s.leftOf(w.target.Jail)
	if err != nil {
		return fmt.Errorf("list the pins of the jail: %w", err)
	}
	var own *leftover
	for i, l := range left {
		if l.netns == w.netns {
			own = &left[i]
			continue
		}
		if err := s.collect(l, w.sink); err != nil { // packets of an earlier run of the jail
			return fmt.Errorf("collect the packets of an earlier run: %w", err)
		}
	}
	if own != nil {
		return w.adopt(*own)
	}
	if s.strange[string(w.target.Jail)] {
		delete(s.strange, string(w.target.Jail))
		w.gap(observe.Now(), -1, "unread records of another version of Glasshouse were discarded")
	}
	slot, err := s.takeSlot()
	if err != nil {
		return err
	}
	undone.Push("release the slot", func() error { s.slots[slot] = false; return nil })
	if w.ring, err = s.spares.Take(); err != nil {
		return err
	}
	undone.Push("close the ring", func() error { w.installing.Wait(); w.ring.close(); w.ring = nil; return nil })
	w.slot, w.count = slot, counted(s.counts, slot)
	*w.count = networkCount{}
	if s.pins() {
		w.pins = s.pinsOf(w.target.Jail, slot, w.netns)
		undone.Push("remove the pins", func() error { return os.RemoveAll(w.pins) })
		if err := s.pinRing(w); err != nil {
			return err
		}
	}
	undone.Push("uninstall the ring", func() error { return s.uninstall(slot) })
	return w.install()
}

func (s *Source) takeSlot() (uint32, error) {
	for i := range s.slots {
		if !s.slots[i] {
			s.slots[i] = true
			return uint32(i), nil
		}
	}
	return 0, fault.Newf(fault.Exhausted, "network.Attach", "", "the maximum of %d recorded jails is reached", maxJails)
}

// install passes a jail's ring to the programs. The update takes effect immediately, but the
// system call waits for an RCU grace period of many milliseconds. Only closing the ring waits
// for it.
func (w *watch) install() error {
	rings, slot, fd := w.source.maps.Rings, w.slot, uint32(w.ring.m.FD())
	info, err := w.ring.m.Info()
	if err != nil {
		return fmt.Errorf("get information about the ring: %w", err)
	}
	want, ok := info.ID()
	if !ok {
		return rings.Put(slot, fd)
	}
	there := func() bool {
		// A lookup in an array of maps returns the ID of the inner map (kernel/bpf/map_in_map.c,
		// bpf_map_fd_sys_lookup_elem).
		var got uint32
		return rings.Lookup(slot, &got) == nil && ebpf.MapID(got) == want
	}
	if there() {
		return nil
	}
	// The kernel waits for the grace period after the update (kernel/bpf/syscall.c,
	// maybe_wait_bpf_programs), so another goroutine makes the call.
	failed := make(chan error, 1)
	w.installing.Go(func() { failed <- rings.Put(slot, fd) })
	for !there() {
		select {
		case err := <-failed:
			if err != nil {
				return fmt.Errorf("install the ring: %w", err)
			}
		default:
			runtime.Gosched()
		}
	}
	return nil
}

// uninstall removes a ring from the programs. When it returns, no program writes to it.
func (s *Source) uninstall(slot uint32) error {
	// The kernel waits for running programs (kernel/bpf/syscall.c, maybe_wait_bpf_programs).
	if err := s.maps.Rings.Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("uninstall the ring: %w", err)
	}
	return nil
}

// forget removes a jail from the map of jails, unless its namespace number was reused.
func (s *Source) forget(netns, slot uint32) error {
	var k networkJail
	if err := s.maps.Jails.Lookup(netns, &k); err != nil || k.Slot != slot {
		return nil
	}
	if err := s.maps.Jails.Delete(netns); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove the jail from the map: %w", err)
	}
	return nil
}

// enter runs f in the jail's network namespace.
func (w *watch) enter(f func() error) error {
	return netns.Do(netnsOf(w.target), func() error {
		// The process may have ended and its PID may have been reused.
		if id, err := nsID("/proc/thread-self/ns/net"); err != nil || id != w.netns {
			return fault.Newf(fault.NotFound, "network.Attach", string(w.target.Jail), "the network namespace of the jail no longer exists")
		}
		return f()
	})
}

// link attaches the programs to every interface of the jail and to its cgroup, and determines
// whether the host translates the jail's source address. The jail may be waiting, so
// independent steps run concurrently.
func (w *watch) link() error {
	var hooked, routed error
	var outer netip.Addr
	var aside sync.WaitGroup
	aside.Go(func() { w.hooks, hooked = w.hook(hooksOf(w.target)) })
	aside.Go(func() { outer, routed = w.findOuter() })
	var own []netip.Addr
	err := w.enter(func() (err error) {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open a netlink socket: %w", err)
		}
		defer h.Close()
		if err := w.linkIfaces(h); err != nil {
			return err
		}
		own, err = addresses(h)
		return err
	})
	aside.Wait()
	if err := errors.Join(err, hooked, routed); err != nil {
		return err
	}
	if len(own) > 0 && outer.IsValid() && !slices.Contains(own, outer) {
		w.outer, w.inner = outer, own[len(own)-1]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.key
	k.Outer, k.Inner = raw(w.outer), raw(w.inner)
	return w.put(k)
}

// findOuter returns the address that the host routes to its end of the veth pair, if any.
func (w *watch) findOuter() (outer netip.Addr, err error) {
	if w.target.Veth == "" {
		return outer, nil
	}
	l, err := netlink.LinkByName(w.target.Veth)
	if err != nil {
		return outer, fmt.Errorf("find link %s: %w", w.target.Veth, err)
	}
	routes, err := netns.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: l.Attrs().Index}, netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return outer, fmt.Errorf("list the routes of %s: %w", w.target.Veth, err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if ones, _ := r.Dst.Mask.Size(); ones == 32 {
			outer, _ = netip.AddrFromSlice(r.Dst.IP.To4())
		}
	}
	return outer, nil
}

// addresses returns the jail's own addresses except loopback.
func addresses(h *netlink.Handle) ([]netip.Addr, error) {
	addrs, err := netns.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var own []netip.Addr
	for _, a := range addrs {
		if ip, _ := netip.AddrFromSlice(a.IP.To4()); !ip.IsLoopback() {
			own = append(own, ip)
		}
	}
	return own, nil
}

func (w *watch) linkIfaces(h *netlink.Handle) error {
	w.ifaces = map[uint32]iface{}
	links, err := netns.Dump(h.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		if w.target.Guest && a.Name == netns.TapName {
			continue // its packets are recorded at the link, as those of other jails
		}
		i := iface{name: a.Name, loop: a.EncapType == "loopback"}
		i.bare = !i.loop && a.EncapType != "ether"
		w.ifaces[uint32(a.Index)] = i
		if err := w.linkIface(h, a.Index, i); err != nil {
			return fmt.Errorf("attach to %s: %w", a.Name, err)
		}
	}
	return nil
}

// filters reports whether programs are attached as filters instead of by links. A filter
// persists when the daemon ends, as pins require. Detaching it does not wait for three RCU
// grace periods while holding the host's network configuration lock, as a link does. A link
// ends with the daemon.
func (s *Source) filters() bool { return s.pins() || s.clsact }

// linkIface attaches to one interface in this thread's namespace.
func (w *watch) linkIface(h *netlink.Handle, index int, i iface) error {
	p := &w.source.programs
	out, in := p.Egress, p.Ingress
	switch {
	case i.loop: // outgoing loopback packets return immediately; they are recorded on egress
		out, in = p.Loopback, nil
	case i.bare:
		out, in = p.EgressBare, p.IngressBare
	}
	// The name is pinned first, so that the next daemon knows it if this one is killed after the
	// attachment.
	if err := w.pinIface(index, i.name); err != nil {
		return err
	}
	for _, at := range []struct {
		hook   ebpf.AttachType
		parent uint32
		prog   *ebpf.Program
	}{
		{ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, out},
		{ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, in},
	} {
		if at.prog == nil {
			continue
		}
		if !w.source.filters() {
			l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: at.prog, Attach: at.hook})
			if err == nil {
				w.links = append(w.links, l)
				continue
			}
			if !errors.Is(err, link.ErrNotSupported) {
				return fmt.Errorf("attach a program to interface %s: %w", i.name, err)
			}
			w.source.clsact = true // Linux before 6.6
		}
		if err := w.filterAt(h, index, at.parent, at.prog); err != nil {
			return err
		}
	}
	return nil
}

// filterPriority identifies Glasshouse's filters: "gh".
const filterPriority = 'g'<<8 | 'h'

func clsact(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

func bpfFilter(index int, parent uint32) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs:  netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: filterPriority},
		Name:         "glasshouse",
		DirectAction: true,
	}
}

func (w *watch) filterAt(h *netlink.Handle, index int, parent uint32, prog *ebpf.Program) error {
	if err := h.QdiscAdd(clsact(index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create clsact qdisc: %w", err)
	}
	f := bpfFilter(index, parent)
	f.Fd = prog.FD()
	// An earlier daemon's filter has the same priority and handle. The kernel replaces it in one
	// step (net/sched/cls_bpf.c, cls_bpf_change), so that no packet is missed.
	if err := h.FilterReplace(f); err != nil {
		return fmt.Errorf("create filter: %w", err)
	}
	w.filter = append(w.filter, filter{index, parent})
	return nil
}

// unlink detaches the programs that link attached.
func (w *watch) unlink() error {
	errs := []error{w.unhook(w.links), w.unhook(w.hooks)}
	w.links, w.hooks = nil, nil
	if len(w.filter) > 0 {
		err := w.enter(w.removeFilters)
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, fault.NotFound) && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		} // otherwise the kernel removed them with the namespace, or they have no effect
		w.filter = nil
	}
	return errors.Join(errs...)
}

func (w *watch) removeFilters() error {
	var errs []error
	at := map[int]bool{}
	for _, f := range w.filter {
		at[f.index] = true
		if err := netlink.FilterDel(bpfFilter(f.index, f.parent)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove filter: %w", err))
		}
	}
	for index := range at {
		if err := removeClsact(index); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeClsact removes the clsact qdisc if it has no filters.
func removeClsact(index int) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil // removed with everything attached
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_EGRESS, netlink.HANDLE_MIN_INGRESS} {
		fs, err := netns.Dump(func() ([]netlink.Filter, error) { return netlink.FilterList(l, parent) })
		if err != nil || len(fs) > 0 {
			return err
		}
	}
	if err := netlink.QdiscDel(clsact(index)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("remove clsact: %w", err)
	}
	return nil
}

// detach ends a watch completely.
func (w *watch) detach() error {
	s := w.source
	// The order matters: no further packets reach the programs, then no program writes to the
	// ring, and only then the rest of the ring is read.
	err := errors.Join(w.unlink(), s.uninstall(w.slot), w.finish(), s.forget(w.netns, w.slot))
	if s.pins() {
		err = errors.Join(err, os.RemoveAll(w.pins))
	}
	w.dropRing()
	return err
}

// dropRing closes the ring. No record is read afterwards.
func (w *watch) dropRing() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Lost, w.status.Throttled = atomic.LoadUint64(&w.count.Lost)-w.base.Lost, atomic.LoadUint64(&w.count.Throttled)-w.base.Throttled
	w.installing.Wait()
	w.ring.close()
	w.ring, w.talks, w.names, w.marks, w.kept = nil, conversations{}, names{}, nil, nil
}

// pin returns the path of a pin of the jail, or "".
func (w *watch) pin(name string) string {
	if !w.source.pins() {
		return ""
	}
	return filepath.Join(w.pins, name)
}
