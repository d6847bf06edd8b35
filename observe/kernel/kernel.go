// Package kernel observes jails with eBPF programs on the host kernel's tracepoints. It
// records system calls, their file operations, and processes.
//
// One program at the exit of every call observes all three, so they are one source. See
// trace.bpf.c for the recording and decode.go for the conversion to events.
package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/fork"
	"glasshouse/internal/spare"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// Sizes shared with trace.bpf.c.
const (
	slotCount  = 1024
	headerSize = 256
	fixedSize  = 128
	slackSize  = fixedSize + 2*4096 + 64
)

// preemptible is the kernel version from which the programs disable preemption. Linux 7.0
// requires it. Linux 6.15 is the first version whose verifier accepts calls of global functions
// while preemption is disabled.
const preemptible = 6<<16 | 15<<8

// Config configures a Source.
type Config struct {
	// Pin is a directory on a BPF filesystem. With it, recording continues when the daemon
	// ends. If it is "", recording ends with the daemon.
	Pin string

	// RingBytes is the size of the ring buffer per CPU and jail, rounded up to a power of two.
	// The default is 1 MiB. The larger it is, the longer a jail can wait for the reader before
	// events are lost: with 64 KiB at least 0.1 s, with 1 MiB at least 1 s. A jail that fills its
	// rings gets larger ones as long as the host has memory for them.
	RingBytes int

	Log *slog.Logger
}

// Source implements observe.Source. It is safe for concurrent use.
type Source struct {
	cfg  Config
	cpus int

	mu sync.Mutex
	// +checklocks:mu
	spec *ebpf.CollectionSpec
	// +checklocks:mu
	machine *machine // nil while no jail is observed
	// +checklocks:mu
	loaded *ebpf.Collection // kept while detached, because loading is slow
	// +checklocks:mu
	closed bool

	watches atomic.Pointer[[]*watch] // copy-on-write
	// +checklocks:mu
	sweeper *sweeper // runs while machine is set
}

// A machine is the attached programs and the memory that they share with the daemon.
type machine struct {
	ctls, slots, jails, rings, bell *ebpf.Map

	links    []link.Link
	ctlMem   []byte
	slotMem  []byte
	ringSize int    // size of a chunk of a ring in bytes
	count    int    // number of rings per jail
	pinned   string // pin directory, or ""
	spares   spare.Pool[*rings]
	large    atomic.Int64 // bytes of all larger rings
}

func (m *machine) ctl() *traceCtl { return (*traceCtl)(unsafe.Pointer(&m.ctlMem[0])) }

func (m *machine) slot(i int) *traceSlot {
	return &unsafe.Slice((*traceSlot)(unsafe.Pointer(&m.slotMem[0])), slotCount)[i]
}

// New returns a Source. It has no side effects.
func New(cfg Config) *Source {
	if cfg.RingBytes == 0 {
		cfg.RingBytes = 1 << 20
	}
	cfg.RingBytes = 1 << bits.Len(uint(max(cfg.RingBytes, 1<<16)-1))
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Source{cfg: cfg}
	s.watches.Store(new([]*watch))
	return s
}

// Name implements observe.Source.
func (s *Source) Name() string { return "kernel" }

// Probe implements observe.Source. It loads the programs, because this is the only reliable
// test of kernel support.
func (s *Source) Probe(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machine != nil {
		return nil
	}
	return s.load()
}

func unsupported(err error, remedy string) error {
	return &fault.Error{Op: "kernel.unsupported", On: "kernel", Kind: fault.Unsupported, Err: err, Remedy: remedy}
}

