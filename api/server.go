// Package api is the HTTP API: a table of routes over the other packages of the daemon.
//
// A handler receives its parameters and body decoded and validated, and returns a value or an
// error. One function renders errors as problem details (RFC 9457). The OpenAPI document is
// generated from the same table, so it always matches the routes.
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

	"glasshouse/agents/gateway"
	"glasshouse/api/replay"
	"glasshouse/api/wire"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/internal/linger"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/jail/rootfs"
	"glasshouse/policy/access"
	"glasshouse/policy/chain/witness"
)

// Manager runs jails. *jail.Manager implements it.
type Manager interface {
	Create(ctx context.Context, s jail.Spec) (jail.Jail, error)
	Get(ctx context.Context, j id.Jail) (jail.Jail, error)
	List(ctx context.Context, o jail.ListOptions) ([]jail.Jail, error)
	Start(ctx context.Context, j id.Jail) (jail.Jail, error)
	Stop(ctx context.Context, j id.Jail, o jail.StopOptions) (jail.Jail, error)
	PauseBy(ctx context.Context, j id.Jail, by string) (jail.Jail, error)
	Resume(ctx context.Context, j id.Jail) (jail.Jail, error)
	Delete(ctx context.Context, j id.Jail) error
	ReplacePolicy(ctx context.Context, j id.Jail, by func(json.RawMessage) (json.RawMessage, error)) (jail.Jail, error)
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

// Images stores root filesystems.
type Images interface {
	List() []rootfs.Image // newest first
	Prepare(ctx context.Context, r jail.Rootfs) (rootfs.Layer, error)
	Prune(ctx context.Context) ([]rootfs.Image, error) // returns the removed images
}

// Options configure a Server. Jails, Tokens and IdempotencyStore are required.
type Options struct {
	Jails            Manager
	Tokens           *access.Tokens
	IdempotencyStore replay.Store

	Images    Images    // nil: no images
	Observed  Observed  // nil: jails are not observed
	Snapshots Snapshots // nil: no snapshots
	Governor  Governor  // nil: no policy engine
	Chain     Chain     // nil: no audit log
	Approvals Approvals // nil: no approvals
	Secrets   Secrets   // nil: no secrets

	Capabilities Capabilities // nil: no capabilities
	Caller       Caller       // nil: capabilities cannot be called
	Publishers   Publishers   // nil: no bundles
	Markets      Markets      // nil: no markets
	Importer     Importer     // nil: MCP servers cannot be imported

	Runs       Runs                                // nil: no sessions
	Gateway    Gateway                             // nil: no agents
	Schedules  Schedules                           // nil: no schedules
	Connectors Connectors                          // nil: no webhooks
	Models     http.Handler                        // model proxy for agents; nil: none
	MCP        func(c gateway.Caller) http.Handler // MCP server with the tools of an agent; nil: none
	UI         UI                                  // nil: no web UI
	Logins     *access.Logins                      // browser logins; nil: browsers need tokens
	E2B        E2B                                 // listener for clients of the E2B protocol
	Addresses  func() []string                     // URLs of the UI, such as http://127.0.0.1:8082; the nearest first

	Peers     access.Peers                                                          // access rules for the unix socket
	Demand    func(ctx context.Context) (map[id.Token]jail.Demand, error)           // of the jails of each token, in the whole fleet; nil: not shown
	Doctor    func(ctx context.Context) []wire.Probe                                // checks of the host
	Storage   func(ctx context.Context) (wire.Storage, error)                       // nil: no data directory
	Nodes     func(ctx context.Context) ([]wire.Node, error)                        // nil: this daemon shares its database of runs with no other
	Fleet     Fleet                                                                 // nil: this daemon reaches no others
	Facts     func() fleet.Facts                                                    // of this host; with Fleet
	Front     bool                                                                  // this daemon has no jails: those of Fleet have them
	Move      func(ctx context.Context, j id.Jail, node string) (fleet.Node, error) // moves a jail of this daemon; "": the fleet chooses the node; nil: not
	Moved     func(ctx context.Context, j id.Jail) string                           // the node of a jail that has just moved from this one, or ""; nil: none
	Fetch     func(ctx context.Context, s id.Snapshot) error                        // copies a snapshot from its node, unless there is a copy; nil: none
	Witnessed func(ctx context.Context) ([]witness.Seen, error)                     // what was seen of the audit logs of other nodes; nil: nothing
	Stored    StoredLogs                                                            // copies of the audit logs of all nodes; nil: no object store
	Created   func(ctx context.Context)                                             // called before the response about a new object; nil: not
	Ready     func(ctx context.Context) error                                       // returns nil if the daemon is ready to serve
	Version   wire.Version                                                          // response of /version
	Hosts     []string                                                              // accepted host names over TCP, in addition to localhost and IP addresses
	Log       *slog.Logger                                                          // default: slog.Default()

	MaxBody   int64 // maximum size of a JSON body in bytes; default 1 MiB
	MaxOutput int   // maximum size of each output stream in an exec's JSON response in bytes; default 1 MiB
}

// A Server serves the API. Serve may be called for several listeners.
type Server struct {
	o        Options
	mux      *http.ServeMux
	table    map[string]route // by pattern
	agentMux *http.ServeMux   // routes of the agent endpoint
	auth     *authenticator
	replays  *replayer
	problems *problems
	metrics  *metrics
	streams  *streams

	closing context.Context // canceled at the start of Shutdown, for streams and waiting requests, which would block it
	cancel  context.CancelCauseFunc
	work    context.Context // parent of all requests; canceled when the grace period of Shutdown ends
	drop    context.CancelCauseFunc

	mu sync.Mutex
	// +checklocks:mu
	servers []*http.Server // none is added after closing is canceled
}

var errClosing = errors.New("the daemon is stopping")

// New returns a Server. It panics if the route table is invalid.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.MaxBody = cmp.Or(o.MaxBody, 1<<20)
	o.MaxOutput = cmp.Or(o.MaxOutput, 1<<20)
	closing, cancel := context.WithCancelCause(context.Background())
	work, drop := context.WithCancelCause(context.Background())
	s := &Server{
		o: o, mux: http.NewServeMux(), table: map[string]route{}, agentMux: http.NewServeMux(),
		auth:     &authenticator{tokens: o.Tokens, logins: o.Logins, hosts: o.Hosts, csrf: http.NewCrossOriginProtection()},
		replays:  &replayer{store: o.IdempotencyStore, log: o.Log, created: o.Created},
		problems: &problems{log: o.Log, closing: closing},
		metrics:  newMetrics(o.Jails),
		streams:  &streams{closing: closing},
		closing:  closing, cancel: cancel, work: work, drop: drop,
	}
	h := newHandlers(o, s)
	for _, rt := range routes(o, h) {
		s.mux.Handle(rt.pattern, s.route(rt))
		s.table[rt.pattern] = rt
	}
	for _, rt := range agentRoutes(h.agent) {
		s.agentMux.Handle(rt.pattern, s.route(rt))
	}
	for _, path := range modelPaths {
		s.agentMux.Handle(path, http.HandlerFunc(h.agent.askModel))
	}
	s.agentMux.Handle("/mcp", http.HandlerFunc(h.agent.serveMCP))
	return s
}

