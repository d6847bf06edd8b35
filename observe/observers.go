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

	"glasshouse/event"
	"glasshouse/eventlog"
	"glasshouse/fault"
	"glasshouse/id"
)

// Config is what Observers are made of.
type Config struct {
	Dir    string // {DATA}/jails
	Policy eventlog.Policy
	Log    *slog.Logger

	// Kernel, Network, GVisor and Ptrace are the sources; nil is none. Ptrace
	// stands in where Kernel is not supported.
	Kernel, Network, GVisor, Ptrace Source

	// Exec, if set, is told of every program that a jail's process has begun, as
	// soon as the record of it is read. Whoever reads records waits for it, and e
	// is not to be kept.
	Exec func(jid id.Jail, e *event.Event)

	// Closed, if set, is told of every segment of a jail's log whose text will
	// not change any more: when that is so, and again, as found, whenever the log
	// is opened.
	Closed func(jid id.Jail, s eventlog.Segment, found bool)
}

const (
	// usageTime is between two samples of what a jail uses.
	usageTime = 5 * time.Second

	// usageStep is the processor time that makes a sample worth keeping: a jail
	// that does nothing does not write that down for ever.
	usageStep = int64(5 * time.Millisecond)

	drainTime = 5 * time.Second
)

// Observers has every jail watched by the sources that this host has for it, and
// keeps their logs. It is safe for concurrent use, also for one jail.
type Observers struct {
	cfg  Config
	stop chan struct{}
	wg   sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	jails map[id.Jail]*observed
	// +checklocks:mu
	closed bool
}

// observed is one jail.
type observed struct {
	log *eventlog.Log

	mu      sync.Mutex // also: one change at a time
	target  Target
	watches map[string]Watch // by the name of their source; nil when the jail does not run
	lacks   map[string]error // sources that should watch and cannot, by name
	body    int              // counts those it has had
	paused  bool             // it is muted, and not traced meanwhile
	cpu     int64            // when usage was sampled last
	flags   event.Flags      // of that sample
	gone    bool
	closing sync.WaitGroup // of watches of a body it has left

	doings doings
	exec   func(*event.Event) // or nil
}

// sink is a log as sources want it.
type sink struct {
	*eventlog.Log
	doings *doings
	exec   func(*event.Event) // or nil
}

// Append implements Sink.
func (s sink) Append(e *event.Event) {
	s.doings.notice(e)
	s.Log.Append(e)
	if s.exec != nil && e.Type == event.Proc && e.Op == event.OpExec && e.Flags&(event.Injected|event.Existing) == 0 {
		s.exec(e)
	}
}

func (j *observed) sink() sink { return sink{j.log, &j.doings, j.exec} }

func (s sink) Kept(since int64, of event.Type, each func(*event.Event)) error {
	c, err := s.Recent(since, of)
	if err != nil {
		return err
	}
	defer c.Close()
	var e event.Event
	for {
		switch _, err := c.Next(&e); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		each(&e)
	}
}

// NewObservers returns Observers that have touched nothing yet.
func NewObservers(cfg Config) *Observers {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Observers{cfg: cfg, stop: make(chan struct{}), jails: map[id.Jail]*observed{}}
}

// Open begins to sample what watched jails use.
func (o *Observers) Open() error {
	o.wg.Go(o.sample)
	return nil
}

// Close lets go of every jail. What can keep recording without a daemon does.
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
	return slices.DeleteFunc([]Source{o.cfg.Kernel, o.cfg.Network, o.cfg.GVisor, o.cfg.Ptrace}, func(s Source) bool { return s == nil })
}

// find returns a jail, with its log open.
func (o *Observers) find(jid id.Jail) (*observed, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if j := o.jails[jid]; j != nil {
		return j, nil
	}
	if o.closed {
		return nil, fault.Newf(fault.Unavailable, "observe", string(jid), "the daemon is ending")
	}
	dir := filepath.Join(o.cfg.Dir, string(jid))
	if _, err := os.Stat(dir); !id.Valid('j', string(jid)) || errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Newf(fault.NotFound, "observe", string(jid), "no such jail")
	} else if err != nil {
		return nil, err
	}
	conf := eventlog.Config{Dir: filepath.Join(dir, "events"), Jail: jid, Policy: o.cfg.Policy, Log: o.cfg.Log}
	if o.cfg.Closed != nil {
		conf.Finished = func(s eventlog.Segment) { o.cfg.Closed(jid, s, false) }
	}
	j := &observed{log: eventlog.New(conf)}
	if err := j.log.Open(); err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", jid, err)
	}
	if err := o.tellClosed(jid, j.log); err != nil {
		return nil, errors.Join(fmt.Errorf("read the log of %s: %w", jid, err), j.log.Close())
	}
	if o.cfg.Exec != nil {
		j.exec = func(e *event.Event) { o.cfg.Exec(jid, e) }
	}
	o.jails[jid] = j
	return j, nil
}

