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
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
)

// A Box is a sandbox that runs.
type Box struct {
	Jail id.Jail
	User string            // of requests that name none; "": user
	Env  map[string]string // of every command, beneath the request's own
	Dir  string            // of commands and relative paths; "": the user's home

	// Token is what requests to Port must carry, Traffic what those to other ports
	// must; "" lets everybody in.
	Token   string
	Traffic string

	// Host is what servers at other ports see as the host they were asked for; "":
	// what the client asked for. ${PORT} in it is the port.
	Host string

	// HTTPS are the ports at which servers speak TLS.
	HTTPS []int
}

// Boxes finds sandboxes.
type Boxes interface {
	// Open returns the sandbox that a request is for, and resumes it if it is paused and
	// resumes by itself. Open calls v.Admit before it does so, and returns its error
	// unchanged. The sandbox is not paused until release is called. Other errors are
	// fault.NotFound if there is no such sandbox, and fault.Conflict if it does not run
	// and does not resume by itself.
	Open(ctx context.Context, sandbox string, v Visit) (box Box, release func(), err error)

	// Check returns nil for a sandbox that runs, and otherwise the error that Open
	// returns for one that does not resume by itself.
	Check(sandbox string) error
}

// A Visit is a request to a sandbox.
type Visit struct {
	Use Use

	// Admit returns an error if the request lacks the credentials that the sandbox asks for.
	Admit func(box Box, running bool) error
}

// A Use is how a request uses a sandbox.
type Use int

const (
	Ask    Use = iota // it waits for its answer
	Stay              // it is a stream or a connection, which ends when the client wants
	Glance            // it asks whether the sandbox runs, and does not keep it from being paused
)

// streams are the procedures that go on until the client has enough.
var streams = map[string]bool{
	"/process.Process/Start": true, "/process.Process/Connect": true, "/process.Process/StreamInput": true,
	"/filesystem.Filesystem/WatchDir": true,
}

// useOf returns how a request uses a sandbox.
func useOf(r *http.Request, port int) Use {
	switch {
	case port == Port && r.URL.Path == "/health":
		return Glance
	case port == Port && streams[r.URL.Path], port != Port && (r.Header.Get("Upgrade") != "" || strings.Contains(r.Header.Get("Accept"), "text/event-stream")):
		return Stay
	}
	return Ask
}

// Jails is what is asked of jails. *jail.Manager is one.
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

// Config is what a Server works with.
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
	inside   http.Handler // what is at Port
	ports    http.Handler // what is at the others
	code     *interpreter.Interpreters
	watchers watchers

	closing context.Context // done when the server is closed
	close   context.CancelFunc

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	wg     sync.WaitGroup // requests, and what they left running; not added to once closed
}

// New returns a server. The caller closes it.
func New(c Config) *Server {
	s := &Server{boxes: c.Boxes, jails: c.Jails, log: c.Log, code: interpreter.New(c.Jails)}
	s.closing, s.close = context.WithCancel(context.Background())
	s.inside = s.routes()
	s.ports = s.proxy()
	return s
}

// Close ends what is still served and waits for it. Commands go on in their jails.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.close()
	s.wg.Wait()
	return nil
}

// enter is called before anything that Close is to wait for.
func (s *Server) enter() (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fault.Newf(fault.Unavailable, "e2b.Serve", "", "the daemon ends")
	}
	s.wg.Add(1)
	return s.wg.Done, nil
}

// A visit is a request to a sandbox. It travels in the request's context.
type visit struct {
	Box
	sandbox string
	port    int
	header  http.Header
}

type visitKey struct{}

func visited(ctx context.Context) *visit { return ctx.Value(visitKey{}).(*visit) }

// ServeSandbox answers a request to a port of a sandbox. The path is the one that the
// server there is to see.
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

// routes are what is at Port. Requests have been admitted.
func (s *Server) routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	m.HandleFunc("POST /init", func(w http.ResponseWriter, _ *http.Request) {
		// E2B's control plane sets a sandbox up by this call. Here the daemon does, by other means.
		writeError(w, http.StatusUnauthorized, "the daemon alone initializes sandboxes: clients cannot change the access token")
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
