package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
)

// Config configures Observers.
type Config struct {
	Dir    string // {DATA}/jails
	Policy eventlog.Policy
	Log    *slog.Logger

	// Kernel, Network, GVisor, Guest and Ptrace are the sources; each may be nil. Ptrace is used if
	// Kernel is not supported.
	Kernel, Network, GVisor, Guest, Ptrace Source

	// Exec, if set, is called for every program that a process of a jail starts, when its
	// event is read. It delays the reader of events. It must not retain e.
	Exec func(jid id.Jail, e *event.Event)

	// Closed, if set, is called for every segment of a jail's log that is complete: when it is
	// closed and, with found set, whenever the log is opened.
	Closed func(jid id.Jail, s eventlog.Segment, found bool)
}

const (
	// usageTime is the interval between two usage samples of a jail.
	usageTime = 5 * time.Second

	// usageStep is the minimum CPU time between two recorded samples, so that an idle jail
	// records none.
	usageStep = int64(5 * time.Millisecond)

	drainTime = 5 * time.Second
)

// Observers attaches the sources that this host supports to each jail and keeps the logs of
// the jails. It is safe for concurrent use, also for one jail.
type Observers struct {
	cfg  Config
	stop chan struct{}
	wg   sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	jails map[id.Jail]*observed
	// +checklocks:mu
	forgotten map[id.Jail]bool // whose files may still exist
	// +checklocks:mu
	closed bool
}

// observed is the state of one jail.
type observed struct {
	log *eventlog.Log

	mu      sync.Mutex // also serializes changes
	target  Target
	watches map[string]Watch // by source name; nil if the jail is not running
	lacks   map[string]error // sources that should observe the jail but cannot, by name
	body    int              // number of instances so far
	paused  bool             // muted, with the tracer detached
	cpu     int64            // CPU time of the last usage sample
	flags   event.Flags      // flags of that sample
	gone    bool
	closing sync.WaitGroup // closing of watches of earlier instances

	activity activity
	exec     func(*event.Event) // may be nil
}

// sink is a log as a Sink.
type sink struct {
	*eventlog.Log
	activity *activity
	exec     func(*event.Event) // may be nil
}

// Append implements Sink.
func (s sink) Append(e *event.Event) {
	s.activity.count(e)
	s.Log.Append(e)
	if s.exec != nil && e.Type == event.Proc && e.Op == event.OpExec && e.Flags&(event.Injected|event.Existing) == 0 {
		s.exec(e)
	}
}

func (j *observed) sink() sink { return sink{j.log, &j.activity, j.exec} }

func (s sink) Kept(since int64, of event.Type, each func(*event.Event)) error {
	c, err := s.Recent(since, of)
	if err != nil {
		return fmt.Errorf("read the log from %d: %w", since, err)
	}
	defer c.Close()
	var e event.Event
	for {
		switch _, err := c.Next(&e); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the log from %d: %w", since, err)
		}
		each(&e)
	}
}

// NewObservers returns Observers. It has no side effects.
func NewObservers(cfg Config) *Observers {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Observers{cfg: cfg, stop: make(chan struct{}), jails: map[id.Jail]*observed{}, forgotten: map[id.Jail]bool{}}
}

// Open starts the usage sampling.
func (o *Observers) Open() error {
	o.wg.Go(o.sample)
	return nil
}

// Close releases all jails. Sources that can record without a daemon continue to record.
func (o *Observers) Close() error {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return nil
	}
	o.closed = true
	jails := slices.Collect(maps.Values(o.jails))
	o.mu.Unlock()
	close(o.stop)
	o.wg.Wait()

	var errs []error
	for _, j := range jails {
		j.mu.Lock()
		errs = append(errs, j.each(Watch.Release))
		j.watches = nil
		// Watches of earlier instances append to the log until they are closed.
		j.closing.Wait()
		errs = append(errs, j.log.Close())
		j.mu.Unlock()
	}
	for _, s := range o.sources() {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

func (o *Observers) sources() []Source {
	return slices.DeleteFunc([]Source{o.cfg.Kernel, o.cfg.Network, o.cfg.GVisor, o.cfg.Guest, o.cfg.Ptrace}, func(s Source) bool { return s == nil })
}

// find returns a jail with its log open.
func (o *Observers) find(jid id.Jail) (*observed, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if j := o.jails[jid]; j != nil {
		return j, nil
	}
	if o.closed {
		return nil, fault.Newf(fault.Unavailable, "observe.find", string(jid), "the daemon is shutting down")
	}
	if o.forgotten[jid] {
		return nil, fault.Newf(fault.NotFound, "observe.find", string(jid), "no such jail")
	}
	dir := filepath.Join(o.cfg.Dir, string(jid))
	// Without the check of its form, an id such as "../etc" would name a directory outside of Dir.
	if _, err := os.Stat(dir); !id.Valid('j', string(jid)) || errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Newf(fault.NotFound, "observe.find", string(jid), "no such jail")
	} else if err != nil {
		return nil, fmt.Errorf("find jail %s: %w", jid, err)
	}
	conf := eventlog.Config{Dir: filepath.Join(dir, "events"), Jail: jid, Policy: o.cfg.Policy, Log: o.cfg.Log}
	if o.cfg.Closed != nil {
		conf.Finished = func(s eventlog.Segment) { o.cfg.Closed(jid, s, false) }
	}
	j := &observed{log: eventlog.New(conf)}
	if err := j.log.Open(); err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", jid, err)
	}
	if err := o.reportClosed(jid, j.log); err != nil {
		return nil, errors.Join(fmt.Errorf("read the log of %s: %w", jid, err), j.log.Close())
	}
	if o.cfg.Exec != nil {
		j.exec = func(e *event.Event) { o.cfg.Exec(jid, e) }
	}
	o.jails[jid] = j
	return j, nil
}