// tellClosed tells of the segments that were closed before.
func (o *Observers) tellClosed(jid id.Jail, l *eventlog.Log) error {
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

// Attach begins to watch a jail. Sources that this host does not have are noted
// in the jail's status; one that fails for another reason fails the whole, for a
// jail that is thought to be watched must be.
func (o *Observers) Attach(ctx context.Context, t Target) error {
	j, err := o.find(t.Jail)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone || j.watches != nil {
		return fault.Newf(fault.Conflict, "observe", string(t.Jail), "it is watched already, or removed")
	}
	if err := o.attach(ctx, j, t); err != nil {
		return err
	}
	if !t.Told { // else somebody waits for it to go on
		o.usage(ctx, j)
	}
	return nil
}

// attach has j watched as t, by sources that begin at the same time. The caller
// holds j.mu.
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
	j.target, j.watches, j.lacks, j.paused, j.cpu = t, next, lacks, false, -usageStep
	j.flags = 0
	j.body++
	return nil
}

// begin has one source watch j as t: by the watch it has, if that can follow.
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

// giveUp undoes what was begun of next: j stays with the watches it has.
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

// chosen returns the sources for a jail. A sandbox with a kernel of its own is
// asked itself; of all others the host's kernel knows, or a tracer.
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
	if t.Runtime == "runsc" {
		add(o.cfg.GVisor)
	} else if t.Cgroup == 0 || !add(o.cfg.Kernel) {
		add(o.cfg.Ptrace)
	}
	add(o.cfg.Network)
	return some
}

// Select changes what is recorded of a jail.
func (o *Observers) Select(jid id.Jail, sel event.Selection) error {
	j, err := o.find(jid)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.target.Selection = sel
	j.doings.mu.Lock()
	j.doings.selected++
	j.doings.mu.Unlock()
	return j.each(func(w Watch) error { return w.Select(sel) })
}

// each calls f for every watch of a jail, also after one failed. The caller holds
// j.mu.
func (j *observed) each(f func(Watch) error) error {
	var errs []error
	for _, w := range j.watches {
		errs = append(errs, f(w))
	}
	return errors.Join(errs...)
}

// Detach ends the watch of a jail whose processes have ended, with everything
// they did in its log. If the log cannot be written for some seconds it returns an error,
// and the log is written later.
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
	for _, s := range o.sources() { // it ended while there was no daemon, or could not be attached to
		if c, ok := s.(Collector); ok && j.watches[s.Name()] == nil {
			errs = append(errs, c.Collect(jid, j.sink()))
		}
	}
	errs = append(errs, j.each(Watch.Close))
	j.watches, j.paused = nil, false
	j.closing.Wait()
	// On a full disk nothing is written until space is free, and the jail may be removed to
	// free it.
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	return errors.Join(append(errs, j.log.Flush(ctx))...)
}

// Forget closes the log of a jail, whose files are about to be removed.
func (o *Observers) Forget(jid id.Jail) error {
	o.mu.Lock()
	j := o.jails[jid]
	delete(o.jails, jid)
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

// Log returns a jail's log, to which all has been appended that its sources saw
// before the call.
func (o *Observers) Log(ctx context.Context, jid id.Jail) (*eventlog.Log, error) {
	j, err := o.find(jid)
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	watches := maps.Clone(j.watches)
	j.mu.Unlock()
	// What a busy or broken source has not said is missing from this answer
	// alone, and seen in its status.
	o.drain(ctx, jid, watches)
	return j.log, nil
}

// drain has the sources of a jail append what they have seen, and reports whether
// all have.
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

// Status says how the sources at a jail fare, by their names. A jail that does
// not run has none.
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

// Packets returns the pcapng files that are kept of a jail, oldest first.
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

// sample records what jails use, every now and then.
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

// usage records what a jail uses, if it has done anything since the last time, or
// its disk has become read-only or writable. The caller holds j.mu.
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

// frozen reports whether a cgroup is: what it uses does not change then, and a
// jail that waits for its turn, maybe for hours, costs next to nothing.
func frozen(dir string) bool {
	if dir == "" {
		return false
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze"))
	return err == nil && bytes.HasPrefix(b, []byte("1"))
}
