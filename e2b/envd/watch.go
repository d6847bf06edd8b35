package envd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"glasshouse/e2b/envdpb"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/protocol"
)

// A watching is an active watch of a directory.
type watching struct {
	path    string
	entries bool // events describe the changed file
	changes <-chan protocol.FileEvent
}

// asked is the common interface of requests that start a watch.
type asked interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
}

// watch starts a watch, which lasts until ctx is done.
func (s *Server) watch(ctx context.Context, v *visit, q asked) (watching, error) {
	d, p, err := s.filesAt(ctx, v, q.GetPath())
	if err != nil {
		return watching{}, err
	}
	defer d.Close()
	i, err := d.resolved(ctx, p)
	if err != nil {
		return watching{}, err
	}
	if i.Type != "dir" {
		return watching{}, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", p))
	}
	changes, err := s.jails.Watch(ctx, v.Jail, i.Path, q.GetRecursive())
	return watching{i.Path, q.GetIncludeEntry(), changes}, err
}

var changed = map[string]envdpb.EventType{
	"create": envdpb.EventType_EVENT_TYPE_CREATE, "write": envdpb.EventType_EVENT_TYPE_WRITE,
	"delete": envdpb.EventType_EVENT_TYPE_REMOVE, "rename": envdpb.EventType_EVENT_TYPE_RENAME,
	"attrib": envdpb.EventType_EVENT_TYPE_CHMOD,
}

// missed returns the error of a watch that has lost events or does not cover all directories.
// The protocol has no event for that. The stream must end, because otherwise a client could wait
// forever for a lost event.
func missed(w watching) error {
	return refuse(connect.CodeDataLoss, "changes below "+w.path+" were missed: too many events or too many directories. List the directory and watch it again")
}

// eventOf converts a change to an event of the protocol. It returns nil if the protocol has no
// event for it.
func (s *Server) eventOf(ctx context.Context, v *visit, w watching, c protocol.FileEvent) (*envdpb.FilesystemEvent, error) {
	if c.Op == "overflow" {
		return nil, missed(w)
	}
	kind, ok := changed[c.Op]
	if !ok {
		return nil, nil
	}
	name := strings.TrimPrefix(strings.TrimPrefix(c.Path, strings.TrimSuffix(w.path, "/")), "/")
	if name == "" {
		name = "."
	}
	e := &envdpb.FilesystemEvent{Name: strings.ToValidUTF8(name, "�"), Type: kind}
	if !w.entries {
		return e, nil
	}
	d, err := s.files(ctx, v)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if e.Entry, err = d.entry(ctx, c.Path); errors.Is(err, fault.NotFound) || errors.Is(err, fault.Invalid) {
		err = nil // removed in the meantime, or its name is not UTF-8 and cannot be a path
	}
	return e, err
}

func (s *Server) watchDir(ctx context.Context, v *visit, q *envdpb.WatchDirRequest, to *connect.ServerStream[envdpb.WatchDirResponse]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := s.watch(ctx, v, q)
	if err != nil {
		return err
	}
	if err := to.Send(&envdpb.WatchDirResponse{Event: &envdpb.WatchDirResponse_Start{Start: &envdpb.WatchDirResponse_StartEvent{}}}); err != nil {
		return err
	}
	alive := time.NewTicker(v.keepalive())
	defer alive.Stop()
	for {
		a := &envdpb.WatchDirResponse{Event: &envdpb.WatchDirResponse_Keepalive{Keepalive: &envdpb.WatchDirResponse_KeepAlive{}}}
		select {
		case <-alive.C:
		case <-ctx.Done():
			return ctx.Err()
		case c, ok := <-w.changes:
			if !ok {
				return s.ended(v, over(ctx, w.path))
			}
			e, err := s.eventOf(ctx, v, w, c)
			if err != nil {
				return s.ended(v, err)
			}
			if e == nil {
				continue
			}
			a.Event = &envdpb.WatchDirResponse_Filesystem{Filesystem: e}
			alive.Reset(v.keepalive())
		}
		if err := to.Send(a); err != nil {
			return err
		}
	}
}

// over returns the reason why a watch has ended.
func over(ctx context.Context, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return connect.NewError(connect.CodeUnavailable, fmt.Errorf("the watch of %s has ended: the directory was removed or the sandbox has stopped", path))
}

// Limits of polled watchers.
const (
	maxWatchers = 64        // per sandbox
	maxKept     = 10_000    // buffered events per watcher
	forgotten   = time.Hour // without a poll
)

