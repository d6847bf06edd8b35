// Package network is the source of events that sees every packet of a jail, with
// programs in the kernel at the jail's own interfaces.
//
// The programs (network.bpf.c) are loaded once for all jails. Each jail has a
// ring of its own into which they write a record for each packet that passes,
// with the process whose socket it left or will reach. One goroutine reads all
// rings and sleeps while they are empty. It tells which packets belong together,
// by which name the other side was asked for, and puts that into the log.
//
// Whatever cannot be recorded because a ring is full is dropped, so that nothing
// passes unseen, or counted, as the jail's selection says; the log has a gap that
// says how many.
//
// With Config.Pin what records outlives the daemon. It goes on until the ring is
// full, and the next daemon continues where the log ends.
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

	"glasshouse/event"
	"glasshouse/fault"
	"glasshouse/internal/spare"
	"glasshouse/observe"
)

// Config is what the daemon's configuration says.
type Config struct {
	Pin       string // a directory on a BPF file system, which need not exist; "" ends all recording with the daemon
	RingBytes int    // for each jail; made a power of two; 0 is a megabyte
	Log       *slog.Logger
}

// A Source records the packets of jails. It holds nothing until it is used.
type Source struct {
	pin   string
	bytes uint32
	log   *slog.Logger

	mu       sync.Mutex // guards what follows
	loaded   bool
	closed   bool
	programs networkPrograms
	maps     networkMaps
	counts   []byte
	taps     []link.Link // the tracepoints, for all jails
	slots    [maxJails]bool
	strange  map[string]bool // jails that were left pinned by another version
	reader   *reader
	clsact   bool // there are no links to interfaces on this kernel
	spares   spare.Pool[*ring]

	watches atomic.Pointer[[]*watch] // read without mu, replaced under it
}

// maxJails is JAILS of network.bpf.c.
const maxJails = 4096

// New returns a Source that does nothing yet.
func New(c Config) *Source {
	s := &Source{log: c.Log, bytes: 1 << 20}
	if c.Log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if c.RingBytes > 0 {
		least := max(c.RingBytes, 1<<17, os.Getpagesize()) // there must be room for the longest packet
		s.bytes = 1 << bits.Len32(uint32(least-1))
	}
	if c.Pin != "" {
		s.pin = filepath.Join(c.Pin, pinVersion)
	}
	s.spares.Make, s.spares.Drop, s.spares.Keep = s.makeRing, (*ring).close, spareRings
	s.watches.Store(&[]*watch{})
	return s
}

// Name is "network".
func (s *Source) Name() string { return "network" }

// Probe loads the programs, which is what a host may refuse.
func (s *Source) Probe(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.load()
}

const remedy = "run the daemon as root, or with CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_SYS_ADMIN, on Linux 5.11 or later built with CONFIG_DEBUG_INFO_BTF"

// load loads the programs, once. s.mu is held.
func (s *Source) load() error {
	const op = "network.Probe"
	if s.closed {
		return fault.Newf(fault.Unavailable, op, "", "the source is closed")
	}
	if s.loaded {
		return nil
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); errors.Is(err, fs.ErrNotExist) {
		return fault.Cannot(op, "the kernel does not describe itself: no /sys/kernel/btf/vmlinux", remedy)
	}
	err := s.loadPrograms()
	if errors.Is(err, unix.EPERM) && rlimit.RemoveMemlock() == nil {
		err = s.loadPrograms() // before Linux 5.11, memory of maps was locked memory
	}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, ebpf.ErrNotSupported):
		return fault.Cannot(op, err.Error(), remedy)
	case err != nil:
		return fmt.Errorf("load the programs that see packets: %w", err)
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
	// Kernels before 6.3 do not say who sends and receives.
	cache := btf.NewCache()
	kernel, err := cache.Kernel()
	if err != nil {
		return err
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
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		if err := s.discardPins(s.pin); err != nil {
			return err
		}
		if err := s.preparePins(spec); err != nil {
			return err
		}
		c, err = ebpf.NewCollectionWithOptions(spec, options)
	}
	if err != nil {
		return err
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

// share maps what the programs and the reader share, and takes the slots that
// jails left by an earlier daemon have.
func (s *Source) share(c *ebpf.Collection) (err error) {
	if s.counts, err = memory(c.Maps["counts"]); err != nil {
		return err
	}
	if s.reader, err = newReader(s, c.Maps["asleep"]); err != nil {
		unix.Munmap(s.counts)
		return err
	}
	return nil
}

// tap has the tracepoints tell who uses which socket. s.mu is held.
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
			return fmt.Errorf("see who uses sockets: %w", err)
		}
		taps = append(taps, l)
	}
	s.taps = taps
	return nil
}

// Attach begins to record a jail's packets.
func (s *Source) Attach(ctx context.Context, t observe.Target, sink observe.Sink) (observe.Watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.load(); err != nil {
		return nil, err
	}
	if err := s.tap(); err != nil {
		return nil, err
	}
	w, err := s.attach(ctx, t, sink)
	if err != nil {
		return nil, fmt.Errorf("record the packets of jail %s: %w", t.Jail, err)
	}
	s.setWatches(append(*s.watches.Load(), w))
	s.reader.nudge()
	return w, nil
}

// setWatches replaces the list by a copy. s.mu is held.
func (s *Source) setWatches(ws []*watch) {
	list := append([]*watch(nil), ws...)
	s.watches.Store(&list)
}

// end ends a watch; with release, only this daemon's part in it.
func (s *Source) end(w *watch, release bool) error {
	s.mu.Lock()
	var rest []*watch
	for _, o := range *s.watches.Load() {
		if o != w {
			rest = append(rest, o)
		}
	}
	known := len(rest) < len(*s.watches.Load())
	s.setWatches(rest)
	s.mu.Unlock()
	if !known {
		return nil
	}
	if release && s.pins() {
		return w.release()
	}
	err := w.detach()
	s.mu.Lock()
	s.slots[w.slot] = false
	s.mu.Unlock()
	return err
}

// Close lets go of the programs. What is pinned for jails that were released
// stays.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if !s.loaded { // nobody needed what a daemon may have left that was killed
		if err := s.tidyPins(); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	s.spares.Close()
	err := s.reader.close()
	for _, l := range s.taps {
		err = errors.Join(err, l.Close())
	}
	err = errors.Join(err, unix.Munmap(s.counts), s.programs.Close(), s.maps.Close())
	return errors.Join(err, s.tidyPins())
}

// flowsLost is what a daemon that was killed knew of flows.
func (w *watch) flowsLost() {
	e := w.fresh(event.Gap, observe.Now())
	e.Source, e.Lost, e.Reason = event.Net, -1, "sums of flows were lost with the daemon"
	w.append(e)
}
