package approval

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// LinkChannel is the channel of answers given through a link.
const LinkChannel = "link"

// A Link lets the holder of its token give one answer to one request, once. Only the hash of
// the token is stored.
type Link struct {
	Hash     string      `json:"hash"`
	Approval id.Approval `json:"approval"`
	Action   string      `json:"action"` // hash of the question
	Verdict  Verdict     `json:"verdict"`
	Author   Person      `json:"who"`
	Expires  time.Time   `json:"expires"`
	Used     time.Time   `json:"used,omitzero"`
}

const tokenSize = 32

// NewLink creates a link through which who can give the answer v to a pending request, and
// returns its URL.
func (q *Queue) NewLink(ctx context.Context, aid id.Approval, v Verdict, who Person) (string, error) {
	const op = "approval.NewLink"
	if q.cfg.Links == "" {
		return "", fault.Cannot(op, "approval links are disabled: approvals.links is not set", "set it to https://HOST/answers/")
	}
	if v != Allow && v != Deny {
		return "", fault.Fieldf(op, "verdict", "a link can only allow or deny")
	}
	r, err := q.store.Get(ctx, aid)
	if err != nil {
		return "", err
	}
	switch {
	case r.State != Pending:
		return "", fault.Newf(fault.Conflict, op, string(aid), "request is %s", r.State)
	case r.Tier == Elevated && v == Allow:
		return "", fault.Newf(fault.Denied, op, string(aid), "a link alone cannot allow an elevated request")
	}
	if err := checkPerson(r, who); err != nil {
		return "", err
	}
	token := make([]byte, tokenSize)
	rand.Read(token) // never fails
	text := base64.RawURLEncoding.EncodeToString(token)
	hash, _ := hashToken(text)
	l := Link{Hash: hash, Approval: aid, Action: r.Hash, Verdict: v, Author: who, Expires: r.Expires}
	if err := q.store.PutLink(ctx, l); err != nil {
		return "", fmt.Errorf("store the link: %w", err)
	}
	return strings.TrimSuffix(q.cfg.Links, "/") + "/" + text, nil
}

// hashToken returns the hash of an untrusted token, and whether the token is well-formed.
func hashToken(text string) (hash string, ok bool) {
	token, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(token) != tokenSize || len(text) != base64.RawURLEncoding.EncodedLen(tokenSize) {
		return "", false
	}
	sum := sha256.Sum256(token)
	return hex.EncodeToString(sum[:]), true
}

// Links returns the handler of links. The request path must be "/" followed by a token; the
// caller strips any prefix. GET shows the request and changes nothing, because mail scanners
// and link previews fetch URLs; POST gives the answer.
func (q *Queue) Links() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{token}", q.showLink)
	mux.HandleFunc("POST /{token}", q.useLink)
	return mux
}

// findLink returns the link of a token and its request.
func (q *Queue) findLink(ctx context.Context, token string) (Link, Request, error) {
	const op = "approval.Links"
	missing := fault.Newf(fault.NotFound, op, "", "the link does not exist or has expired")
	hash, ok := hashToken(token)
	if !ok {
		return Link{}, Request{}, missing
	}
	l, err := q.store.GetLink(ctx, hash)
	if errors.Is(err, fault.NotFound) {
		return Link{}, Request{}, missing
	}
	if err != nil {
		return Link{}, Request{}, err
	}
	r, err := q.store.Get(ctx, l.Approval)
	if err != nil {
		return Link{}, Request{}, err
	}
	if !l.Expires.After(time.Now()) || r.Hash != l.Action {
		return Link{}, Request{}, missing
	}
	return l, r, nil
}

func (q *Queue) showLink(w http.ResponseWriter, req *http.Request) {
	l, r, err := q.findLink(req.Context(), req.PathValue("token"))
	q.render(w, req, l, r, err)
}

func (q *Queue) useLink(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	l, r, err := q.findLink(ctx, req.PathValue("token"))
	if err == nil && l.Used.IsZero() {
		r, err = q.Answer(ctx, l.Approval, Answer{Verdict: l.Verdict, Scope: Once, By: l.Author, Channel: LinkChannel})
		if r.ID == "" {
			r.ID = l.Approval
		}
		if r.State != Pending {
			l.Used = time.Now().UTC()
			if err := q.store.PutLink(context.WithoutCancel(ctx), l); err != nil {
				q.cfg.Log.Error("failed to store that a link was used", "approval", l.Approval, "error", err)
			}
		}
	}
	q.render(w, req, l, r, err)
}

type page struct {
	View
	Verb    string // label of the button: "Allow once"
	Pending bool
	Problem string
	Remedy  string
}

func (q *Queue) render(w http.ResponseWriter, req *http.Request, l Link, r Request, err error) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Robots-Tag", "noindex, nofollow")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	p := page{Verb: map[Verdict]string{Allow: "Allow once", Deny: "Deny"}[l.Verdict]}
	status := http.StatusOK
	switch kind := fault.KindOf(err); {
	case err == nil:
	case kind == fault.NotFound:
		status, p.Problem = kind.Status(), "This link does not exist or has expired."
	case kind == fault.Conflict || kind == fault.Denied:
		status, p.Problem = kind.Status(), err.Error()
	default:
		q.cfg.Log.Error("failed to serve a link", "approval", l.Approval, "error", err)
		status, p.Problem = http.StatusInternalServerError, "Internal error. Try again, or answer in the web UI."
	}
	p.Remedy = fault.RemedyOf(err)
	if r.ID != "" && l.Hash != "" {
		p.View = Show(r, maxResource)
		p.Pending = r.State == Pending && l.Used.IsZero()
	}
	w.WriteHeader(status)
	if err := pageText.Execute(w, p); err != nil && req.Context().Err() == nil {
		q.cfg.Log.Error("failed to write a page", "error", fmt.Errorf("render: %w", err))
	}
}

var pageText = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Glasshouse</title>
<style>body{font:16px/1.4 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid;padding:.8rem;unicode-bidi:isolate-override;direction:ltr}
button{font-size:1.2rem;padding:.6rem 1.4rem}dt{font-weight:bold}</style></head><body>
{{with .Problem}}<p role="alert"><strong>{{.}}</strong></p>{{end}}{{with .Remedy}}<p>{{.}}</p>{{end}}
{{if .ID}}<h1>{{.Requester}}</h1><pre>{{.What}}</pre>
{{if not .Complete}}<p>Part of the request is not shown here.</p>{{end}}
<dl><dt>Reason</dt><dd>{{.Reason}}</dd><dt>Rule</dt><dd>{{.Rule}}</dd>
{{range .Details}}<dd>{{.}}</dd>{{end}}<dt>Tier</dt><dd>{{.Tier}}</dd>
{{with .Outcome}}<dt>Outcome</dt><dd>{{.}}</dd>{{end}}<dt>Request</dt><dd>{{.View.ID}}</dd></dl>
{{with .Context}}<details><summary>Context</summary><pre>{{.}}</pre></details>{{end}}
{{if .Pending}}<form method="post"><button>{{.Verb}}</button></form><p>Denied at {{.Expires.UTC.Format "2006-01-02 15:04:05"}} UTC unless answered.</p>
{{else}}<p>This request is {{.State}}.</p>{{end}}{{end}}
</body></html>
`))