// load loads the programs without attaching them. The caller holds mu.
//
// +checklocks:s.mu
func (s *Source) load() error {
	if s.loaded != nil {
		return nil
	}
	var st unix.Stat_t
	const firstNamespace = 0xEFFFFFFC // PROC_PID_INIT_INO
	if err := unix.Stat("/proc/self/ns/pid", &st); err == nil && st.Ino != firstNamespace {
		return unsupported(errors.New("the daemon runs in its own pid namespace and cannot map the process ids that the kernel reports"),
			"run it in the host's pid namespace")
	}
	spec, err := s.prepare()
	if err != nil {
		return err
	}
	c, err := ebpf.NewCollection(spec)
	switch {
	case errors.Is(err, btf.ErrNotSupported), errors.Is(err, os.ErrNotExist):
		return unsupported(fmt.Errorf("the kernel has no type information: %w", err), "use a kernel with CONFIG_DEBUG_INFO_BTF")
	case errors.Is(err, unix.EPERM):
		return unsupported(fmt.Errorf("the kernel rejected the programs: %w", err), "run the daemon as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_RESOURCE")
	case err != nil:
		remedy := "report this error to the developers of Glasshouse: this kernel should accept the programs"
		if errors.Is(features.HaveProgramHelper(ebpf.Tracing, asm.FnLoop), ebpf.ErrNotSupported) {
			remedy = "use Linux 5.17 or newer"
		}
		return unsupported(fmt.Errorf("the kernel rejected the programs: %w", err), remedy)
	}
	s.loaded = c
	return nil
}

// prepare returns the program specification for this host and configuration.
//
// +checklocks:s.mu
func (s *Source) prepare() (*ebpf.CollectionSpec, error) {
	spec, err := loadTrace()
	if err != nil {
		return nil, fmt.Errorf("read the programs: %w", err)
	}
	s.cpus = runtime.NumCPU()
	if n, err := ebpf.PossibleCPU(); err == nil && n < 4*s.cpus {
		s.cpus = n // possible CPUs, which a VM may report in excess
	}
	rings := spec.Maps["rings"]
	rings.InnerMap = spec.Maps["ring_of_jail"].Copy()
	rings.InnerMap.ValueSize = uint32(headerSize + s.cfg.RingBytes + slackSize)
	rings.InnerMap.MaxEntries = uint32(s.cpus)
	delete(spec.Maps, "ring_of_jail")
	for name, value := range map[string]int{"ring_size": s.cfg.RingBytes, "ring_shift": bits.TrailingZeros(uint(s.cfg.RingBytes))} {
		if err := spec.Variables[name].Set(uint32(value)); err != nil {
			return nil, fmt.Errorf("set the size of the rings: %w", err)
		}
	}
	version, err := features.LinuxVersionCode()
	if err != nil {
		return nil, fmt.Errorf("read the version of the kernel: %w", err)
	}
	if err := spec.Variables["preemptible"].Set(version >= preemptible); err != nil {
		return nil, fmt.Errorf("configure whether programs disable preemption: %w", err)
	}
	s.spec = spec
	return spec, nil
}

// version names the pin directory. Pins of other program versions are incompatible.
func version() string {
	sum := sha256.Sum256(_TraceBytes)
	return hex.EncodeToString(sum[:8])
}

// start attaches the programs or takes over those attached by an earlier daemon. The caller
// holds mu.
//
// +checklocks:s.mu
func (s *Source) start() (err error) {
	if s.machine != nil {
		return nil
	}
	if s.closed {
		return fault.Newf(fault.Unavailable, "kernel.start", "kernel", "the daemon is shutting down")
	}
	m, err := s.takeOver()
	if err != nil {
		s.cfg.Log.Warn("cannot take over the programs of an earlier daemon", "err", err)
	}
	if m == nil {
		if m, err = s.attach(); err != nil {
			return err
		}
	}
	if err := m.share(); err != nil {
		m.close()
		return fmt.Errorf("share the memory of the programs: %w", err)
	}
	m.recount()
	s.machine = m
	s.sweeper, err = startSweeper(s, m)
	if err != nil {
		m.close()
		s.machine = nil
	}
	return err
}

