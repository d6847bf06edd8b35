// Package api is the HTTP door: a table of routes over the parts behind it.
//
// A handler gets its parameters and body decoded and checked, and returns a
// value or an error; one function renders errors as problem details. The same
// table makes the OpenAPI document, so what is served and what is documented
// cannot part.
package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"glasshouse/access"
	"glasshouse/api/replay"
	"glasshouse/api/wire"
	"glasshouse/eventlog"
	"glasshouse/gateway"
	"glasshouse/id"
	"glasshouse/internal/linger"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
	"glasshouse/report"
	"glasshouse/rootfs"
)

// Manager is what the API asks of the part that runs jails. *jail.Manager is
// one.
type Manager interface {
	Create(ctx context.Context, s jail.Spec) (jail.Jail, error)
	Get(ctx context.Context, j id.Jail) (jail.Jail, error)
	List(ctx context.Context, o jail.ListOptions) ([]jail.Jail, error)
	Start(ctx context.Context, j id.Jail) (jail.Jail, error)
	Stop(ctx context.Context, j id.Jail, o jail.StopOptions) (jail.Jail, error)
	Pause(ctx context.Context, j id.Jail) (jail.Jail, error)
	Resume(ctx context.Context, j id.Jail) (jail.Jail, error)
	Delete(ctx context.Context, j id.Jail) error
	Regovern(ctx context.Context, j id.Jail, by func(json.RawMessage) (json.RawMessage, error)) (jail.Jail, error)
	Stats(ctx context.Context, j id.Jail) (jail.Stats, error)

	Exec(ctx context.Context, j id.Jail, r jail.ExecRequest, o *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error)
	Attach(ctx context.Context, j id.Jail, x id.Exec, o control.AttachOptions) (*control.Stream, error)
	Execs(ctx context.Context, j id.Jail) ([]protocol.ExecStatus, error)
	ExecStatus(ctx context.Context, j id.Jail, x id.Exec) (protocol.ExecStatus, error)
	Output(ctx context.Context, j id.Jail, x id.Exec, f func(protocol.Chunk) error) (protocol.ExecStatus, error)
	Signal(ctx context.Context, j id.Jail, x id.Exec, sig string) error
	Resize(ctx context.Context, j id.Jail, x id.Exec, size protocol.Size) error
	Stdin(ctx context.Context, j id.Jail, x id.Exec) (io.WriteCloser, error)

	Files(ctx context.Context, j id.Jail) (jail.Files, error)
	Watch(ctx context.Context, j id.Jail, path string, recursive bool) (<-chan protocol.FileEvent, error)
	Changes(ctx context.Context, j id.Jail, o jail.ChangesOptions) ([]jail.Change, error)

	Backends(ctx context.Context) []jail.BackendInfo
}

// Images is what the API asks of the part that keeps root filesystems.
type Images interface {
	List() []rootfs.Image // the newest first
	Prepare(ctx context.Context, r jail.Rootfs) (rootfs.Layer, error)
	Prune(ctx context.Context) ([]rootfs.Image, error) // returns what it removed
}

// Options are what a Server needs. Jails, Tokens and Replays must be set.
type Options struct {
	Jails   Manager
	Tokens  *access.Tokens
	Replays replay.Store

	Images    Images    // nil: none are shown
	Observed  Observed  // nil: no jail is watched
	Snapshots Snapshots // nil: none are taken
	Governor  Governor  // nil: nobody decides
	Chain     Chain     // nil: nothing is recorded
	Approvals Approvals // nil: nobody can be asked
	Secrets   Secrets   // nil: there are none

	Capabilities Capabilities // nil: there are none
	Caller       Caller       // nil: they are not called
	Publishers   Publishers   // nil: no bundles are taken
	Markets      Markets      // nil: nobody offers any
	Importer     Importer     // nil: servers of others are not made into capabilities

	Runs       Runs                                // nil: there are no sessions
	Gateway    Gateway                             // nil: no agents are put to work
	Schedules  Schedules                           // nil: there are none
	Connectors Connectors                          // nil: nobody else is told anything
	Models     http.Handler                        // of language models, for agents; nil: there are none
	MCP        func(c gateway.Caller) http.Handler // the tools of an agent; nil: it has none by that way
	UI         UI                                  // nil: there is none
	Logins     *access.Logins                      // of browsers; nil: they need tokens too
	E2B        E2B                                 // where clients of the E2B protocol are served
	Addresses  func() []string                     // where browsers find the UI, such as http://127.0.0.1:8082; the nearest first

	Peers   access.Peers                                    // who may use the unix socket
	Doctor  func(ctx context.Context) []wire.Probe          // what this host can do
	Storage func(ctx context.Context) (wire.Storage, error) // nil: it keeps nothing
	Ready   func(ctx context.Context) error                 // nil error: ready to serve
	Version wire.Version                                    // shown at /version
	Hosts   []string                                        // names the daemon is reached by over TCP, besides the loopback's and IP addresses
	Log     *slog.Logger                                    // default: slog.Default()

	MaxBody   int64 // bytes of a JSON body; default 1 MiB
	MaxOutput int   // bytes of each output stream in an exec's JSON answer; default 1 MiB
}

