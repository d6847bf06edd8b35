package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/guest"
	"glasshouse/observe/gvisor"
	"glasshouse/observe/kernel"
	"glasshouse/observe/network"
	"glasshouse/observe/ptrace"
)

// Observe configures the event recording of jails that do not configure it themselves.
type Observe struct {
	Syscalls    string   `yaml:"syscalls"` // all, security, off
	Allow       []string `yaml:"allow"`
	Ignore      []string `yaml:"ignore"`
	Sample      int      `yaml:"sample"`
	Files       string   `yaml:"files"`   // all, off
	Network     string   `yaml:"network"` // packets, flows, off
	PacketBytes int      `yaml:"packet_bytes"`
	OnOverload  string   `yaml:"on_overload"` // throttle, count

	RingKB  int      `yaml:"ring_kb"` // KiB of the ring buffer for unread events, per jail and CPU
	Sources []string `yaml:"sources"` // enabled sources: kernel, network, gvisor, guest; ptrace where kernel is unavailable
}

// sourceNames are the valid values of Observe.Sources.
var sourceNames = []string{"kernel", "network", "gvisor", "guest", "ptrace"}

func (o Observe) selection() event.Selection {
	return event.Selection{
		Syscalls: o.Syscalls, Allow: o.Allow, Ignore: o.Ignore, Sample: o.Sample, Files: o.Files,
		Network: o.Network, Packets: o.PacketBytes, OnOverload: o.OnOverload,
	}
}

// Events configures the storage of events.
type Events struct {
	Fsync     string        `yaml:"fsync"`      // none, second, segment
	SegmentMB int           `yaml:"segment_mb"` // MiB after which a segment is closed
	KeepMB    int           `yaml:"keep_mb"`    // MiB of closed segments per jail; 0 keeps all
	KeepAge   time.Duration `yaml:"keep_age"`   // maximum age of closed segments; 0 keeps all
	Share     int           `yaml:"share"`      // percentage of the file system for the logs of all jails; 0 means no limit
	Plain     bool          `yaml:"plain"`      // leave closed segments uncompressed
}

func (e Events) policy() eventlog.Policy {
	return eventlog.Policy{Fsync: e.Fsync, SegmentMB: e.SegmentMB, KeepMB: e.KeepMB, KeepAge: e.KeepAge, Plain: e.Plain}
}

// newObservers creates the event sources and the observers.
func (d *Daemon) newObservers() {
	c, pin := d.Config, ""
	may := func(source string) bool { return slices.Contains(c.Observe.Sources, source) }
	if os.Geteuid() == 0 && (may("kernel") || may("network")) {
		var err error
		if pin, err = d.mountPins(); err != nil {
			// Jails are observed nevertheless, while the daemon runs.
			d.log.Warn("jails will not be observed while no daemon runs", "err", err)
		}
	}
	ring := c.Observe.RingKB << 10
	cfg := observe.Config{Dir: filepath.Join(c.Data, "jails"), Policy: c.Events.policy(), Log: d.log.With("part", "observe"), Exec: d.programStarted, Closed: d.notes().seal}
	if may("kernel") {
		cfg.Kernel = kernel.New(kernel.Config{Pin: under(pin, "kernel"), RingBytes: ring, Log: d.log.With("part", "kernel")})
	}
	if may("network") {
		cfg.Network = network.New(network.Config{Pin: under(pin, "network"), RingBytes: ring, Log: d.log.With("part", "network")})
	}
	if may("gvisor") {
		cfg.GVisor = gvisor.New(gvisor.Config{Path: d.Config.tool("runsc"), Root: filepath.Join(c.Data, "run", "runsc", "runsc"), Log: d.log.With("part", "gvisor")})
	}
	if may("guest") {
		cfg.Guest = guest.New(guest.Config{Dir: cfg.Dir, Log: d.log.With("part", "guest")})
	}
	if may("ptrace") {
		cfg.Ptrace = &ptrace.Source{Log: d.log.With("part", "ptrace")}
	}
	d.observers = observe.NewObservers(cfg)
	d.onClose(func() error {
		err := d.observers.Close()
		if pin != "" {
			err = errors.Join(err, dropPins(pin))
		}
		return err
	})
}

func under(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// mountPins returns a directory on a BPF filesystem for this data directory. Programs pinned
// there observe jails while no daemon runs.
func (d *Daemon) mountPins() (string, error) {
	dir := filepath.Join(d.Config.Data, "run", "bpf")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create the directory for BPF pins: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", fmt.Errorf("check whether %s is a BPF filesystem: %w", dir, err)
	}
	if fs.Type == unix.BPF_FS_MAGIC {
		return dir, nil
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return "", &os.PathError{Op: "mount bpf", Path: dir, Err: err}
	}
	return dir, nil
}