// reportClosed reports the segments that were closed before.
func (o *Observers) reportClosed(jid id.Jail, l *eventlog.Log) error {
	if o.cfg.Closed == nil {
		return nil
	}
	segments, err := l.Segments()
	for _, s := range segments {
		if s.Closed && s.SHA256 != "" {
			o.cfg.Closed(jid, s, true)
		}
	}
	return err
}

// Attach begins to observe a jail. Sources that the host does not support are listed in the
// jail's status. Any other failure of a source is an error, so that a jail is never assumed to
// be observed when it is not.
func (o *Observers) Attach(ctx context.Context, t Target) error {
	j, err := o.find(t.Jail)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone || j.watches != nil {
		return fault.Newf(fault.Conflict, "observe.Attach", string(t.Jail), "the jail is already watched or was removed")
	}
	if err := o.attach(ctx, j, t); err != nil {
		return err
	}
	if !t.ProcessesRecorded { // otherwise the caller waits to continue the jail
		o.usage(ctx, j)
	}
	return nil
}

// attach attaches the sources to j with target t concurrently. The caller holds j.mu.
func (o *Observers) attach(ctx context.Context, j *observed, t Target) error {
	t.Dir = filepath.Join(o.cfg.Dir, string(t.Jail))
	lacks := map[string]error{}
	some := o.chosen(ctx, t, lacks)
	watches, errs := make([]Watch, len(some)), make([]error, len(some))
	var all sync.WaitGroup
	for i, s := range some {
		all.Go(func() { watches[i], errs[i] = o.begin(ctx, j, t, s) })
	}
	all.Wait()
	next := map[string]Watch{}
	for i, s := range some {
		if errors.Is(errs[i], fault.Unsupported) {
			lacks[s.Name()], errs[i] = errs[i], nil
		} else if errs[i] == nil {
			next[s.Name()] = watches[i]
		}
	}
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, o.giveUp(ctx, j, next))
	}
	// With -usageStep, usage records the first sample even if it has no CPU time.
	j.target, j.watches, j.lacks, j.paused, j.cpu = t, next, lacks, false, -usageStep
	j.flags = 0
	j.body++
	return nil
}

// begin attaches one source to j, or moves its existing watch if it can follow.
func (o *Observers) begin(ctx context.Context, j *observed, t Target, s Source) (Watch, error) {
	if w := j.watches[s.Name()]; w != nil {
		if m, ok := w.(Mover); ok {
			if moved, err := m.Move(ctx, t); moved || err != nil {
				return w, err
			}
		}
	}
	return s.Attach(ctx, t, j.sink())
}

