package route

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/fleet/pki"
)

const (
	joinPath  = "/fleet/join"
	renewPath = "/fleet/renew"

	tokenPrefix = "ghj_"
	tokenTime   = 10 * time.Minute
	maxMessage  = 64 << 10
)

// A signing is a request for a certificate.
type signing struct {
	Token   string `json:"token,omitempty"` // of a node that joins
	Node    string `json:"node,omitempty"`  // the same
	Request []byte `json:"request"`         // PKCS #10, DER
}

// A signed is the response.
type signed struct {
	Certificate []byte `json:"certificate"`      // DER
	Secret      []byte `json:"secret,omitempty"` // for a node that joins
}

// A refusal is the response about an error.
type refusal struct {
	Kind   fault.Kind `json:"kind"`
	Error  string     `json:"error"`
	Remedy string     `json:"remedy,omitempty"`
}

// refusedHeader marks refusals of a node, whatever user has sent the request.
const refusedHeader = "Glasshouse-Refused"

// readRefusal returns the error of a refusal.
func readRefusal(status string, body []byte) error {
	var no refusal
	if json.Unmarshal(body, &no) != nil || no.Error == "" {
		return fault.Newf(fault.Unavailable, "route.readRefusal", "", "the response has the status %s", status)
	}
	return &fault.Error{Op: "route.readRefusal", Kind: no.Kind, Err: errors.New(no.Error), Remedy: no.Remedy}
}

func hashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Invite creates a token with which one node can join within ten minutes, at this node.
func (rt *Router) Invite(ctx context.Context) (token, fingerprint string, err error) {
	if rt.cfg.Identity.Issuer() == nil {
		return "", "", fault.Cannot("route.Invite", "this node does not issue certificates", "create the token on the node on which the fleet was created: glasshouse --node NAME node token")
	}
	token = tokenPrefix + rand.Text()
	if err := rt.cfg.Store.Invite(ctx, hashToken(token), tokenTime); err != nil {
		return "", "", err
	}
	return token, pki.Fingerprint(rt.cfg.Identity.Authority()), nil
}

// callHeader marks requests of nodes themselves. Forward removes it from those of users, whose paths
// can be the same.
const callHeader = "Glasshouse-Call"

// Handler serves the connections of other nodes. Requests that they forward are passed to api, and
// those of Call to calls, by their paths.
func (rt *Router) Handler(api http.Handler, calls map[string]http.Handler) http.Handler {
	mux := http.NewServeMux()
	for path, h := range calls {
		mux.HandleFunc("POST "+path, rt.fromPeer(h))
	}
	forwarded := rt.fromPeer(api)
	mux.Handle("POST "+joinPath, rt.signer(rt.join, rt.cfg.Secret))
	mux.Handle("POST "+renewPath, rt.signer(rt.renew, nil))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(callHeader) == "" {
			forwarded(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// fromPeer refuses requests of clients that are no nodes.
func (rt *Router) fromPeer(h http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := rt.peer(r, 0); err != nil {
			refuse(w, err)
			return
		}
		h.ServeHTTP(w, r)
	}
}

// peer returns the node that has sent a request. A node that was removed is refused.
func (rt *Router) peer(r *http.Request, grace time.Duration) (string, error) {
	node, err := rt.cfg.Identity.Peer(r.TLS, time.Now(), grace)
	if err != nil {
		return "", err
	}
	_, err = rt.peers.find(r.Context(), node) // reads the list again if the node is new
	switch {
	case errors.Is(err, fault.NotFound):
		return "", fault.Newf(fault.Unauthenticated, "route.peer", node, "the node is not in the fleet")
	case err != nil:
		return "", fault.New(fault.Unavailable, "route.peer", node, err)
	}
	return node, nil
}

func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
		status = http.StatusUnauthorized
	case fault.Invalid:
		status = http.StatusBadRequest
	case fault.Unsupported:
		status = http.StatusNotImplemented
	case fault.Unavailable:
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set(refusedHeader, "node")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(refusal{fault.KindOf(err), err.Error(), fault.RemedyOf(err)})
}

// signer serves requests for certificates. who returns the node that has sent one, and secret what
// it gets in addition.
func (rt *Router) signer(who func(r *http.Request, s signing) (string, error), secret func() ([]byte, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var more []byte
		var err error
		if secret != nil {
			more, err = secret() // before the token is used
		}
		var cert *x509.Certificate
		if err == nil {
			cert, err = rt.issue(w, r, who)
		}
		if err != nil {
			rt.cfg.Log.Warn("refused a certificate of the fleet", "addr", r.RemoteAddr, "path", r.URL.Path, "err", err)
			refuse(w, err)
			return
		}
		json.NewEncoder(w).Encode(signed{cert.Raw, more})
	})
}

