package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/report"
	"glasshouse/snapshot"
)

// Comparer is what the API asks of the part that compares jails and snapshots.
type Comparer interface {
	// Compare says what has to change to come from one end to the other.
	Compare(ctx context.Context, from, to snapshot.End, o snapshot.CompareOptions) (*report.Comparison, error)

	// Changes says the same of the files alone, all of them.
	Changes(ctx context.Context, from, to snapshot.End, o jail.ChangesOptions) ([]jail.Change, error)
}

type diffParams struct {
	ID    id.Jail `path:"id"`
	Limit int     `query:"limit" minimum:"1" maximum:"1000" description:"Items of a page, 100 if not given."`
	After string  `query:"after" description:"The 'next' of the page before."`

	Against   string `query:"against" description:"A snapshot or another jail: how the jail differs from that, instead of from its root filesystem."`
	Workspace bool   `query:"workspace" description:"How its workspace differs from the host's directory, instead of its root filesystem."`
	Path      string `query:"path" description:"Only this path and what is below it."`
	Content   string `query:"content" enum:"unified" description:"unified: with the differences of text files, as diff -u writes them. A page may then be shorter than its limit."`
}

// diffFiles answers with a page of what differs in a jail's files or, of a
// comparison with another, with all of it in a form for people.
func (s *Server) diffFiles(w http.ResponseWriter, r *http.Request, p diffParams) error {
	if kind, _ := (compareParams{}).kind(r); p.Against != "" && kind != jsonKind {
		from, err := endOf("against", p.Against)
		if err != nil {
			return err
		}
		only := "files"
		if p.Workspace {
			only = "workspace"
		}
		return s.compare(w, r, from, compareParams{Against: string(p.ID), Only: only, Content: p.Content})
	}
	if _, err := s.readBody(w, r, &none{}); err != nil {
		return err
	}
	page, err := s.diffJail(r.Context(), p)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, page)
}

func (s *Server) diffJail(ctx context.Context, p diffParams) (wire.Page[wire.Change], error) {
	var page wire.Page[wire.Change]
	n, err := limit(p.Limit)
	if err != nil {
		return page, err
	}
	after, err := pathAfter(p.After)
	if err != nil {
		return page, err
	}
	if p.Path != "" {
		if err := checkPath("path", p.Path); err != nil {
			return page, err
		}
	}
	if p.Content != "" && p.Content != "unified" {
		return page, fault.Fieldf("api", "content", "%q is not unified", text.Clip(p.Content, 64))
	}
	o := jail.ChangesOptions{Workspace: p.Workspace, Below: p.Path, Text: p.Content != "", After: after}
	all, err := s.changes(ctx, p, o)
	if err != nil {
		return page, err
	}
	list := all.changes
	from, _ := slices.BinarySearchFunc(list, after, func(c jail.Change, after string) int {
		return cmp.Or(strings.Compare(c.Path, after), -1) // after it, not at it
	})
	list = list[from:]
	// The texts of one answer are bounded: the page ends where they do.
	if i := slices.IndexFunc(list, func(c jail.Change) bool { return c.NoDiff == jail.DiffLater }); i > 0 {
		n = min(n, i)
	}
	list, page.Next = cut(list, n, func(c jail.Change) string { return pathKey(c.Path) })
	switch {
	case o.Text: // the list has the texts of this page alone
	case page.Next == "":
		s.listings.drop(all)
	default:
		s.listings.keep(all, page.Next)
	}
	page.Items = each(list, func(c jail.Change) wire.Change {
		return wire.Change{
			Path: c.Path, Kind: c.Kind, Type: c.Type, Size: c.Size, Mode: octal(c.Mode),
			From: c.From, What: c.What, Diff: c.Diff, NoDiff: c.NoDiff,
		}
	})
	return page, nil
}

// changes returns the list for a page: the list of the previous page if it is kept, or a
// new one.
func (s *Server) changes(ctx context.Context, p diffParams, o jail.ChangesOptions) (*listing, error) {
	key := listingKey{jail: p.ID, against: p.Against, path: p.Path, workspace: p.Workspace}
	if p.After != "" && !o.Text {
		if l := s.listings.find(key, p.After); l != nil {
			return l, s.stillThere(ctx, p)
		}
	}
	var list []jail.Change
	var err error
	if p.Against == "" {
		list, err = s.o.Jails.Changes(ctx, p.ID, o)
	} else {
		list, err = s.changesAgainst(ctx, p, o)
	}
	if err != nil {
		return nil, err
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b jail.Change) int { return strings.Compare(a.Path, b.Path) })
	return newListing(key, list), nil
}

// stillThere returns the error of a comparison whose jail or snapshot was deleted.
func (s *Server) stillThere(ctx context.Context, p diffParams) error {
	if _, err := s.o.Jails.Get(ctx, p.ID); err != nil || p.Against == "" {
		return err
	}
	against, err := endOf("against", p.Against)
	if err != nil {
		return err
	}
	if against.Jail != "" {
		_, err = s.o.Jails.Get(ctx, against.Jail)
		return err
	}
	k, err := s.snapshots()
	if err != nil {
		return err
	}
	_, err = k.Get(ctx, against.Snapshot)
	return err
}

// pathKey is a path as the 'next' of a page: the path itself, unless it is no
// text. JSON would make another path of that, and the pages might never end.
func pathKey(p string) string {
	if utf8.ValidString(p) {
		return p
	}
	return "~" + base64.RawURLEncoding.EncodeToString([]byte(p))
}