// attach loads and attaches the programs, and pins them if configured.
//
// +checklocks:s.mu
func (s *Source) attach() (*machine, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	c := s.loaded
	s.loaded = nil // owned by the machine now
	m := &machine{ctls: c.Maps["ctls"], slots: c.Maps["slots"], jails: c.Maps["jails"], rings: c.Maps["rings"], bell: c.Maps["bell"], ringSize: s.cfg.RingBytes, count: s.cpus}
	defer closeRest(c)
	if err := fillCalls(c.Maps["calls"]); err != nil {
		m.close()
		return nil, fmt.Errorf("fill the table of system calls: %w", err)
	}
	if s.cfg.Pin != "" {
		m.pinned = filepath.Join(s.cfg.Pin, version())
		if err := os.MkdirAll(m.pinned, 0o700); err != nil {
			m.close()
			return nil, fmt.Errorf("create the pin directory: %w", err)
		}
	}
	for name, p := range c.Programs {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err == nil {
			m.links = append(m.links, l)
			if m.pinned != "" {
				err = l.Pin(filepath.Join(m.pinned, "link-"+name))
			}
		}
		if err != nil {
			m.close()
			return nil, fmt.Errorf("attach the program %s: %w", name, err)
		}
	}
	if m.pinned != "" {
		for name, mp := range m.maps() {
			if err := mp.Pin(filepath.Join(m.pinned, name)); err != nil {
				m.close()
				return nil, fmt.Errorf("pin the map %s: %w", name, err)
			}
		}
	}
	return m, nil
}

// closeRest closes the maps and programs of c that the machine does not use. The programs hold
// references to their maps.
func closeRest(c *ebpf.Collection) {
	for _, name := range []string{"ctls", "slots", "jails", "rings", "bell"} {
		delete(c.Maps, name)
	}
	c.Close()
}

func (m *machine) maps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{"ctls": m.ctls, "slots": m.slots, "jails": m.jails, "rings": m.rings, "bell": m.bell}
}

var links = []string{"enter", "leave", "fork", "exec", "gone"}

// takeOver opens the pins of an earlier daemon. It returns nil if there are none, and removes
// pins that are incomplete or of another version.
func (s *Source) takeOver() (_ *machine, err error) {
	if s.cfg.Pin == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(s.cfg.Pin)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	dir := ""
	for _, e := range entries {
		if e.Name() == version() {
			dir = filepath.Join(s.cfg.Pin, e.Name())
			continue
		}
		s.cfg.Log.Warn("removing the programs of another version; their unread events are lost", "pin", e.Name())
		if err := os.RemoveAll(filepath.Join(s.cfg.Pin, e.Name())); err != nil {
			return nil, err
		}
	}
	if dir == "" {
		return nil, nil
	}
	m := &machine{pinned: dir}
	defer func() {
		if err != nil {
			m.close() // this also removes the pins
		}
	}()
	for name, at := range map[string]**ebpf.Map{"ctls": &m.ctls, "slots": &m.slots, "jails": &m.jails, "rings": &m.rings, "bell": &m.bell} {
		if *at, err = ebpf.LoadPinnedMap(filepath.Join(dir, name), nil); err != nil {
			return nil, fmt.Errorf("open the pinned map %s: %w", name, err)
		}
	}
	for _, name := range links {
		l, err := link.LoadPinnedLink(filepath.Join(dir, "link-"+name), nil)
		if err != nil {
			return nil, fmt.Errorf("open the pinned program %s: %w", name, err)
		}
		m.links = append(m.links, l)
	}
	// The ring parameters of the programs are those of an existing ring.
	for i := range uint32(2 * slotCount) {
		r, err := m.openElement(i)
		if err != nil {
			return nil, fmt.Errorf("open a jail's rings: %w", err)
		}
		if r != nil {
			m.ringSize, m.count = int(r.chunk), r.count
			return m, r.unmap()
		}
	}
	m.close() // they observe no jail
	return nil, nil
}

// share maps the memory that the programs share with the daemon.
func (m *machine) share() (err error) {
	m.spares.Make, m.spares.Drop, m.spares.Keep = m.newRings, (*rings).close, spareRings
	if m.ctlMem, err = mapMemory(m.ctls); err != nil {
		return fmt.Errorf("map the control record: %w", err)
	}
	m.slotMem, err = mapMemory(m.slots)
	if err != nil {
		return fmt.Errorf("map the slots: %w", err)
	}
	return nil
}

// recount recomputes the number of jails, because a daemon may have been killed before
// updating it.
func (m *machine) recount() {
	n := uint32(0)
	for i := range slotCount {
		if m.slot(i).Cgroup != 0 {
			n++
		}
	}
	atomic.StoreUint32(&m.ctl().Jails, n)
}

