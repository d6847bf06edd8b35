package envd

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"glasshouse/e2b/interpreter"
)

// What requests prove with that they may be made.
const (
	tokenHeader   = "X-Access-Token"
	trafficHeader = "E2b-Traffic-Access-Token"
)

// same compares what a stranger says with a secret, in constant time.
func same(said, secret string) bool {
	a, b := sha256.Sum256([]byte(said)), sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// A denial is why a request may not reach a sandbox.
type denial struct {
	status  int
	title   string // of the page that a browser gets; "": the answer is envd's own JSON
	message string
}

func (d *denial) Error() string { return d.message }

// write answers the request.
func (d *denial) write(w http.ResponseWriter, r *http.Request, sandbox string) {
	if d.title == "" {
		writeError(w, d.status, d.message)
		return
	}
	writeRefusal(w, r, d.status, refusal{Title: d.title, Sandbox: sandbox, Message: d.message})
}

var (
	errNoToken = &denial{status: http.StatusUnauthorized, message: "unauthorized access, please provide a valid access token or method signing if supported"}
	errNoCode  = &denial{status: http.StatusUnauthorized, message: "Unauthorized"}
	errAsleep  = &denial{http.StatusForbidden, "Access Token Required", "The sandbox is paused. Only a request with its access token in the header X-Access-Token resumes it"}

	errNoTraffic    = &denial{http.StatusForbidden, "Missing Traffic Access Token", "Sandbox is secured with traffic access token. Token header '" + strings.ToLower(trafficHeader) + "' is missing"}
	errWrongTraffic = &denial{http.StatusForbidden, "Invalid Traffic Access Token", "Sandbox is secured with traffic access token. Provided token in header '" + strings.ToLower(trafficHeader) + "' is invalid"}
)

// fileOperation is what a signed link to a file permits, by the method that it is used with.
var fileOperation = map[string]string{http.MethodGet: "read", http.MethodHead: "read", http.MethodPost: "write"}

// admit returns a *denial if a request lacks the credentials that a sandbox asks for.
// It is the only check of credentials, and depends on nothing inside the sandbox, so that it
// can precede the resume of a paused one.
func admit(r *http.Request, port int, b Box, running bool) error {
	said := r.Header.Get(tokenHeader)
	hasToken := b.Token == "" || same(said, b.Token)
	if port != Port {
		traffic := r.Header.Get(trafficHeader)
		switch {
		case b.Traffic != "" && traffic == "":
			return errNoTraffic
		case b.Traffic != "" && !same(traffic, b.Traffic):
			return errWrongTraffic
		case port == interpreter.Port && !hasToken && !openToAll(r.URL.Path):
			return errNoCode
		}
		return nil
	}
	operation := fileOperation[r.Method]
	switch {
	case r.URL.Path == "/health" && operation == "read":
		// A running sandbox answers everybody. A resume costs its owner, so it takes the token.
		if !running && !hasToken {
			return errAsleep
		}
	case r.URL.Path == "/files" && operation != "":
		if err := signed(b.Token, said, r.URL.Query(), operation, time.Now()); err != nil {
			return &denial{status: http.StatusUnauthorized, message: err.Error()}
		}
	case !hasToken:
		return errNoToken
	}
	return nil
}

// openToAll reports whether a path of the code interpreter takes no access token: E2B's
// SDK sends none with requests about contexts. The path is cleaned, because Python's
// http.server takes //execute, and the interpreter /execute/, for /execute.
func openToAll(p string) bool {
	p = path.Clean("/" + p)
	return p == "/health" || p == "/contexts" || strings.HasPrefix(p, "/contexts/")
}

// signed returns nil for a request that carries the token, or whose link to one file was
// signed with it.
func signed(token, said string, q url.Values, operation string, now time.Time) error {
	if token == "" {
		return nil
	}
	if said != "" {
		if !same(said, token) {
			return errors.New("access token present in header but does not match")
		}
		return nil
	}
	if !q.Has("signature") {
		return errors.New("missing signature query parameter")
	}
	if !SignedWith(token, q, operation) {
		return errors.New("invalid signature")
	}
	if q.Has("signature_expiration") {
		until, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64)
		if err != nil || until < now.Unix() {
			return errors.New("signature is already expired")
		}
	}
	return nil
}

// SignedWith tells whether a link to a file was made with this token. Operation is read
// or write. Whether it has expired is another question.
func SignedWith(token string, q url.Values, operation string) bool {
	text := q.Get("path") + ":" + operation + ":" + q.Get("username") + ":" + token
	if q.Has("signature_expiration") {
		text += ":" + q.Get("signature_expiration")
	}
	sum := sha256.Sum256([]byte(text))
	return same(q.Get("signature"), "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
}
