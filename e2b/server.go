package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"glasshouse/e2b/envd"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/internal/linger"
	"glasshouse/policy/access"
)

// A PortServer serves the ports of sandboxes. *envd.Server implements it.
type PortServer interface {
	ServeSandbox(w http.ResponseWriter, r *http.Request, sandbox string, port int)
}

// Keys authenticates API keys.
type Keys interface {
	CheckKey(ctx context.Context, key string) (access.Caller, error)
}

// ServerConfig configures a Server.
type ServerConfig struct {
	Sandboxes *Sandboxes
	Volumes   *Volumes
	Secrets   Secrets
	Ports     PortServer
	Keys      Keys
	Domain    string       // domain whose subdomains are ports of sandboxes, such as localhost:8083
	Uploads   http.Handler // accepts uploads below UploadPath from holders of a link; may be nil
	Fallback  http.Handler // serves authenticated requests that Server has no route for; may be nil
	Log       *slog.Logger

	Fleet   Fleet                     // nil: this daemon is not in a fleet
	Front   bool                      // this daemon has no sandboxes of its own
	Changed func(ctx context.Context) // called after an object has changed, before the response; may be nil
}

// UploadPath is the path of uploads of template files. Clients send no key: the rest of the path
// authenticates them.
const UploadPath = "/template-files/"

// A Server serves the whole protocol at one address. It routes requests for a sandbox, which are
// addressed by headers, host or path, to envd, and all others to the control API.
type Server struct {
	cfg ServerConfig
	mux *http.ServeMux
}

// NewServer returns a Server.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{cfg: cfg, mux: http.NewServeMux()}
	for _, r := range routes {
		s.mux.Handle(r.pattern, s.route(r.do))
	}
	for _, r := range contents {
		s.mux.Handle(r.pattern, s.content(r.do))
	}
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	if cfg.Uploads != nil {
		s.mux.HandleFunc(UploadPath, func(w http.ResponseWriter, r *http.Request) {
			if !s.elsewhere(w, r, "") {
				cfg.Uploads.ServeHTTP(w, r)
			}
		})
	}
	s.mux.HandleFunc("/", s.more)
	return s
}

// ServeHTTP routes a request to envd or to the control API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Header.Del(fleet.E2BHeader) // of another node, which ServeNode has read, or forged by a client
	to, ok := s.address(r)
	if s.portElsewhere(w, r, to, ok) {
		return
	}
	if ok {
		if to.path != "" {
			http.StripPrefix(to.path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "" {
					r.URL.Path = "/"
				}
				s.cfg.Ports.ServeSandbox(w, r, to.sandbox, to.port)
			})).ServeHTTP(w, r)
			return
		}
		s.cfg.Ports.ServeSandbox(w, r, to.sandbox, to.port)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// An address is a port of a sandbox, and the path prefix that named it.
type address struct {
	sandbox string
	port    int
	path    string
}

// portsPath begins the path form of an address: /ports/PORT-SANDBOX/.
const portsPath = "/ports/"

// address returns the sandbox port that a request addresses, if it addresses one.
func (s *Server) address(r *http.Request) (address, bool) {
	if sandbox := r.Header.Get("E2b-Sandbox-Id"); sandbox != "" {
		port, ok := portNumber(r.Header.Get("E2b-Sandbox-Port"))
		return address{sandbox: canonicalID(sandbox), port: port}, ok
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if label, _, below := strings.Cut(host, "."); below {
		if a, ok := parseAddress(label); ok {
			return a, true
		}
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, portsPath); ok {
		label, _, _ := strings.Cut(rest, "/")
		a, ok := parseAddress(label)
		a.path = portsPath + label
		return a, ok
	}
	if operation := signedOperation(r); operation != "" {
		sandbox, ok := s.cfg.Sandboxes.signed(r.URL.Query(), operation)
		return address{sandbox: sandbox, port: envd.Port}, ok
	}
	return address{}, false
}

// filesOperation maps methods to the operation that a file link's signature covers.
var filesOperation = map[string]string{http.MethodGet: "read", http.MethodPost: "write"}

// signedOperation returns the operation of a request by a file link that names no sandbox, because
// envd and the control API share one address; "" for other requests.
func signedOperation(r *http.Request) string {
	if r.URL.Path != "/files" || !r.URL.Query().Has("signature") {
		return ""
	}
	return filesOperation[r.Method]
}

// parseAddress parses PORT-SANDBOX, or PORT-SANDBOX-CLIENT as older SDKs write it.
func parseAddress(label string) (address, bool) {
	number, ref, _ := strings.Cut(strings.ToLower(label), "-")
	port, ok := portNumber(number)
	sandbox := canonicalID(ref)
	return address{sandbox: sandbox, port: port}, ok && validID(sandbox)
}

// canonicalID returns the id of a sandbox without the client id that SDKs before 2.0 append:
// SANDBOX-CLIENT. The client id has no effect.
func canonicalID(ref string) string {
	if sandbox, _, ok := strings.Cut(ref, "-"); ok && validID(sandbox) {
		return sandbox
	}
	return ref
}

func portNumber(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err == nil && n > 0
}

// maxBody is the maximum size of a JSON request body.
const maxBody = 1 << 20

// A request is an authenticated control request of a team.
type request struct {
	*http.Request
	w    http.ResponseWriter
	team id.Token
	s    *Server
}

func (r request) sandbox() string { return canonicalID(r.PathValue("sandbox")) }

// read decodes the body into v, as ReadBody does.
func (r request) read(v any) error { return ReadBody(r.w, r.Request, v, maxBody) }

// errPassOn makes route pass the request to the next handler.
var errPassOn = errors.New("another handler serves the request")

// route authenticates requests, calls do and writes the response. A status without a body has an
// empty response.
func (s *Server) route(do func(request) (int, any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer Recover(s.cfg.Log, w, r)
		caller, err := s.caller(r)
		if err != nil {
			WriteError(s.cfg.Log, w, r, err)
			return
		}
		if s.elsewhere(w, r, caller.Token) {
			return
		}
		status, body, err := do(request{r, w, caller.Token, s})
		if err == errPassOn {
			s.cfg.Fallback.ServeHTTP(w, r.WithContext(access.WithCaller(r.Context(), caller)))
			return
		}
		if err != nil {
			WriteError(s.cfg.Log, w, r, err)
			return
		}
		if r.Method != http.MethodGet && s.cfg.Changed != nil {
			s.cfg.Changed(r.Context())
		}
		WriteJSON(w, status, body)
	})
}

