// Package network is the source of packet events. It attaches eBPF programs to the network
// interfaces of jails.
//
// The programs (network.bpf.c) are loaded once for all jails. They write a record for each
// packet, with the process that owns the socket, to the jail's own ring buffer. One goroutine
// reads all rings and sleeps while they are empty. It groups packets to flows, adds the
// resolved host names, and appends events to the log.
//
// If a ring is full, the packets that cannot be recorded are dropped or only counted,
// depending on the jail's selection. The log has a gap with their number.
//
// With Config.Pin, recording continues without a daemon until the ring is full. The next
// daemon continues where the log ends.
package network

//go:generate go tool bpf2go -tags linux -target amd64,arm64 -type record -type count -type jail -cc clang-14 -strip llvm-strip-14 -cflags "-O2 -g -Wall -Werror" network network.bpf.c

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/bits"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/spare"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// Config configures a Source.
type Config struct {
	Pin       string // directory on a BPF filesystem, created if necessary; "" ends recording with the daemon
	RingBytes int    // per jail, rounded up to a power of two; 0 is 1 MiB
	Log       *slog.Logger
}

// A Source records the packets of jails. It allocates nothing until its first use.
type Source struct {
	pin   string
	bytes uint32
	log   *slog.Logger

	mu       sync.Mutex // guards the fields below
	loaded   bool
	closed   bool
	programs networkPrograms
	maps     networkMaps
	counts   []byte
	taps     []link.Link // tracepoint links for all jails
	slots    [maxJails]bool
	strange  map[string]bool // jails pinned by another program version
	reader   *reader
	clsact   bool // this kernel has no interface links
	spares   spare.Pool[*ring]

	watches atomic.Pointer[[]*watch] // read without mu, replaced with mu
}

// maxJails must equal JAILS in network.bpf.c.
const maxJails = 4096

// New returns a Source. It has no side effects.
func New(c Config) *Source {
	s := &Source{log: c.Log, bytes: 1 << 20}
	if c.Log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if c.RingBytes > 0 {
		least := max(c.RingBytes, 1<<17, os.Getpagesize()) // the longest packet must fit
		s.bytes = 1 << bits.Len32(uint32(least-1))
	}
	if c.Pin != "" {
		s.pin = filepath.Join(c.Pin, pinVersion)
	}
	s.spares.Make, s.spares.Drop, s.spares.Keep = s.makeRing, (*ring).close, spareRings
	s.watches.Store(&[]*watch{})
	return s
}

// Name returns "network".
func (s *Source) Name() string { return "network" }

// Probe loads the programs, because the host may reject them.
func (s *Source) Probe(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.load()
}

const remedy = "run the daemon as root, or with CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_SYS_ADMIN, on Linux 5.11 or later built with CONFIG_DEBUG_INFO_BTF"

// load loads the programs once. The caller holds s.mu.
func (s *Source) load() error {
	const op = "network.Probe"
	if s.closed {
		return fault.Newf(fault.Unavailable, op, "", "the source is closed")
	}
	if s.loaded {
		return nil
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); errors.Is(err, fs.ErrNotExist) {
		return fault.Cannot(op, "the kernel has no type information: missing /sys/kernel/btf/vmlinux", remedy)
	}
	err := s.loadPrograms()
	if errors.Is(err, unix.EPERM) && rlimit.RemoveMemlock() == nil {
		err = s.loadPrograms() // before Linux 5.11, maps counted against RLIMIT_MEMLOCK
	}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, ebpf.ErrNotSupported):
		return fault.Cannot(op, err.Error(), remedy)
	case err != nil:
		return fmt.Errorf("load the packet programs: %w", err)
	}
	s.loaded = true
	return nil
}