func (rt *Router) issue(w http.ResponseWriter, r *http.Request, who func(r *http.Request, s signing) (string, error)) (*x509.Certificate, error) {
	const op = "route.issue"
	issuer := rt.cfg.Identity.Issuer()
	if issuer == nil {
		return nil, fault.Cannot(op, "this node does not issue certificates", "use the address that glasshouse node token printed")
	}
	var s signing
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fault.New(fault.Invalid, op, "", err)
	}
	node, err := who(r, s)
	if err != nil {
		return nil, err
	}
	cert, err := issuer.Issue(s.Request, node, time.Now())
	if err == nil {
		rt.cfg.Log.Info("issued a certificate of the fleet", "node", node, "path", r.URL.Path)
	}
	return cert, err
}

// join identifies a node by its token, which can then not be used again.
func (rt *Router) join(r *http.Request, s signing) (string, error) {
	if !pki.ValidNode(s.Node) {
		return "", fault.Newf(fault.Invalid, "route.join", "", "%.100q is not the ID of a node", s.Node)
	}
	if s.Node == rt.cfg.Self {
		return "", fault.Newf(fault.Invalid, "route.join", s.Node, "the node that joins has the ID of this node: its data directory is a copy")
	}
	return s.Node, rt.cfg.Store.Accept(r.Context(), hashToken(s.Token), s.Node)
}

// renew identifies a node by its certificate.
func (rt *Router) renew(r *http.Request, _ signing) (string, error) { return rt.peer(r, pki.Grace) }

// Join gets a certificate for a node from the node at an address, and stores it in a directory. It
// returns the secret of that node. The token and the fingerprint of the authority are those of
// Invite.
func Join(ctx context.Context, dir, node, addr, token, fingerprint string) (secret []byte, err error) {
	if err := pki.Vacant(dir); err != nil {
		return nil, err
	}
	key, request, err := pki.NewRequest()
	if err != nil {
		return nil, err
	}
	t := &http.Transport{TLSClientConfig: pki.Joining(fingerprint, time.Now), DisableKeepAlives: true}
	cert, got, response, err := requestCert(ctx, t, "https://"+addr+joinPath, signing{token, node, request})
	if err != nil {
		return nil, fmt.Errorf("join the fleet at %s: %w", addr, err)
	}
	_, err = pki.Create(dir, key, cert, pki.AuthorityOf(response.TLS))
	return got.Secret, err
}

func requestCert(ctx context.Context, t http.RoundTripper, url string, s signing) (*x509.Certificate, signed, *http.Response, error) {
	var yes signed
	response, err := post(ctx, t, url, s, &yes)
	if err != nil {
		return nil, yes, nil, err
	}
	cert, err := x509.ParseCertificate(yes.Certificate)
	if err != nil {
		return nil, yes, nil, fault.New(fault.Unavailable, "route.requestCert", url, err)
	}
	return cert, yes, response, nil
}

// post sends in as JSON, and decodes the response into out. The body of the result is closed.
func post(ctx context.Context, t http.RoundTripper, url string, in, out any) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	response, err := send(ctx, t, url, in)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(io.LimitReader(response.Body, maxMessage)).Decode(out); err != nil {
		return nil, fault.New(fault.Unavailable, "route.post", url, err)
	}
	return response, nil
}

