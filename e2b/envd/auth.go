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

// Headers with credentials.
const (
	tokenHeader   = "X-Access-Token"
	trafficHeader = "E2b-Traffic-Access-Token"
)

// same compares an untrusted value with a secret, in constant time.
func same(given, secret string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// A denial is the error of a request that lacks credentials.
type denial struct {
	status  int
	title   string // title of the HTML page for browsers; "": the response is envd's JSON
	message string
}

func (d *denial) Error() string { return d.message }

// write sends d as the response.
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

// fileOperation maps the method of a request for /files to the operation that a signed URL
// must permit.
var fileOperation = map[string]string{http.MethodGet: "read", http.MethodHead: "read", http.MethodPost: "write"}

// admit returns a *denial if a request lacks the credentials that a sandbox asks for.
// It is the only check of credentials. It does not depend on the state inside the sandbox, so
// that it can run before a paused sandbox is resumed.
func admit(r *http.Request, port int, b Box, running bool) error {
	given := r.Header.Get(tokenHeader)
	hasToken := b.Token == "" || same(given, b.Token)
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
		// The health check of a running sandbox needs no token. Resuming a paused sandbox
		// costs its owner, so it needs the token.
		if !running && !hasToken {
			return errAsleep
		}
	case r.URL.Path == "/files" && operation != "":
		if err := signed(b.Token, given, r.URL.Query(), operation, time.Now()); err != nil {
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

// signed returns nil if the request carries the token or a valid signature of the URL that
// was made with the token.
func signed(token, signature string, q url.Values, operation string, now time.Time) error {
	if token == "" {
		return nil
	}
	if signature != "" {
		if !same(signature, token) {
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

// SignedWith reports whether the URL of a file was signed with this token. Operation is "read"
// or "write". SignedWith does not check the expiration.
func SignedWith(token string, q url.Values, operation string) bool {
	text := q.Get("path") + ":" + operation + ":" + q.Get("username") + ":" + token
	if q.Has("signature_expiration") {
		text += ":" + q.Get("signature_expiration")
	}
	sum := sha256.Sum256([]byte(text))
	return same(q.Get("signature"), "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
}