func (s *Source) loadPrograms() (err error) {
	spec, err := loadNetwork()
	if err != nil {
		return err
	}
	if err := s.preparePins(spec); err != nil {
		return err
	}
	// Kernels before 6.3 do not report the sending and receiving process.
	cache := btf.NewCache()
	kernel, err := cache.Kernel()
	if err != nil {
		return fmt.Errorf("read the kernel's type information: %w", err)
	}
	for _, name := range []string{"sent", "received"} {
		p := spec.Programs[name]
		if _, err := kernel.AnyTypeByName("btf_trace_" + p.AttachTo); errors.Is(err, btf.ErrNotFound) {
			delete(spec.Programs, name)
		}
	}
	options := ebpf.CollectionOptions{Cache: cache}
	options.Maps.PinPath = s.hostPins()
	c, err := ebpf.NewCollectionWithOptions(spec, options)
	// Another build with the same pinVersion has pinned other maps.
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		if err := s.discardPins(s.pin); err != nil {
			return fmt.Errorf("remove incompatible pins: %w", err)
		}
		if err := s.preparePins(spec); err != nil {
			return err
		}
		c, err = ebpf.NewCollectionWithOptions(spec, options)
	}
	if err != nil {
		return fmt.Errorf("load the collection: %w", err)
	}
	defer c.Close()
	if err := s.share(c); err != nil {
		return err
	}
	s.maps = networkMaps{
		Asleep: c.DetachMap("asleep"), Counts: c.DetachMap("counts"), Jails: c.DetachMap("jails"),
		Owners: c.DetachMap("owners"), Rings: c.DetachMap("rings"),
	}
	s.programs = networkPrograms{
		Bind4: c.DetachProgram("bind4"), Bind6: c.DetachProgram("bind6"),
		Connect4: c.DetachProgram("connect4"), Connect6: c.DetachProgram("connect6"),
		Create: c.DetachProgram("create"), Send4: c.DetachProgram("send4"), Send6: c.DetachProgram("send6"),
		Egress: c.DetachProgram("egress"), EgressBare: c.DetachProgram("egress_bare"),
		Ingress: c.DetachProgram("ingress"), IngressBare: c.DetachProgram("ingress_bare"),
		Loopback: c.DetachProgram("loopback"), Sent: c.DetachProgram("sent"), Received: c.DetachProgram("received"),
	}
	return nil
}

// share maps the shared memory and reserves the slots of jails that an earlier daemon left.
func (s *Source) share(c *ebpf.Collection) (err error) {
	if s.counts, err = memory(c.Maps["counts"]); err != nil {
		return fmt.Errorf("share the counters: %w", err)
	}
	if s.reader, err = newReader(s, c.Maps["asleep"]); err != nil {
		unix.Munmap(s.counts)
		return err
	}
	return nil
}

// tap attaches the tracepoints that report the users of sockets. The caller holds s.mu.
func (s *Source) tap() error {
	if s.taps != nil {
		return nil
	}
	taps := []link.Link{}
	for name, p := range map[string]*ebpf.Program{"sent": s.programs.Sent, "received": s.programs.Received} {
		if p == nil {
			continue
		}
		l, err := s.pinned(filepath.Join(s.hostPins(), name), p, func() (link.Link, error) {
			return link.AttachTracing(link.TracingOptions{Program: p})
		})
		if err != nil {
			for _, l := range taps {
				l.Close()
			}
			return fmt.Errorf("attach the socket tracepoints: %w", err)
		}
		taps = append(taps, l)
	}
	s.taps = taps
	return nil
}

// Attach starts to record a jail's packets.
func (s *Source) Attach(ctx context.Context, t observe.Target, sink observe.Sink) (observe.Watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.load(); err != nil {
		return nil, err
	}
	if err := s.tap(); err != nil {
		return nil, err
	}
	defer s.reader.nudge()
	w, err := s.attach(ctx, t, sink)
	if err != nil {
		return nil, fmt.Errorf("record the packets of jail %s: %w", t.Jail, err)
	}
	s.setWatches(append(*s.watches.Load(), w))
	return w, nil
}

// setWatches replaces the list by a copy. The caller holds s.mu.
func (s *Source) setWatches(ws []*watch) {
	list := append([]*watch(nil), ws...)
	s.watches.Store(&list)
}

// end ends a watch. With release, pinned recording continues.
func (s *Source) end(w *watch, release bool) error {
	s.mu.Lock()
	var rest []*watch
	for _, o := range *s.watches.Load() {
		if o != w {
			rest = append(rest, o)
		}
	}
	known := len(rest) < len(*s.watches.Load())
	// The reader may still use the previous list. pass checks w.ring with w.mu held.
	s.setWatches(rest)
	s.mu.Unlock()
	if !known {
		return nil
	}
	defer s.reader.nudge()
	if release && s.pins() {
		return w.release()
	}
	err := w.detach()
	s.mu.Lock()
	// Not earlier: until detach has returned, programs may use the slot.
	s.slots[w.slot] = false
	s.mu.Unlock()
	return err
}

// Close closes the programs. Pins of released jails stay.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if !s.loaded { // the pins of a killed daemon were not needed
		if err := s.tidyPins(); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	s.spares.Close()
	for _, w := range *s.watches.Load() { // normally empty
		w.installing.Wait() // it uses the maps
	}
	// The reader ends before the memory that it uses is unmapped.
	err := s.reader.close()
	for _, l := range s.taps {
		err = errors.Join(err, l.Close())
	}
	err = errors.Join(err, unix.Munmap(s.counts), s.programs.Close(), s.maps.Close())
	return errors.Join(err, s.tidyPins())
}

// flowsLost is the gap reason for flow state lost with a killed daemon.
func (w *watch) flowsLost() {
	e := w.fresh(event.Gap, observe.Now())
	e.Source, e.Lost, e.Reason = event.Net, -1, "totals of flows were lost with the previous daemon"
	w.append(e)
}