func pathAfter(key string) (string, error) {
	code, coded := strings.CutPrefix(key, "~")
	if !coded {
		return key, nil
	}
	p, err := base64.RawURLEncoding.DecodeString(code)
	if err != nil {
		return "", fault.Fieldf("api", "after", "%q is no page's 'next'", text.Clip(key, 64))
	}
	return string(p), nil
}

// changesAgainst lists what has to change in the files of another jail, or of a
// snapshot, to come to the jail's.
func (s *Server) changesAgainst(ctx context.Context, p diffParams, o jail.ChangesOptions) ([]jail.Change, error) {
	k, err := s.snapshots()
	if err != nil {
		return nil, err
	}
	from, err := endOf("against", p.Against)
	if err != nil {
		return nil, err
	}
	return k.Changes(ctx, from, snapshot.End{Jail: p.ID}, o)
}

// endOf reads what to compare with.
func endOf(field, s string) (snapshot.End, error) {
	switch {
	case id.Valid('s', s):
		return snapshot.End{Snapshot: id.Snapshot(s)}, nil
	case id.Valid('j', s):
		return snapshot.End{Jail: id.Jail(s)}, nil
	}
	return snapshot.End{}, fault.Fieldf("api", field, "%q is the id of neither a jail nor a snapshot", text.Clip(s, 64))
}

// compareParams say what is told of a comparison, and how.
type compareParams struct {
	Against string `query:"against" description:"A jail or a snapshot: what has to change to come from this one to that."`
	Only    string `query:"only" description:"Of files, workspace, processes, events and usage those that are told, joined by commas; all if not given."`
	Content string `query:"content" enum:"unified" description:"unified: with the differences of text files, as diff -u writes them, as far as they fit."`
	Format  string `query:"format" enum:"json,text,html" description:"As Accept: application/json, the default, text/plain and text/html."`
}

type compareJail struct {
	ID id.Jail `path:"id"`
	compareParams
}

// compareJail answers with what differs between a jail and another, or a snapshot.
func (s *Server) compareJail(w http.ResponseWriter, r *http.Request, p compareJail) error {
	if p.Against == "" {
		return fault.Fieldf("api", "against", "missing: a jail or a snapshot to compare with")
	}
	return s.compare(w, r, snapshot.End{Jail: p.ID}, p.compareParams)
}

type compareSnapshot struct {
	ID id.Snapshot `path:"sid"`
	compareParams
}

// compareSnapshot answers with what differs between a snapshot and the jail it was
// taken of, or another.
func (s *Server) compareSnapshot(w http.ResponseWriter, r *http.Request, p compareSnapshot) error {
	if p.Against == "" {
		k, err := s.snapshots()
		if err != nil {
			return err
		}
		one, err := k.Get(r.Context(), p.ID)
		if err != nil {
			return err
		}
		p.Against = string(one.Jail.ID)
	}
	return s.compare(w, r, snapshot.End{Snapshot: p.ID}, p.compareParams)
}

// comparisonPolicy is reportPolicy for a comparison.
var comparisonPolicy = report.ComparisonPolicy + "; sandbox"

func (s *Server) compare(w http.ResponseWriter, r *http.Request, from snapshot.End, p compareParams) error {
	if _, err := s.readBody(w, r, &none{}); err != nil {
		return err
	}
	k, err := s.snapshots()
	if err != nil {
		return err
	}
	to, err := endOf("against", p.Against)
	if err != nil {
		return err
	}
	kind, err := p.kind(r)
	if err != nil {
		return err
	}
	o := snapshot.CompareOptions{Text: p.Content != ""}
	if p.Content != "" && p.Content != "unified" {
		return fault.Fieldf("api", "content", "%q is not unified", text.Clip(p.Content, 64))
	}
	if o.Parts, err = parts(p.Only); err != nil {
		return err
	}
	c, err := k.Compare(r.Context(), from, to, o)
	if err != nil {
		return err
	}
	var render func(io.Writer) error
	switch kind {
	case htmlKind:
		render = c.HTML
		w.Header().Set("Content-Security-Policy", comparisonPolicy)
	case textKind:
		render = c.WriteText
	default:
		return writeJSON(w, http.StatusOK, c)
	}
	var b bytes.Buffer // so that what cannot be rendered is an error, not half a page
	if err := render(&b); err != nil {
		return err
	}
	w.Header().Set("Content-Type", kind+"; charset=utf-8")
	_, err = w.Write(b.Bytes())
	return err
}

func (p compareParams) kind(r *http.Request) (string, error) {
	switch p.Format {
	case "json":
		return jsonKind, nil
	case "text":
		return textKind, nil
	case "html":
		return htmlKind, nil
	case "":
	default:
		return "", fault.Fieldf("api", "format", "%q is not one of json, text, html", text.Clip(p.Format, 64))
	}
	for _, kind := range []string{jsonKind, htmlKind, textKind} {
		if accepts(r, kind) {
			return kind, nil
		}
	}
	return jsonKind, nil
}

// parts reads which parts of a comparison are wanted.
func parts(only string) (p snapshot.Parts, err error) {
	if only == "" {
		return p, nil
	}
	for word := range strings.SplitSeq(only, ",") {
		switch word {
		case "files":
			p.Files = true
		case "workspace":
			p.Workspace = true
		case "processes":
			p.Processes = true
		case "events":
			p.Events = true
		case "usage":
			p.Usage = true
		default:
			return p, fault.Fieldf("api", "only", "%q is not one of files, workspace, processes, events, usage", text.Clip(word, 64))
		}
	}
	return p, nil
}
