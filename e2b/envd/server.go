package envd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"

	"glasshouse/e2b/interpreter"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// A Box is a running sandbox.
type Box struct {
	Jail id.Jail
	User string            // default user of requests; "": user
	Env  map[string]string // environment of every command; the request's variables take precedence
	Dir  string            // default directory; "": the user's home

	// Token is the access token for requests to Port, Traffic the one for requests to other
	// ports. If it is empty, no token is required.
	Token   string
	Traffic string

	// Host is the Host header that servers at other ports receive; "": the client's.
	// ${PORT} in it is replaced by the port.
	Host string

	// HTTPS lists the ports whose servers use TLS.
	HTTPS []int
}

// Boxes finds sandboxes.
type Boxes interface {
	// Open returns the sandbox of a request. It resumes a paused sandbox that has automatic
	// resume. Before that, Open calls v.Admit and returns its error unchanged. The sandbox
	// is not paused until the caller calls release. Other errors are fault.NotFound if the
	// sandbox does not exist, and fault.Conflict if it does not run and has no automatic
	// resume.
	Open(ctx context.Context, sandbox string, v Visit) (box Box, release func(), err error)

	// Check returns nil if the sandbox runs, and otherwise the error that Open returns for a
	// sandbox without automatic resume.
	Check(sandbox string) error
}

// A Visit is a request to a sandbox.
type Visit struct {
	Use Use

	// Admit returns an error if the request lacks the credentials that the sandbox requires.
	Admit func(box Box, running bool) error
}

// A Use is how a request uses a sandbox.
type Use int

const (
	Ask         Use = iota // a request with one response
	Stay                   // a stream or a connection, which lasts until the client closes it
	HealthCheck            // a health check, which does not delay a pause
)

// streams are the RPCs that last until the client closes them.
var streams = map[string]bool{
	"/process.Process/Start": true, "/process.Process/Connect": true, "/process.Process/StreamInput": true,
	"/filesystem.Filesystem/WatchDir": true,
}

// useOf returns how a request uses a sandbox.
func useOf(r *http.Request, port int) Use {
	switch {
	case port == Port && r.URL.Path == "/health":
		return HealthCheck
	case port == Port && streams[r.URL.Path], port != Port && (r.Header.Get("Upgrade") != "" || strings.Contains(r.Header.Get("Accept"), "text/event-stream")):
		return Stay
	}
	return Ask
}

// Jails manages jails. *jail.Manager implements it.
type Jails interface {
	Get(context.Context, id.Jail) (jail.Jail, error)
	Exec(context.Context, id.Jail, jail.ExecRequest, *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error)
	Execs(context.Context, id.Jail) ([]protocol.ExecStatus, error)
	Attach(context.Context, id.Jail, id.Exec, control.AttachOptions) (*control.Stream, error)
	Signal(ctx context.Context, j id.Jail, x id.Exec, sig string) error
	Resize(context.Context, id.Jail, id.Exec, protocol.Size) error
	Stdin(context.Context, id.Jail, id.Exec) (io.WriteCloser, error)
	Files(context.Context, id.Jail) (jail.Files, error)
	Watch(ctx context.Context, j id.Jail, path string, recursive bool) (<-chan protocol.FileEvent, error)
	Stats(context.Context, id.Jail) (jail.Stats, error)
	Dial(ctx context.Context, j id.Jail, port int) (net.Conn, error)
}

// Config configures a Server.
type Config struct {
	Boxes Boxes
	Jails Jails
	Log   *slog.Logger
}

// A Server serves the ports of sandboxes.
type Server struct {
	boxes    Boxes
	jails    Jails
	log      *slog.Logger
	inside   http.Handler // for Port
	ports    http.Handler // for all other ports
	code     *interpreter.Interpreters
	watchers watchers

	closing context.Context // done when the server is closed
	close   context.CancelFunc

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	wg     sync.WaitGroup // requests and watchers; not incremented once closed
}

// New returns a server. The caller closes it.
func New(c Config) *Server {
	s := &Server{boxes: c.Boxes, jails: c.Jails, log: c.Log, code: interpreter.New(c.Jails)}
	s.closing, s.close = context.WithCancel(context.Background())
	s.inside = s.routes()
	s.ports = s.proxy()
	return s
}

// Close cancels all requests and watchers and waits for them. Commands continue to run in their
// jails.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.close()
	s.wg.Wait()
	return nil
}

// enter registers work that Close waits for. The caller must call leave at its end.
func (s *Server) enter() (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fault.Newf(fault.Unavailable, "e2b.Serve", "", "the daemon is shutting down")
	}
	s.wg.Add(1)
	return s.wg.Done, nil
}

// A visit is a request to a sandbox. It is stored in the request's context.
type visit struct {
	Box
	sandbox string
	port    int
	header  http.Header
}

type visitKey struct{}

func visited(ctx context.Context) *visit { return ctx.Value(visitKey{}).(*visit) }

// ServeSandbox serves a request to a port of a sandbox. The path of r is the one that the
// server at that port receives.
func (s *Server) ServeSandbox(w http.ResponseWriter, r *http.Request, sandbox string, port int) {
	leave, err := s.enter()
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer leave()
	box, release, err := s.boxes.Open(r.Context(), sandbox, Visit{useOf(r, port), func(b Box, running bool) error {
		return admit(r, port, b, running)
	}})
	if d, ok := errors.AsType[*denial](err); ok {
		d.write(w, r, sandbox)
		return
	}
	if err != nil {
		s.absent(w, r, sandbox, err)
		return
	}
	defer release()
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), visitKey{}, &visit{box, sandbox, port, r.Header}))
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	r = r.WithContext(ctx)
	if port == Port {
		r.Body = patient(w, r)
		s.inside.ServeHTTP(&patientWriter{w}, r)
		return
	}
	s.ports.ServeHTTP(w, r)
}

// routes returns the handler for Port. Its requests have passed admit.
func (s *Server) routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	m.HandleFunc("POST /init", func(w http.ResponseWriter, _ *http.Request) {
		// E2B's control plane configures a sandbox with this call. Here the daemon does so
		// without it.
		writeError(w, http.StatusUnauthorized, "only the daemon can initialize a sandbox: clients cannot change the access token")
	})
	m.HandleFunc("GET /files", s.getFile)
	m.HandleFunc("POST /files", s.postFiles)
	m.HandleFunc("POST /files/compose", s.composeFiles)
	m.HandleFunc("GET /metrics", s.metrics)
	m.HandleFunc("GET /envs", s.envs)
	for path, h := range s.procedures() {
		m.Handle("POST "+path, h)
	}
	return m
}
