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

// headerPatience is the timeout for the response header of a server in a jail.
const headerPatience = 10 * time.Minute

// proxy returns a reverse proxy to the servers in the jails. Each request uses its own
// connection: an idle connection would break when the jail is paused, and the next request on
// it would be lost.
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
			// Servers in jails have self-signed certificates. The connection does not leave
			// the host, so there is nothing to verify.
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives:      true,
			DisableCompression:     true,
			ResponseHeaderTimeout:  headerPatience,
			MaxResponseHeaderBytes: 1 << 20,
		},
		FlushInterval: -1, // server-sent events must not be buffered
		ErrorHandler:  s.unreached,
		ErrorLog:      log.New(io.Discard, "", 0), // errors of servers in jails do not belong in the daemon's log
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A server may respond before it has read the whole request body.
		http.NewResponseController(w).EnableFullDuplex() // for HTTP/1; HTTP/2 is always full duplex
		p.ServeHTTP(w, r)
	})
}

// dialInterpreter connects to the code interpreter, which runs as the sandbox's default user.
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

// rewrite prepares a request for the server in the jail. It removes the client's credentials,
// which programs in the jail must not see.
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

// A refusal is the response to a request that cannot be proxied.
type refusal struct {
	Title   string `json:"-"` // title of the HTML page; "": the status code
	Sandbox string `json:"sandboxId"`
	Message string `json:"message"`
	Port    int    `json:"port,omitempty"`
	Code    int    `json:"code"`
}

// refused is the HTML page for browsers.
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

// unreached responds if the server in the jail cannot be reached.
func (s *Server) unreached(w http.ResponseWriter, r *http.Request, err error) {
	v := visited(r.Context())
	if errors.Is(err, interpreter.ErrNoPython) { // not 502: E2B's SDK takes that for a sandbox that was killed
		http.Error(w, interpreter.ErrNoPython.Error(), http.StatusNotFound)
		return
	}
	message := "The server in the sandbox did not answer: " + err.Error()
	if errors.Is(err, fault.Unavailable) && v.port != interpreter.Port {
		message = "The sandbox is running but port is not open"
	}
	writeRefusal(w, r, http.StatusBadGateway, refusal{Sandbox: v.sandbox, Message: message, Port: v.port})
}

// absent responds if Boxes cannot open the sandbox.
func (s *Server) absent(w http.ResponseWriter, r *http.Request, sandbox string, err error) {
	no := refusal{Title: "Sandbox Not Found", Sandbox: sandbox, Message: "The sandbox was not found"}
	switch {
	case errors.Is(err, fault.NotFound):
	case errors.Is(err, fault.Conflict):
		no.Title, no.Message = "Sandbox Not Running", "The sandbox is not running"
	default:
		s.log.Error("cannot open a sandbox", "sandbox", sandbox, "err", err)
		no.Title, no.Message = "Sandbox Not Reachable", "The sandbox cannot be reached now"
	}
	writeRefusal(w, r, http.StatusBadGateway, no)
}
