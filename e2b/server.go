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

	"glasshouse/access"
	"glasshouse/e2b/envd"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/linger"
)

// An Inside serves the ports of sandboxes. *envd.Server is one.
type Inside interface {
	ServeSandbox(w http.ResponseWriter, r *http.Request, sandbox string, port int)
}

// Keys tells whose key is brought.
type Keys interface {
	CheckKey(ctx context.Context, key string) (access.Caller, error)
}

// ServerConfig is what a Server needs.
type ServerConfig struct {
	Sandboxes *Sandboxes
	Volumes   *Volumes
	Secrets   Secrets
	Inside    Inside
	Keys      Keys
	Domain    string       // below which ports of sandboxes are hosts, such as localhost:8083
	Uploads   http.Handler // takes files below UploadPath, from who holds a link; nil: there are none
	More      http.Handler // takes requests for what is not served here, of callers who are known; nil: there is nothing
	Log       *slog.Logger
}

// UploadPath is where the files of templates are sent to. Clients bring no key with them:
// what follows the path says whose they are.
const UploadPath = "/template-files/"

// A Server answers both halves of the protocol at one address: requests for a sandbox's
// inside, which say so by headers, by host or by path, and all others for control.
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
		s.mux.Handle(UploadPath, cfg.Uploads)
	}
	s.mux.HandleFunc("/", s.more)
	return s
}

// ServeHTTP passes a request on to the half that it is for.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if to, ok := s.address(r); ok {
		if to.path != "" {
			http.StripPrefix(to.path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "" {
					r.URL.Path = "/"
				}
				s.cfg.Inside.ServeSandbox(w, r, to.sandbox, to.port)
			})).ServeHTTP(w, r)
			return
		}
		s.cfg.Inside.ServeSandbox(w, r, to.sandbox, to.port)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// An address is a port of a sandbox, and the part of the path that said so.
type address struct {
	sandbox string
	port    int
	path    string
}

// portsPath is what the path form of an address begins with: /ports/PORT-SANDBOX/.
const portsPath = "/ports/"

// address returns which port of which sandbox a request is for, if it is for one.
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
	if operation := filesOperation[r.Method]; r.URL.Path == "/files" && operation != "" && r.URL.Query().Has("signature") {
		sandbox, ok := s.cfg.Sandboxes.signed(r.URL.Query(), operation)
		return address{sandbox: sandbox, port: envd.Port}, ok
	}
	return address{}, false
}

// filesOperation is what the signature of a link to a file is for, which names no
// sandbox where both halves have one address.
var filesOperation = map[string]string{http.MethodGet: "read", http.MethodPost: "write"}

// parseAddress reads PORT-SANDBOX, or PORT-SANDBOX-CLIENT as older SDKs write it.
func parseAddress(label string) (address, bool) {
	number, ref, _ := strings.Cut(strings.ToLower(label), "-")
	port, ok := portNumber(number)
	sandbox := canonicalID(ref)
	return address{sandbox: sandbox, port: port}, ok && validID(sandbox)
}

// canonicalID returns the id of a sandbox without the id of a client behind it, which SDKs
// before 2.0 append: SANDBOX-CLIENT. Nothing depends on the client.
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

// maxBody bounds the JSON of a request.
const maxBody = 1 << 20

// A request is one for control, of a team that is known.
type request struct {
	*http.Request
	w    http.ResponseWriter
	team id.Token
	s    *Server
}

func (r request) sandbox() string { return canonicalID(r.PathValue("sandbox")) }

// read decodes the body into v, as ReadBody does.
func (r request) read(v any) error { return ReadBody(r.w, r.Request, v, maxBody) }

// errPassOn says that a request is for others after all.
var errPassOn = errors.New("it is served elsewhere")

// route has a request answered once its key is checked. A status without a body is
// answered with none.
func (s *Server) route(do func(request) (int, any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer Recover(s.cfg.Log, w, r)
		caller, err := s.caller(r)
		if err != nil {
			Fail(s.cfg.Log, w, r, err)
			return
		}
		status, body, err := do(request{r, w, caller.Token, s})
		if err == errPassOn {
			s.cfg.More.ServeHTTP(w, r.WithContext(access.WithCaller(r.Context(), caller)))
			return
		}
		if err != nil {
			Fail(s.cfg.Log, w, r, err)
			return
		}
		Answer(w, status, body)
	})
}