// watchers are the watchers that clients poll. A watcher ends when no client has polled it for
// the time forgotten, and when the daemon shuts down.
type watchers struct {
	mu sync.Mutex
	// +checklocks:mu
	open map[string]*watcher // by id
}

type watcher struct {
	jail   id.Jail
	cancel context.CancelFunc
	idle   *time.Timer // drops it

	mu sync.Mutex
	// +checklocks:mu
	kept []*envdpb.FilesystemEvent
	// +checklocks:mu
	err error // the reason why the watch has ended
}

func (s *Server) createWatcher(ctx context.Context, v *visit, q *envdpb.CreateWatcherRequest) (*envdpb.CreateWatcherResponse, error) {
	leave, err := s.enter()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.closing, cancel)
	name := "w" + strings.ToLower(rand.Text())
	w := &watcher{jail: v.Jail, cancel: cancel}
	fail := func(err error) (*envdpb.CreateWatcherResponse, error) {
		s.watchers.drop(name)
		stop()
		cancel()
		leave()
		return nil, err
	}
	if err := s.watchers.add(name, w); err != nil {
		return fail(err)
	}
	of, err := s.watch(ctx, v, q)
	if err != nil {
		return fail(err)
	}
	go func() {
		defer leave()
		defer stop()
		defer cancel()
		w.keep(s.collect(ctx, v, of, w))
	}()
	return &envdpb.CreateWatcherResponse{WatcherId: name}, nil
}

// collect buffers events in w until the watch ends, and returns the reason.
func (s *Server) collect(ctx context.Context, v *visit, of watching, w *watcher) error {
	for c := range of.changes {
		e, err := s.eventOf(ctx, v, of, c)
		if err != nil {
			return answer(err)
		}
		if e != nil && !w.add(e) {
			return refuse(connect.CodeResourceExhausted, "the watcher's event buffer is full: create a new watcher and poll it more often")
		}
	}
	return over(ctx, of.path)
}

func (w *watcher) add(e *envdpb.FilesystemEvent) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.kept) >= maxKept {
		return false
	}
	w.kept = append(w.kept, e)
	return true
}

// keep stores the reason why the watch has ended.
func (w *watcher) keep(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *watcher) take() ([]*envdpb.FilesystemEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.kept) == 0 && w.err != nil {
		return nil, w.err
	}
	kept := w.kept
	w.kept = nil
	return kept, nil
}

func (l *watchers) add(name string, w *watcher) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, other := range l.open {
		if other.jail == w.jail {
			n++
		}
	}
	if n >= maxWatchers {
		return refuse(connect.CodeResourceExhausted, fmt.Sprintf("the sandbox has %d watchers, the maximum: remove some", n))
	}
	if l.open == nil {
		l.open = map[string]*watcher{}
	}
	l.open[name] = w
	w.idle = time.AfterFunc(forgotten, func() { l.drop(name) })
	return nil
}

// drop ends a watcher. It reports whether the watcher existed.
func (l *watchers) drop(name string) bool {
	l.mu.Lock()
	w := l.open[name]
	delete(l.open, name)
	l.mu.Unlock()
	if w == nil {
		return false
	}
	w.idle.Stop()
	w.cancel()
	return true
}

// get returns a watcher of this sandbox. It does not find watchers of other sandboxes.
func (l *watchers) get(v *visit, name string) (*watcher, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.open[name]
	if w == nil || w.jail != v.Jail {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher with id %.64q not found", name))
	}
	w.idle.Reset(forgotten)
	return w, nil
}

func (s *Server) getWatcherEvents(_ context.Context, v *visit, q *envdpb.GetWatcherEventsRequest) (*envdpb.GetWatcherEventsResponse, error) {
	w, err := s.watchers.get(v, q.GetWatcherId())
	if err != nil {
		return nil, err
	}
	kept, err := w.take()
	return &envdpb.GetWatcherEventsResponse{Events: kept}, err
}

func (s *Server) removeWatcher(_ context.Context, v *visit, q *envdpb.RemoveWatcherRequest) (*envdpb.RemoveWatcherResponse, error) {
	if _, err := s.watchers.get(v, q.GetWatcherId()); err != nil {
		return nil, err
	}
	s.watchers.drop(q.GetWatcherId())
	return &envdpb.RemoveWatcherResponse{}, nil
}