// dropPins unmounts the pins if they observe no jail.
func dropPins(dir string) error {
	for _, source := range []string{"kernel", "network"} {
		entries, err := os.ReadDir(filepath.Join(dir, source))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("list the pins of source %s: %w", source, err)
		}
		if len(entries) > 0 {
			return nil
		}
	}
	if err := unix.Unmount(dir, 0); err != nil {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	return nil
}

// watcher adapts the observers to the jail manager.
type watcher struct{ o *observe.Observers }

func (w watcher) Attach(ctx context.Context, j jail.Jail, s jail.HostInfo) error {
	return w.o.Attach(ctx, target(j, s))
}

func (w watcher) Reattach(ctx context.Context, j jail.Jail, s jail.HostInfo) error {
	return w.o.Reattach(ctx, target(j, s))
}

func target(j jail.Jail, s jail.HostInfo) observe.Target {
	return observe.Target{
		Jail: j.ID, Instance: j.InstanceID, Runtime: j.Spec.Runtime, Guest: s.Guest, PID: s.PID, Cgroup: s.Cgroup, CgroupDir: s.CgroupDir, Netns: s.Netns, Veth: s.Link, Resumed: s.Reattached, ProcessesRecorded: s.Restored,
		IDs: observe.IDMap{First: j.IDs.First, Count: j.IDs.Count}, Selection: j.Spec.Observe,
		Freeze: s.Freeze, Thaw: s.Thaw, Events: s.Events,
		Usage: func(ctx context.Context, e *event.Event) error {
			st, err := s.Stats(ctx)
			if err != nil {
				return err
			}
			if st.DiskFailed {
				e.Flags |= event.ReadOnly
			}
			e.CPU, e.Memory, e.PIDs, e.Disk, e.Rx, e.Tx = int64(st.CPU), st.MemoryBytes, st.PIDs, st.DiskBytes, st.RxBytes, st.TxBytes
			return nil
		},
	}
}

func (w watcher) Select(_ context.Context, j jail.Jail) error {
	return w.o.Select(j.ID, j.Spec.Observe)
}

func (w watcher) Mute(ctx context.Context, jid id.Jail, on bool) error {
	return w.o.Mute(ctx, jid, on)
}

func (w watcher) Lineage(ctx context.Context, jid id.Jail, l jail.Lineage) (uint64, error) {
	return w.o.Lineage(ctx, jid, observe.Lineage(l))
}

func (w watcher) Mark(ctx context.Context, jid id.Jail) (jail.Marker, error) {
	m, err := w.o.Mark(ctx, jid)
	return jail.Marker{Seq: m.Seq, Private: m}, err
}

func (w watcher) Changed(ctx context.Context, jid id.Jail, since jail.Marker) (bool, error) {
	m, _ := since.Private.(observe.Mark)
	return w.o.Changed(ctx, jid, m)
}

func (w watcher) Detach(ctx context.Context, jid id.Jail) error { return w.o.Detach(ctx, jid) }
func (w watcher) CloseLog(jid id.Jail) error                    { return w.o.Forget(jid) }

// observed adapts the observers to the API.
type observed struct{ *observe.Observers }

func (o observed) Status(jid id.Jail) map[string]wire.Source {
	var all map[string]wire.Source
	for name, st := range o.Observers.Status(jid) {
		if all == nil {
			all = map[string]wire.Source{}
		}
		all[name] = wire.Source{Seen: st.Seen, Lost: st.Lost, Throttled: st.Throttled, Err: st.Err}
	}
	return all
}

// observing probes the event sources for doctor.
func observing(ctx context.Context) []wire.Probe {
	var list []wire.Probe
	add := func(name string, s observe.Source, note string) bool {
		err := s.Probe(ctx)
		err = errors.Join(err, s.Close())
		p := probeOf(name, err)
		if err == nil {
			p.Detail = note
		}
		list = append(list, p)
		return err == nil
	}
	seen := add("observe: calls, files, processes", kernel.New(kernel.Config{}), "eBPF programs; all calls, a few hundred nanoseconds per call")
	add("observe: packets", network.New(network.Config{}), "eBPF programs on the jails' network interfaces")
	note := ptrace.Note
	if seen {
		note = "not needed here; " + note
	}
	add("observe: fallback", &ptrace.Source{}, note)
	return list
}