// send sends in as JSON. The response is not a refusal, and the caller closes its body.
func send(ctx context.Context, t http.RoundTripper, url string, in any) (*http.Response, error) {
	const op = "route.send"
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, fault.New(fault.Invalid, op, url, err)
	}
	r.Header.Set(callHeader, "node")
	response, err := t.RoundTrip(r)
	if err != nil {
		if fault.KindOf(err) != "" {
			return nil, err
		}
		return nil, fault.New(fault.Unavailable, op, url, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxMessage))
	if err != nil {
		return nil, fault.New(fault.Unavailable, op, url, err)
	}
	return nil, readRefusal(response.Status, data)
}

// Call sends a request of this node, not of a user, to a path of another one. See Answer.
func (rt *Router) Call(ctx context.Context, node, path string, in, out any) error {
	n, err := rt.reachablePeer(ctx, node)
	if err == nil {
		_, err = post(ctx, rt.link(n), "https://"+n.Addr+path, in, out)
	}
	return err
}

// Open is like Call, and returns the body of the response, which is of any kind and length. An
// error of Read means that it is not complete.
func (rt *Router) Open(ctx context.Context, node, path string, in any) (io.ReadCloser, error) {
	n, err := rt.reachablePeer(ctx, node)
	if err != nil {
		return nil, err
	}
	response, err := send(ctx, rt.link(n), "https://"+n.Addr+path, in)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// Answer returns the handler of a path that other nodes call with Call.
func Answer[In, Out any](do func(ctx context.Context, in In) (Out, error)) http.Handler {
	return Stream(func(ctx context.Context, in In, w io.Writer) error {
		out, err := do(ctx, in)
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(out)
	})
}

// Stream returns the handler of a path that other nodes call with Open. An error after the first
// byte breaks the response off.
func Stream[In any](do func(ctx context.Context, in In, w io.Writer) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in In
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage)).Decode(&in)
		if err != nil {
			refuse(w, fault.New(fault.Invalid, "route.Stream", r.URL.Path, err))
			return
		}
		out := &started{Writer: w}
		err = do(r.Context(), in, out)
		switch {
		case err != nil && out.yes:
			panic(http.ErrAbortHandler)
		case err != nil:
			refuse(w, err)
		}
	})
}

// A started Writer knows whether something was written.
type started struct {
	io.Writer
	yes bool
}

func (s *started) Write(b []byte) (int, error) {
	s.yes = true
	return s.Writer.Write(b)
}

// renewInterval is the time between checks whether the certificate of this node must be renewed.
const renewInterval = time.Minute

// KeepCertificate renews the certificate of this node until ctx ends.
func (rt *Router) KeepCertificate(ctx context.Context) {
	tick := time.NewTicker(renewInterval)
	defer tick.Stop()
	for {
		if rt.cfg.Identity.Due(time.Now()) {
			if err := rt.Renew(ctx); err != nil && ctx.Err() == nil {
				rt.cfg.Log.Warn("could not renew the certificate of this node; it is repeated", "until", rt.cfg.Identity.Certificate().NotAfter, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Renew gets a new certificate from this node or another one.
func (rt *Router) Renew(ctx context.Context) error {
	request, err := rt.cfg.Identity.Request()
	if err != nil {
		return err
	}
	if issuer := rt.cfg.Identity.Issuer(); issuer != nil {
		cert, err := issuer.Issue(request, rt.cfg.Self, time.Now())
		if err != nil {
			return err
		}
		return rt.cfg.Identity.Replace(cert)
	}
	nodes, err := rt.Nodes(ctx)
	if err != nil {
		return err
	}
	var tried []string
	errs := []error{errors.New("no node has issued a certificate")}
	for _, n := range nodes {
		if n.ID == rt.cfg.Self || n.Addr == "" || n.State != fleet.Up {
			continue
		}
		cert, _, _, err := requestCert(ctx, rt.link(n), "https://"+n.Addr+renewPath, signing{Request: request})
		if err == nil {
			return rt.cfg.Identity.Replace(cert)
		}
		tried = append(tried, n.Name)
		errs = append(errs, err)
	}
	return fault.New(fault.Unavailable, "route.Renew", strings.Join(tried, ", "), errors.Join(errs...))
}
