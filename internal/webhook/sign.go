// Package webhook signs, verifies and sends webhooks according to the Standard Webhooks
// specification, and verifies those of GitHub.
package webhook

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"glasshouse/fault"
)

// A Scheme is a signature scheme.
type Scheme string

const (
	// Standard is the scheme of Standard Webhooks. The header Webhook-Signature has "v1," and the
	// base64 of the HMAC-SHA256 of Webhook-Id, Webhook-Timestamp and the body, joined with dots. It
	// may have several signatures, separated by spaces.
	Standard Scheme = "standard"

	// GitHub is the scheme of GitHub: the header X-Hub-Signature-256 has "sha256=" and the
	// HMAC-SHA256 of the body in hexadecimal. Only the body is signed.
	GitHub Scheme = "github"
)

// Window is the maximum difference between a message's time and now. It limits replays of an
// intercepted message.
const Window = 5 * time.Minute

// maxSignatures is the number of signatures that are checked: senders that rotate their key
// send two.
const maxSignatures = 8

// keyOf returns the signing key of a secret. Secrets of the Standard Webhooks are base64 with
// the prefix "whsec_".
func keyOf(secret []byte) ([]byte, error) {
	text, coded := bytes.CutPrefix(secret, []byte("whsec_"))
	if !coded {
		if len(secret) == 0 {
			return nil, errors.New("the signing key is empty")
		}
		return secret, nil
	}
	key, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil || len(key) == 0 {
		return nil, errors.New("the signing key has the prefix whsec_, but the rest is not base64")
	}
	return key, nil
}

// Headers returns the headers of a message with this id, signed according to Standard, or
// unsigned without a secret.
func Headers(secret []byte, id string, at time.Time, body []byte) (http.Header, error) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", stamp)
	if secret == nil {
		return h, nil
	}
	key, err := keyOf(secret)
	if err != nil {
		return nil, err
	}
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac(key, []byte(id+"."+stamp+"."), body)))
	return h, nil
}

func mac(key []byte, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, key)
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}

// Verify verifies a signature and, if the scheme has one, the time of a message, and returns a
// key that detects duplicates. Errors other than fault.Unauthenticated are caused by the
// receiver's configuration.
func (s Scheme) Verify(secret []byte, h http.Header, body []byte, now time.Time) (id string, err error) {
	key, err := keyOf(secret)
	if err != nil {
		return "", err
	}
	switch s {
	case Standard:
		return standard(key, h, body, now)
	case GitHub:
		return github(key, h, body)
	}
	return "", fmt.Errorf("unknown signature scheme %q", s)
}

// ErrSignature is the error for an invalid signature.
var ErrSignature = fault.Newf(fault.Unauthenticated, "webhook", "", "missing signature, or signed with another key")

func standard(key []byte, h http.Header, body []byte, now time.Time) (string, error) {
	id, stamp := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	if id == "" || len(id) > 256 || !utf8.ValidString(id) {
		return "", ErrSignature
	}
	at, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || strconv.FormatInt(at, 10) != stamp {
		return "", ErrSignature
	}
	want := mac(key, []byte(id+"."+stamp+"."), body)
	signed, n := false, 0
	for one := range strings.FieldsSeq(h.Get("Webhook-Signature")) {
		if n++; n > maxSignatures {
			break
		}
		text, v1 := strings.CutPrefix(one, "v1,")
		have, err := base64.StdEncoding.Strict().DecodeString(text)
		if v1 && err == nil && hmac.Equal(have, want) {
			signed = true
		}
	}
	if !signed {
		return "", ErrSignature
	}
	if d := now.Sub(time.Unix(at, 0)).Abs(); d > Window {
		return "", &fault.Error{Op: "webhook.standard", Kind: fault.Unauthenticated,
			Err:    fmt.Errorf("the timestamp differs from the current time by %s; at most %s are accepted", d.Round(time.Second), Window),
			Remedy: "sign messages when they are sent, and synchronize the clocks"}
	}
	return id, nil
}

// github identifies a message by its body: the header with the delivery id is not signed, so a
// replay could change it.
func github(key []byte, h http.Header, body []byte) (string, error) {
	text, ok := strings.CutPrefix(h.Get("X-Hub-Signature-256"), "sha256=")
	have, err := hex.DecodeString(text)
	if !ok || err != nil || !hmac.Equal(have, mac(key, body)) {
		return "", ErrSignature
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:]), nil
}