// giveUp closes the watches in next: j keeps its existing watches.
func (o *Observers) giveUp(ctx context.Context, j *observed, next map[string]Watch) error {
	var errs []error
	for name, w := range next {
		if j.watches[name] != w {
			errs = append(errs, w.Close())
			continue
		}
		_, err := w.(Mover).Move(ctx, j.target)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// chosen returns the sources for a jail. A gVisor sandbox and a virtual machine are observed
// through their own kernel, all others through the host's kernel or a tracer.
func (o *Observers) chosen(ctx context.Context, t Target, lacks map[string]error) []Source {
	var some []Source
	add := func(s Source) bool {
		if s == nil {
			return false
		}
		if err := s.Probe(ctx); err != nil {
			lacks[s.Name()] = err
			return false
		}
		some = append(some, s)
		return true
	}
	if t.Guest {
		add(o.cfg.Guest)
	} else if t.Runtime == "runsc" {
		add(o.cfg.GVisor)
	} else if t.Cgroup == 0 || !add(o.cfg.Kernel) {
		add(o.cfg.Ptrace)
	}
	add(o.cfg.Network)
	return some
}

// Select changes which events of a jail are recorded.
func (o *Observers) Select(jid id.Jail, sel event.Selection) error {
	j, err := o.find(jid)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.target.Selection = sel
	j.activity.mu.Lock()
	j.activity.selected++
	j.activity.mu.Unlock()
	return j.each(func(w Watch) error { return w.Select(sel) })
}

// each calls f for every watch of a jail, even after an error. The caller holds j.mu.
func (j *observed) each(f func(Watch) error) error {
	var errs []error
	for _, w := range j.watches {
		errs = append(errs, f(w))
	}
	return errors.Join(errs...)
}

// Detach ends the observation of a jail whose processes have ended and records all their
// events. If the log cannot be written for some seconds, Detach returns an error, and the log
// is written later.
func (o *Observers) Detach(ctx context.Context, jid id.Jail) error {
	j, err := o.find(jid)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var errs []error
	if j.watches != nil {
		o.usage(ctx, j)
	}
	for _, s := range o.sources() { // it ended while no daemon ran, or attaching failed
		if c, ok := s.(Collector); ok && j.watches[s.Name()] == nil {
			errs = append(errs, c.Collect(jid, j.sink()))
		}
	}
	errs = append(errs, j.each(Watch.Close))
	j.watches, j.paused = nil, false
	j.closing.Wait()
	// On a full disk, nothing is written until space is free. Removing this jail may free it.
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	return errors.Join(append(errs, j.log.Flush(ctx))...)
}

// Forget closes the log of a jail whose files are about to be removed. The jail then has no log,
// even while its files still exist: a log opened meanwhile would report them as lost.
func (o *Observers) Forget(jid id.Jail) error {
	o.mu.Lock()
	j := o.jails[jid]
	delete(o.jails, jid)
	maps.DeleteFunc(o.forgotten, func(jid id.Jail, _ bool) bool {
		_, err := os.Stat(filepath.Join(o.cfg.Dir, string(jid)))
		return errors.Is(err, fs.ErrNotExist)
	})
	o.forgotten[jid] = true
	o.mu.Unlock()
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gone = true
	j.closing.Wait()
	return j.log.Close()
}

// Log returns a jail's log, after appending all events that its sources observed before the
// call.
func (o *Observers) Log(ctx context.Context, jid id.Jail) (*eventlog.Log, error) {
	j, err := o.find(jid)
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	watches := maps.Clone(j.watches)
	j.mu.Unlock()
	// Events of a busy or failed source may be missing from this call's result. Status reports
	// the failure.
	o.drain(ctx, jid, watches)
	return j.log, nil
}

// drain drains the sources of a jail and reports whether all succeeded.
func (o *Observers) drain(ctx context.Context, jid id.Jail, watches map[string]Watch) bool {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	all := true
	for name, w := range watches {
		if err := w.Drain(ctx); err != nil {
			o.cfg.Log.Debug("source not drained", "jail", jid, "source", name, "err", err)
			all = false
		}
	}
	return all
}

// Status returns the state of the sources of a jail by name. A stopped jail has none.
func (o *Observers) Status(jid id.Jail) map[string]Status {
	o.mu.Lock()
	j := o.jails[jid]
	o.mu.Unlock()
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.watches == nil {
		return nil
	}
	all := map[string]Status{}
	for name, err := range j.lacks {
		all[name] = Status{Err: err.Error()}
	}
	for name, w := range j.watches {
		all[name] = w.Status()
	}
	return all
}

// Packets returns the pcapng files of a jail, oldest first.
func (o *Observers) Packets(jid id.Jail) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(o.cfg.Dir, string(jid), "events", "packets*.pcapng"))
	if err != nil {
		return nil, err
	}
	age := map[string]time.Time{}
	for _, name := range names {
		if fi, err := os.Stat(name); err == nil {
			age[name] = fi.ModTime()
		}
	}
	slices.SortFunc(names, func(a, b string) int { return age[a].Compare(age[b]) })
	return names, nil
}

// sample records the usage of all jails periodically.
func (o *Observers) sample() {
	tick := time.NewTicker(usageTime)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		select {
		case <-o.stop:
			return
		case <-tick.C:
		}
		o.mu.Lock()
		jails := slices.Collect(maps.Values(o.jails))
		o.mu.Unlock()
		for _, j := range jails {
			j.mu.Lock()
			if !frozen(j.target.CgroupDir) {
				o.usage(ctx, j)
			}
			j.mu.Unlock()
		}
	}
}

// usage records the usage of a jail if it has run since the last sample, or if its disk became
// read-only or writable. The caller holds j.mu.
func (o *Observers) usage(ctx context.Context, j *observed) {
	if j.watches == nil || j.target.Usage == nil {
		return
	}
	e := event.Event{Type: event.Usage, TS: time.Now().UnixMilli(), NS: Now()}
	if err := j.target.Usage(ctx, &e); err != nil || e.CPU < j.cpu+usageStep && e.Flags == j.flags {
		return
	}
	j.cpu, j.flags = e.CPU, e.Flags
	j.log.Append(&e)
}

// frozen reports whether a cgroup is frozen. The usage of a frozen jail does not change, so
// sampling can be skipped.
func frozen(dir string) bool {
	if dir == "" {
		return false
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze"))
	return err == nil && bytes.HasPrefix(b, []byte("1"))
}
