package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// pinVersion must be increased when records or maps change. Pins of other versions are removed,
// because they cannot be read.
//
//	{pin}/network-2/host/                   maps and tracepoints, for all jails
//	{pin}/network-2/{jail}-{slot}-{netns}/  ring, cgroup links and interface names of a jail
//
// A jail has two of the latter directories while it is rewound.
const (
	pinVersion = "network-2"
	pinHost    = "host"
	pinRing    = "ring"
)

func (s *Source) pins() bool { return s.pin != "" }

func (s *Source) hostPins() string {
	if !s.pins() {
		return ""
	}
	return filepath.Join(s.pin, pinHost)
}

// pinsOf returns the pin directory of a jail's slot and namespace.
func (s *Source) pinsOf(jail id.Jail, slot, netns uint32) string {
	return filepath.Join(s.pin, fmt.Sprintf("%s-%x-%x", jail, slot, netns))
}

// A leftover describes the pins of a jail.
type leftover struct {
	jail        id.Jail
	slot, netns uint32
	dir         string
}

// leftovers lists the pins of all jails, including those of this daemon.
func (s *Source) leftovers() ([]leftover, error) {
	if !s.pins() {
		return nil, nil
	}
	entries, err := os.ReadDir(s.pin)
	if err != nil {
		return nil, err
	}
	var all []leftover
	for _, e := range entries {
		if e.Name() == pinHost {
			continue
		}
		l := leftover{dir: filepath.Join(s.pin, e.Name())}
		rest, netns, _ := cutLast(e.Name(), "-")
		jail, slot, _ := cutLast(rest, "-")
		_, err := fmt.Sscanf(slot+" "+netns, "%x %x", &l.slot, &l.netns)
		if l.jail = id.Jail(jail); err != nil || l.slot >= maxJails {
			return nil, fmt.Errorf("%s is not a pin directory of this package", l.dir)
		}
		all = append(all, l)
	}
	return all, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// leftOf lists the pins that an earlier daemon left of one jail. The caller holds s.mu.
func (s *Source) leftOf(jail id.Jail) ([]leftover, error) {
	all, err := s.leftovers()
	var its []leftover
	for _, l := range all {
		mine := false
		for _, w := range *s.watches.Load() {
			mine = mine || w.pins == l.dir
		}
		if l.jail == jail && !mine {
			its = append(its, l)
		}
	}
	return its, err
}

// preparePins creates the directories, removes the pins of other versions, and reserves the
// slots of pinned jails.
func (s *Source) preparePins(spec *ebpf.CollectionSpec) error {
	if !s.pins() {
		for _, m := range spec.Maps {
			m.Pinning = ebpf.PinNone
		}
		return nil
	}
	parent := filepath.Dir(s.pin)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(parent, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: parent, Err: err}
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return &fault.Error{Op: "network.Probe", On: parent, Kind: fault.Unsupported, Remedy: "mount -t bpf bpf " + parent,
			Err: errors.New("the directory is not on a BPF file system, which recording without a daemon requires")}
	}
	versions, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, v := range versions {
		if strings.HasPrefix(v.Name(), "network-") && v.Name() != pinVersion {
			if err := s.discardPins(filepath.Join(parent, v.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.MkdirAll(s.hostPins(), 0o700); err != nil {
		return err
	}
	left, err := s.leftovers()
	if err != nil {
		return err
	}
	for _, l := range left {
		_, err := os.Stat(filepath.Join(l.dir, pinRing))
		if errors.Is(err, fs.ErrNotExist) { // a daemon ended before creating the ring
			err = os.RemoveAll(l.dir)
		} else {
			s.slots[l.slot] = true
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// discardPins removes the pins in dir and records their jail.
func (s *Source) discardPins(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if s.strange == nil {
		s.strange = map[string]bool{}
	}
	for _, e := range entries {
		if head := strings.SplitN(e.Name(), "-", 3); e.Name() != pinHost && len(head) > 1 {
			s.strange[head[0]+"-"+head[1]] = true
		}
	}
	s.log.Warn("stopping packet recording by another version of Glasshouse", "pins", dir, "jails", len(entries)-1)
	return os.RemoveAll(dir)
}

// tidyPins removes the shared pins if no jail needs them.
func (s *Source) tidyPins() error {
	if !s.pins() {
		return nil
	}
	if left, err := s.leftovers(); err != nil || len(left) > 0 {
		return err
	}
	return os.RemoveAll(s.pin)
}

// pinned returns the link pinned at path, updated to prog, or a new link from attach, pinned
// at path. An empty path pins nothing.
func (s *Source) pinned(path string, prog *ebpf.Program, attach func() (link.Link, error)) (link.Link, error) {
	if !s.pins() {
		return attach()
	}
	old, err := link.LoadPinnedLink(path, nil)
	if err == nil {
		// BPF_LINK_UPDATE replaces the program of the link, which stays attached.
		if old.Update(prog) == nil {
			return old, nil
		}
		// Its cgroup was removed, or its link type cannot be updated.
		if err := errors.Join(old.Unpin(), old.Close()); err != nil {
			return nil, fmt.Errorf("remove the pin %s: %w", path, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	l, err := attach()
	if err != nil {
		return nil, err
	}
	if err := l.Pin(path); err != nil {
		l.Close()
		return nil, fmt.Errorf("pin %s: %w", path, err)
	}
	return l, nil
}

func (s *Source) pinRing(w *watch) error {
	if err := os.Mkdir(w.pins, 0o700); err != nil {
		return err
	}
	if err := w.ring.m.Pin(w.pin(pinRing)); err != nil {
		return fmt.Errorf("pin the ring: %w", err)
	}
	return nil
}

// adopt continues the recording of an earlier daemon. w takes ownership of l's map.
func (w *watch) adopt(l leftover) error {
	s := w.source
	m, err := ebpf.LoadPinnedMap(filepath.Join(l.dir, pinRing), nil)
	if err != nil {
		return fmt.Errorf("open the ring of jail %s: %w", l.jail, err)
	}
	if w.ring, err = newRing(m); err != nil {
		m.Close()
		return err
	}
	w.pins, w.adopted = l.dir, true
	w.slot, w.count = l.slot, counted(s.counts, l.slot)
	w.recorded = mark{lost: w.count.SaidLost, throttled: w.count.SaidThrottled}
	w.base = observe.Status{Lost: w.count.SaidLost, Throttled: w.count.SaidThrottled}
	w.clock = time.Now().UnixNano() - observe.Now()
	var before networkJail
	if s.maps.Jails.Lookup(l.netns, &before) != nil || before.Flags&flagReleased != 0 {
		return w.install()
	}
	// Events of flows are sums of records, so findKept could not find records in the log.
	if before.Flags&flagFlows != 0 {
		w.flowsLost()
	} else if err := w.findKept(); err != nil {
		return err
	}
	return w.install()
}

// findKept determines from the log which records of the ring are written, because the earlier
// daemon was killed before releasing them.
func (w *watch) findKept() error {
	at := w.ring.read
	defer func() { w.ring.read = at }()
	var oldest int64
	// The first record is not always the oldest: a program reads the clock before it reserves
	// space (packet in network.bpf.c), and another processor may reserve in between.
	for b := w.ring.next(); b != nil; b = w.ring.next() {
		if r, _, ok := decode(b); ok && (oldest == 0 || int64(r.Ns) < oldest) {
			oldest = int64(r.Ns)
		}
	}
	w.keptUntil = w.ring.read
	if oldest == 0 {
		return nil
	}
	w.kept = map[keep]int{}
	for _, t := range []event.Type{event.Net, event.Gap} {
		if err := w.sink.Kept(oldest, t, func(e *event.Event) { w.kept[keepOf(e)]++ }); err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
	}
	return nil
}

// release ends the watch. Pinned recording continues.
func (w *watch) release() error {
	err := w.finish()
	w.sink.FlushSoon()
	for range 2000 {
		w.mu.Lock()
		w.commit()
		rest := len(w.marks)
		w.mu.Unlock()
		if rest == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	w.mu.Lock()
	if len(w.marks) == 0 { // otherwise the next daemon determines it from the log
		k := w.key
		k.Flags |= flagReleased
		err = errors.Join(err, w.put(k))
	}
	w.mu.Unlock()
	for _, l := range slices.Concat(w.links, w.hooks) {
		err = errors.Join(err, l.Close())
	}
	w.links, w.hooks, w.filter = nil, nil, nil
	w.dropRing()
	return err
}

// Collect appends the remaining events of a stopped jail and removes its pins.
func (s *Source) Collect(jail id.Jail, sink observe.Sink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.load(); err != nil {
		return err
	}
	left, err := s.leftOf(jail)
	for _, l := range left {
		err = errors.Join(err, s.collect(l, sink))
	}
	if err != nil {
		return fmt.Errorf("collect the packets of jail %s: %w", jail, err)
	}
	return nil
}

// collect is like Collect, but for a leftover. The caller holds s.mu.
func (s *Source) collect(l leftover, sink observe.Sink) error {
	w := &watch{source: s, target: observe.Target{Jail: l.jail}, sink: sink, netns: l.netns, ifaces: pinnedIfaces(l.dir)}
	w.selection = event.Selection{}.Defaults(event.Selection{})
	var before networkJail
	if s.maps.Jails.Lookup(l.netns, &before) == nil && before.Slot == l.slot {
		w.outer, w.inner = unraw(before.Outer), unraw(before.Inner)
		if before.Flags&flagFlows != 0 {
			w.selection.Network = "flows"
		}
	}
	if err := w.adopt(l); err != nil {
		return err
	}
	err := w.detach()
	s.slots[l.slot] = false
	return err
}

// pinIface stores the name of an interface for a daemon that starts after the jail has ended.
// It is stored as a directory name, in which bpffs does not allow dots.
func (w *watch) pinIface(index int, name string) error {
	if !w.source.pins() {
		return nil
	}
	// bpffs returns EPERM for a name with a dot (kernel/bpf/inode.c, bpf_lookup).
	err := os.Mkdir(w.pin(fmt.Sprintf("%d-%s", index, strings.ReplaceAll(name, ".", "_"))), 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// pinnedIfaces returns the names stored by pinIface.
func pinnedIfaces(dir string) map[uint32]iface {
	found := map[uint32]iface{}
	entries, _ := os.ReadDir(dir) // on error, interfaces have no names
	for _, e := range entries {
		var index uint32
		head, name, ok := strings.Cut(e.Name(), "-")
		if _, err := fmt.Sscan(head, &index); err == nil && ok {
			found[index] = iface{name: name}
		}
	}
	return found
}
