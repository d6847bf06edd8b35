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
	"glasshouse/jailinit/protocol"
)

// A watching is what a client wants to know of a directory.
type watching struct {
	path    string
	entries bool // with a description of what has changed
	changes <-chan protocol.FileEvent
}

// asked is what the requests for watchers have in common.
type asked interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
}

// watch begins to watch until ctx ends.
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

// missed ends a watch of which changes were lost, or that does not cover all: the
// protocol has no other word for it, and who waits for a change must not wait for ever.
func missed(w watching) error {
	return refuse(connect.CodeDataLoss, "changes below "+w.path+" were missed: there are too many, or too many directories. Look at what is there and watch again")
}

// told is a change in the words of the protocol. It has none for some: nil.
func (s *Server) told(ctx context.Context, v *visit, w watching, c protocol.FileEvent) (*envdpb.FilesystemEvent, error) {
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
		err = nil // it has gone since, or nobody can say its name
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
			e, err := s.told(ctx, v, w, c)
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

// over says why nothing more is told of a directory.
func over(ctx context.Context, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return connect.NewError(connect.CodeUnavailable, fmt.Errorf("%s is not watched any more: it has gone, or the sandbox has stopped", path))
}

// Bounds of watchers that are asked for what has changed.
const (
	maxWatchers = 64     // of one sandbox
	maxKept     = 10_000 // changes that one keeps
	forgotten   = time.Hour
)

// watchers are those that clients ask for what has changed. They end when nobody has
// asked for a while, and with the daemon.
type watchers struct {
	mu sync.Mutex
	// +checklocks:mu
	open map[string]*watcher // by id
}

type watcher struct {
	jail   id.Jail
	cancel context.CancelFunc
	idle   *time.Timer // ends it

	mu sync.Mutex
	// +checklocks:mu
	kept []*envdpb.FilesystemEvent
	// +checklocks:mu
	err error // why there will be no more
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

// collect keeps what changes until it cannot.
func (s *Server) collect(ctx context.Context, v *visit, of watching, w *watcher) error {
	for c := range of.changes {
		e, err := s.told(ctx, v, of, c)
		if err != nil {
			return answer(err)
		}
		if e != nil && !w.add(e) {
			return refuse(connect.CodeResourceExhausted, "more has changed than is kept: make another watcher, and ask it more often")
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

// keep remembers why there will be no more.
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
		return refuse(connect.CodeResourceExhausted, fmt.Sprintf("%d watchers are open already: remove some", n))
	}
	if l.open == nil {
		l.open = map[string]*watcher{}
	}
	l.open[name] = w
	w.idle = time.AfterFunc(forgotten, func() { l.drop(name) })
	return nil
}

// drop ends a watcher. It tells whether there was one.
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

// get returns a watcher of this sandbox. To others it is as if there was none.
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