// more passes a request to ServerConfig.Fallback.
func (s *Server) more(w http.ResponseWriter, r *http.Request) {
	defer Recover(s.cfg.Log, w, r)
	caller, err := s.caller(r)
	switch {
	case err != nil:
		WriteError(s.cfg.Log, w, r, err)
	case s.cfg.Fallback == nil:
		WriteError(s.cfg.Log, w, r, fault.Newf(fault.NotFound, "e2b.more", "", "no matching operation was found"))
	case s.elsewhere(w, r, caller.Token):
	default:
		s.cfg.Fallback.ServeHTTP(w, r.WithContext(access.WithCaller(r.Context(), caller)))
	}
}

// caller authenticates a request by its API key.
func (s *Server) caller(r *http.Request) (access.Caller, error) {
	key := r.Header.Get("X-API-Key")
	if key == "" {
		key, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	if key == "" {
		return access.Caller{}, fault.Newf(fault.Unauthenticated, "e2b.caller", "", "authorization header is missing")
	}
	caller, err := s.cfg.Keys.CheckKey(r.Context(), key)
	if err == nil && !caller.Role.Allows(access.Operator) {
		return access.Caller{}, fault.Newf(fault.Unauthenticated, "e2b.caller", "", "this key cannot create sandboxes")
	}
	return caller, err
}

// An Error is the body of an error response.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// ErrorOf converts err for clients. Internal details are not part of the result.
func ErrorOf(err error) Error {
	kind := fault.KindOf(err)
	if kind == "" && fault.DiskFull(err) {
		return Error{fault.NoSpace.Status(), "The disk of this host is full"}
	}
	if kind == "" {
		return Error{http.StatusInternalServerError, "Internal Server Error"}
	}
	e, ok := errors.AsType[*fault.Error](err)
	for ok { // the innermost error is the most specific
		inner, more := errors.AsType[*fault.Error](e.Err)
		if !more {
			break
		}
		e = inner
	}
	text := err.Error()
	if ok && e.Err != nil {
		text = e.Err.Error()
	}
	if r := fault.RemedyOf(err); r != "" {
		text += ": " + r
	}
	return Error{kind.Status(), text}
}

// WriteError writes an error response.
func WriteError(log *slog.Logger, w http.ResponseWriter, r *http.Request, err error) {
	e := ErrorOf(err)
	if fault.KindOf(err) == "" {
		log.Error("internal error", "request", r.Method+" "+r.URL.Path, "err", err)
	}
	WriteJSON(w, e.Code, e)
}

// Recover is deferred by request handlers. It logs a panic and sends an internal error, so that
// a panic ends only its request.
func Recover(log *slog.Logger, w http.ResponseWriter, r *http.Request) {
	if p := recover(); p != nil {
		if p == http.ErrAbortHandler {
			panic(p)
		}
		log.Error("a request panicked", "request", r.Method+" "+r.URL.Path, "panic", p, "stack", string(debug.Stack()))
		WriteJSON(w, http.StatusInternalServerError, Error{http.StatusInternalServerError, "Internal Server Error"})
	}
}

// WriteJSON writes a JSON response, or an empty one.
func WriteJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if body == nil {
		if status != http.StatusNoContent { // otherwise clients expect a body because of the chunked encoding
			w.Header().Set("Content-Length", "0")
		}
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) // an error means that the client has disconnected
}

// NewHTTPServer returns an http.Server for a Server. It has no overall timeout, because connections
// may last as long as a sandbox.
func NewHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	srv := &http.Server{
		Handler: linger.Handler(h), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), Protocols: new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true) // over TLS
	srv.Protocols.SetUnencryptedHTTP2(true)
	return srv
}
