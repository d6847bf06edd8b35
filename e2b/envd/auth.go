package envd

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"
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

// withToken lets those in who have the token of the sandbox.
func (s *Server) withToken(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v := visited(r.Context()); v.Token != "" && !same(r.Header.Get(tokenHeader), v.Token) {
			writeError(w, http.StatusUnauthorized, "unauthorized access, please provide a valid access token or method signing if supported")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// signed lets those in who have the token, or a link that somebody who has it made for
// one file.
func (v *visit) signed(q url.Values, operation string, now time.Time) error {
	if v.Token == "" {
		return nil
	}
	if said := v.header.Get(tokenHeader); said != "" {
		if !same(said, v.Token) {
			return errors.New("access token present in header but does not match")
		}
		return nil
	}
	if !q.Has("signature") {
		return errors.New("missing signature query parameter")
	}
	if !SignedWith(v.Token, q, operation) {
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