// A Server answers HTTP. Serve may be called for several listeners.
type Server struct {
	o        Options
	mux      *http.ServeMux
	table    map[string]route // by pattern
	doors    *http.ServeMux   // what agents find in their jails
	csrf     *http.CrossOriginProtection
	metrics  *metrics
	openapi  func() ([]byte, error) // made for the first who asks: it takes longer than all else at a start
	once     flights
	present  presence
	rates    rates
	tallies  recent[filtered, *eventlog.Tally]
	pasts    recent[*eventlog.Log, *report.Past]
	judges   recent[judgedPart, *judgements]
	listings listings

	ctx     context.Context // ends when streams and those who wait for a person must: they would keep Shutdown waiting
	cancel  context.CancelCauseFunc
	work    context.Context // of all requests: ends when Shutdown has waited long enough
	drop    context.CancelCauseFunc
	streams sync.WaitGroup // connections that http.Server no longer knows

	mu sync.Mutex
	// +checklocks:mu
	servers []*http.Server
	// +checklocks:mu
	closed bool
}

var errClosing = errors.New("the daemon is stopping")

// New returns a Server over o. A bad route table panics.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.MaxBody = cmp.Or(o.MaxBody, 1<<20)
	o.MaxOutput = cmp.Or(o.MaxOutput, 1<<20)
	s := &Server{o: o, mux: http.NewServeMux(), table: map[string]route{}, csrf: http.NewCrossOriginProtection()}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.work, s.drop = context.WithCancelCause(context.Background())
	s.metrics = newMetrics(o.Jails)
	s.rates.s = s
	s.tallies.most, s.pasts.most, s.judges.most = mostTallies, mostPasts, mostJudges
	for _, rt := range routes {
		s.mux.Handle(rt.pattern, s.route(rt))
		s.table[rt.pattern] = rt
	}
	s.openDoors()
	s.openapi = sync.OnceValues(func() ([]byte, error) { return Document(o.Version.Version) })
	return s
}

// Handler returns the server's handler, for callers over TCP: they need tokens.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

// Serve answers on l until Shutdown, and then returns nil. Callers on a local
// listener, a unix socket, are known by their credentials; others need tokens.
func (s *Server) Serve(l net.Listener, local bool) error {
	srv := &http.Server{
		Handler:           linger.Handler(s.Handler()),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return s.work },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return withConn(ctx, s.o.Peers, c, local)
		},
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errors.Join(errClosing, l.Close())
	}
	s.servers = append(s.servers, srv)
	s.mu.Unlock()

	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// unwinding is how long a request may take to undo what it began, and to say so.
const unwinding = 3 * time.Second

// Shutdown stops listening, tells streams, terminals and all who wait for a person
// that the daemon stops, and waits for other requests until ctx ends. Then those are
// told too, and what does not answer even so is broken off.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	servers := s.servers
	s.mu.Unlock()

	s.cancel(errClosing)
	defer context.AfterFunc(ctx, func() { s.drop(errClosing) })()
	var wg sync.WaitGroup
	errs := make([]error, len(servers))
	for i, srv := range servers {
		wg.Go(func() {
			if srv.Shutdown(ctx) == nil {
				return
			}
			s.o.Log.Warn("requests are told to end: the daemon has waited long enough for them")
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), unwinding)
			defer cancel()
			if srv.Shutdown(last) != nil {
				s.o.Log.Warn("requests are broken off: they would not end")
				errs[i] = srv.Close()
			}
		})
	}
	wg.Wait()
	s.streams.Wait() // each has a deadline of its own
	return errors.Join(errs...)
}

// serveHTTP is the whole of what happens to a request, outermost first.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w}
	defer s.observe(rec, r, time.Now())
	defer s.recover(rec, r)

	h := rec.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	err := s.admit(rec, r)
	if err != nil {
		s.fail(rec, r, err)
	}
}

// admit checks where the request comes from and who sent it, and passes it to
// its route.
func (s *Server) admit(rec *recorder, r *http.Request) error {
	c := connOf(r.Context())
	if err := s.checkHost(r, c); err != nil {
		return err
	}
	if err := s.checkOrigin(r); err != nil {
		return err
	}
	_, pattern := s.mux.Handler(r)
	if s.page(r, pattern) {
		r.Pattern = uiPattern
		s.o.UI.ServeHTTP(rec, r)
		return nil
	}
	caller, err := s.authenticate(r, c)
	if rt, taken := s.table[pattern]; err != nil && !(taken && rt.role == "") {
		return err
	}
	rec.caller = caller
	*r = *r.WithContext(access.WithCaller(r.Context(), caller))
	if pattern == "" {
		return s.noRoute(r)
	}
	s.mux.ServeHTTP(rec, r)
	return nil
}