// mapMemory maps an array map.
func mapMemory(m *ebpf.Map) ([]byte, error) {
	// The kernel pads each element to a multiple of 8 bytes (elem_size in kernel/bpf/arraymap.c).
	size := int(m.MaxEntries()) * int((m.ValueSize()+7)&^7)
	page := os.Getpagesize()
	mem, err := fork.Map(m.FD(), 0, (size+page-1)&^(page-1), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, fmt.Errorf("map memory of the kernel: %w", err)
	}
	return mem, nil
}

// release releases the machine. Pinned programs continue to run.
func (m *machine) release() {
	m.spares.Close()
	for _, mem := range []*[]byte{&m.ctlMem, &m.slotMem} {
		if *mem != nil {
			unix.Munmap(*mem)
			*mem = nil
		}
	}
	for _, l := range m.links {
		l.Close()
	}
	for _, mp := range m.maps() {
		if mp != nil {
			mp.Close()
		}
	}
}

// close detaches the programs and removes their pins.
func (m *machine) close() {
	if m.pinned != "" {
		os.RemoveAll(m.pinned)
	}
	m.release()
}

// Attach implements observe.Source.
func (s *Source) Attach(ctx context.Context, t observe.Target, sink observe.Sink) (observe.Watch, error) {
	if t.Cgroup == 0 || t.CgroupDir == "" {
		return nil, unsupported(errors.New("the jail has no cgroup v2 cgroup"), "mount cgroup2; on a host that uses cgroup v1, mount it on /sys/fs/cgroup/unified")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(); err != nil {
		return nil, err
	}
	w, err := s.watch(t, sink)
	if err != nil {
		s.stopIfIdle()
		return nil, err
	}
	list := append(append([]*watch(nil), *s.watches.Load()...), w)
	s.watches.Store(&list)
	return w, nil
}

// forget removes w from the list. When no jail is left, the programs are detached, because
// they slow down every process of the host slightly.
func (s *Source) forget(w *watch, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*watch
	for _, other := range *s.watches.Load() {
		if other != w {
			list = append(list, other)
		}
	}
	s.watches.Store(&list)
	if s.machine == nil {
		return
	}
	s.sweeper.settle() // a round may be in progress
	if idle {
		s.stopIfIdle()
	}
}

// stopIfIdle closes the machine if no slot is in use. The caller holds mu.
//
// +checklocks:s.mu
func (s *Source) stopIfIdle() {
	if s.machine == nil || s.machine.ctl().Jails > 0 {
		return
	}
	s.sweeper.stop()
	s.machine.close()
	s.machine, s.sweeper = nil, nil
}

// Collect implements observe.Collector.
func (s *Source) Collect(jail id.Jail, sink observe.Sink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machine == nil {
		if s.cfg.Pin == "" {
			return nil
		}
		if _, err := os.Stat(filepath.Join(s.cfg.Pin, version())); err != nil {
			return nil
		}
		if err := s.start(); err != nil {
			return err
		}
	}
	defer s.stopIfIdle()
	var errs []error
	for i := range slotCount { // a jail that was rewound as the daemon ended has two slots
		if sl := s.machine.slot(i); sl.Cgroup != 0 && slotJail(sl) == jail {
			errs = append(errs, s.finish(i, jail, sink))
		}
	}
	return errors.Join(errs...)
}

// Close implements observe.Source.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.machine != nil {
		s.sweeper.stop()
		for _, w := range *s.watches.Load() { // normally empty
			w.thaw()
			w.unmap()
		}
		if s.machine.pinned != "" && s.machine.ctl().Jails > 0 {
			s.machine.release() // jails keep running and are observed
		} else {
			s.machine.close()
		}
		s.machine, s.sweeper = nil, nil
	}
	if s.loaded != nil {
		s.loaded.Close()
		s.loaded = nil
	}
	return nil
}

// sources maps the loss counters of trace.bpf.c to event types.
var sources = [...]event.Type{event.Syscall, event.File, event.Proc}
