package envd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"html/template"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"time"

	"glasshouse/e2b/interpreter"
	"glasshouse/fault"
	"glasshouse/jail"
)

// headerPatience bounds how long a server in a jail may take to begin its answer.
const headerPatience = 10 * time.Minute

// proxy passes requests on to servers in the jails. Every request has a connection of
// its own: one that waits for the next is lost when the jail is paused, and with it
// whatever is sent on it.
func (s *Server) proxy() http.Handler {
	p := &httputil.ReverseProxy{
		Rewrite: rewrite,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				v := visited(ctx)
				if v.port == interpreter.Port {
					return s.dialInterpreter(ctx, v)
				}
				return s.jails.Dial(ctx, v.Jail, v.port)
			},
			// Their certificates are their own, and the connection leaves nobody's memory.
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives:      true,
			DisableCompression:     true,
			ResponseHeaderTimeout:  headerPatience,
			MaxResponseHeaderBytes: 1 << 20,
		},
		FlushInterval: -1, // events are to come when they happen
		ErrorHandler:  s.unreached,
		ErrorLog:      log.New(io.Discard, "", 0), // what a server in a jail does wrong is no news of the daemon's
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A server may answer before it has been sent all, and is not cut off for that.
		http.NewResponseController(w).EnableFullDuplex() // where it is not supported it is so anyway
		p.ServeHTTP(w, r)
	})
}

// dialInterpreter reaches the code interpreter, which runs as commands do that name
// nobody.
func (s *Server) dialInterpreter(ctx context.Context, v *visit) (net.Conn, error) {
	user, err := v.named("")
	if err != nil {
		return nil, err
	}
	dir, err := v.directory("")
	if err != nil {
		return nil, err
	}
	env := map[string]string{"LOGNAME": user}
	maps.Copy(env, v.Env)
	return s.code.Dial(ctx, v.Jail, jail.ExecRequest{User: user, Cwd: dir, Env: env})
}

// rewrite makes of a request the one that the server in the jail gets. What the client
// proved with that it may come in is not for those inside.
func rewrite(r *httputil.ProxyRequest) {
	v := visited(r.In.Context())
	r.Out.URL.Scheme = "http"
	if slices.Contains(v.HTTPS, v.port) {
		r.Out.URL.Scheme = "https"
	}
	r.Out.URL.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(v.port))
	r.Out.Host = r.In.Host
	if v.Host != "" {
		r.Out.Host = strings.ReplaceAll(v.Host, "${PORT}", strconv.Itoa(v.port))
	}
	for _, h := range []string{tokenHeader, trafficHeader, "X-Api-Key"} {
		r.Out.Header.Del(h)
	}
	r.SetXForwarded()
}

// A refusal is how requests to ports that nobody serves are answered.
type refusal struct {
	Title   string `json:"-"` // of the page; "": the status
	Sandbox string `json:"sandboxId"`
	Message string `json:"message"`
	Port    int    `json:"port,omitempty"`
	Code    int    `json:"code"`
}

// refused is the page that a browser gets.
var refused = template.Must(template.New("").Parse(`<html><head><title>{{or .Title .Code}}</title></head><body>
<h1>{{or .Title .Message}}</h1>
{{with .Title}}<p>{{$.Message}}</p>
{{end}}<p>{{with .Sandbox}}Sandbox {{.}}{{end}}{{with .Port}}: there is no service running on port {{.}}{{end}}</p>
</body></html>`))

func writeRefusal(w http.ResponseWriter, q *http.Request, status int, r refusal) {
	r.Code = status
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Add("Vary", "User-Agent")
	if strings.HasPrefix(q.UserAgent(), "Mozilla/") {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		w.WriteHeader(status)
		refused.Execute(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(r)
}

// unreached answers when the server in the jail does not.
func (s *Server) unreached(w http.ResponseWriter, r *http.Request, err error) {
	v := visited(r.Context())
	if errors.Is(err, interpreter.ErrNoPython) { // of 502 clients say that the sandbox is gone
		http.Error(w, interpreter.ErrNoPython.Error(), http.StatusNotFound)
		return
	}
	message := "The server in the sandbox did not answer: " + err.Error()
	if errors.Is(err, fault.Unavailable) && v.port != interpreter.Port {
		message = "The sandbox is running but port is not open"
	}
	writeRefusal(w, r, http.StatusBadGateway, refusal{Sandbox: v.sandbox, Message: message, Port: v.port})
}

// absent answers for a sandbox that cannot be had.
func (s *Server) absent(w http.ResponseWriter, r *http.Request, sandbox string, err error) {
	no := refusal{Title: "Sandbox Not Found", Sandbox: sandbox, Message: "The sandbox was not found"}
	switch {
	case errors.Is(err, fault.NotFound):
	case errors.Is(err, fault.Conflict):
		no.Title, no.Message = "Sandbox Not Running", "The sandbox is not running"
	default:
		s.log.Error("sandbox not opened", "sandbox", sandbox, "err", err)
		no.Title, no.Message = "Sandbox Not Reachable", "The sandbox cannot be reached now"
	}
	writeRefusal(w, r, http.StatusBadGateway, no)
}