// Handler returns a handler for TCP clients, which need tokens.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

// Serve serves on l. It returns nil after Shutdown. Clients of a local listener, a unix
// socket, are identified by their credentials; others need tokens.
func (s *Server) Serve(l net.Listener, local bool) error {
	return s.serve(l, linger.Handler(s.Handler()), func(ctx context.Context, c net.Conn) context.Context {
		return withConn(ctx, s.o.Peers, c, local)
	})
}

func (s *Server) serve(l net.Listener, h http.Handler, conn func(context.Context, net.Conn) context.Context) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return s.work },
		ConnContext:       conn,
	}
	s.mu.Lock()
	if s.closing.Err() != nil {
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

// cleanupTime is the time that a canceled request has to clean up and respond.
const cleanupTime = 3 * time.Second

// Shutdown stops listening, ends streams, terminals and waiting requests, and waits for other
// requests until ctx ends. It then cancels those requests, and closes the connections of
// requests that do not return.
func (s *Server) Shutdown(ctx context.Context) error {
	s.streams.close()
	s.cancel(errClosing)
	s.mu.Lock()
	servers := s.servers
	s.mu.Unlock()

	defer context.AfterFunc(ctx, func() { s.drop(errClosing) })()
	var wg sync.WaitGroup
	errs := make([]error, len(servers))
	for i, srv := range servers {
		wg.Go(func() {
			if srv.Shutdown(ctx) == nil {
				return
			}
			s.o.Log.Warn("canceling active requests: the shutdown grace period is over")
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
			defer cancel()
			if srv.Shutdown(last) != nil {
				s.o.Log.Warn("closing connections of requests that did not end")
				errs[i] = srv.Close()
			}
		})
	}
	wg.Wait()
	s.streams.open.Wait() // each has its own deadline
	return errors.Join(errs...)
}

// serveHTTP handles a request, including logging and panics.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w, maxBody: s.o.MaxBody}
	defer s.observe(rec, r, time.Now())
	defer s.problems.recover(rec, r)

	h := rec.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	err := s.admit(rec, r)
	if err != nil {
		s.problems.fail(rec, r, err)
	}
}

// admit verifies the origin and the caller of a request, and passes it to its route.
func (s *Server) admit(rec *recorder, r *http.Request) error {
	c := connOf(r.Context())
	if err := s.auth.checkHost(r, c); err != nil {
		return err
	}
	if err := s.auth.checkOrigin(r); err != nil {
		return err
	}
	_, pattern := s.mux.Handler(r)
	if s.page(r, pattern) {
		r.Pattern = uiPattern
		s.o.UI.ServeHTTP(rec, r)
		return nil
	}
	caller, err := s.auth.authenticate(r, c)
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