// more passes on what others serve.
func (s *Server) more(w http.ResponseWriter, r *http.Request) {
	defer Recover(s.cfg.Log, w, r)
	caller, err := s.caller(r)
	switch {
	case err != nil:
		Fail(s.cfg.Log, w, r, err)
	case s.cfg.More == nil:
		Fail(s.cfg.Log, w, r, fault.Newf(fault.NotFound, "e2b", "", "no matching operation was found"))
	default:
		s.cfg.More.ServeHTTP(w, r.WithContext(access.WithCaller(r.Context(), caller)))
	}
}

// caller returns whose key a request brings.
func (s *Server) caller(r *http.Request) (access.Caller, error) {
	key := r.Header.Get("X-API-Key")
	if key == "" {
		key, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	if key == "" {
		return access.Caller{}, fault.Newf(fault.Unauthenticated, "e2b", "", "authorization header is missing")
	}
	caller, err := s.cfg.Keys.CheckKey(r.Context(), key)
	if err == nil && !caller.Role.Allows(access.Operator) {
		return access.Caller{}, fault.Newf(fault.Unauthenticated, "e2b", "", "this key may make no sandboxes")
	}
	return caller, err
}

// statuses is every kind of error as the protocol has it.
var statuses = map[fault.Kind]int{
	fault.Invalid: http.StatusBadRequest, fault.Unauthenticated: http.StatusUnauthorized, fault.Denied: http.StatusForbidden,
	fault.NotFound: http.StatusNotFound, fault.Conflict: http.StatusConflict, fault.TooLarge: http.StatusRequestEntityTooLarge,
	fault.Exhausted: http.StatusTooManyRequests, fault.Unavailable: http.StatusServiceUnavailable, fault.Timeout: http.StatusGatewayTimeout,
	fault.Unsupported: http.StatusNotImplemented, fault.NoSpace: http.StatusInsufficientStorage,
}

// An Error is what is answered when something is refused or went wrong.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// ErrorOf is err as clients see it. What is not for them is not in it.
func ErrorOf(err error) Error {
	status, known := statuses[fault.KindOf(err)]
	if !known && fault.DiskFull(err) {
		return Error{http.StatusInsufficientStorage, "The disk of this host is full"}
	}
	if !known {
		return Error{http.StatusInternalServerError, "Internal Server Error"}
	}
	e, ok := errors.AsType[*fault.Error](err)
	for ok { // the innermost says it best
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
	return Error{status, text}
}

// Fail answers a request with what went wrong.
func Fail(log *slog.Logger, w http.ResponseWriter, r *http.Request, err error) {
	e := ErrorOf(err)
	if fault.KindOf(err) == "" {
		log.Error("internal error", "request", r.Method+" "+r.URL.Path, "err", err)
	}
	Answer(w, e.Code, e)
}

// Recover is deferred by whoever serves a request: a panic is told, and ends that alone.
func Recover(log *slog.Logger, w http.ResponseWriter, r *http.Request) {
	if p := recover(); p != nil {
		if p == http.ErrAbortHandler {
			panic(p)
		}
		log.Error("a request panicked", "request", r.Method+" "+r.URL.Path, "panic", p, "stack", string(debug.Stack()))
		Answer(w, http.StatusInternalServerError, Error{http.StatusInternalServerError, "Internal Server Error"})
	}
}

// Answer sends a body as JSON, or none.
func Answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if body == nil {
		if status != http.StatusNoContent { // else clients look for one in what is sent in pieces
			w.Header().Set("Content-Length", "0")
		}
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) // a client that is gone need not be told
}

// Listener returns an http.Server for a Server. What it carries may last as long as a
// sandbox does.
func Listener(h http.Handler, log *slog.Logger) *http.Server {
	srv := &http.Server{
		Handler: linger.Handler(h), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), Protocols: new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true) // by TLS
	srv.Protocols.SetUnencryptedHTTP2(true)
	return srv
}
