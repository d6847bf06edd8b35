package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
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
	"glasshouse/jail/snapshot"
	"glasshouse/observe/report"
)

// Comparer compares jails and snapshots.
type Comparer interface {
	// Compare returns the changes that lead from one end to the other.
	Compare(ctx context.Context, from, to snapshot.Side, o snapshot.CompareOptions) (*report.Comparison, error)

	// Changes returns only the file changes, without a limit.
	Changes(ctx context.Context, from, to snapshot.Side, o jail.ChangesOptions) ([]jail.Change, error)
}

// diffHandler serves the routes that compare files, jails and snapshots.
type diffHandler struct {
	jails     Manager
	snapshots Snapshots // nil: none
	listings  *listings
}

type diffParams struct {
	ID    id.Jail `path:"id"`
	Limit int     `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After string  `query:"after" description:"The 'next' value of the previous page."`

	Against   string `query:"against" description:"Compare with this snapshot or jail instead of the root filesystem."`
	Workspace bool   `query:"workspace" description:"Compare the workspace with the host directory, instead of the root filesystem."`
	Path      string `query:"path" description:"Only this path and the paths below it."`
	Content   string `query:"content" enum:"unified" description:"unified: include unified diffs (diff -u) of text files. A page may then have fewer items than limit."`
}

// diffFiles responds with a page of the file changes of a jail. For a comparison with another
// jail or snapshot it can respond with the whole list as text or HTML.
func (h *diffHandler) diffFiles(w http.ResponseWriter, r *http.Request, p diffParams) error {
	if p.Against != "" && h.snapshots == nil {
		return noSnapshots
	}
	if kind, _ := (compareParams{}).kind(r); p.Against != "" && kind != jsonKind {
		from, err := endOf("against", p.Against)
		if err != nil {
			return err
		}
		only := "files"
		if p.Workspace {
			only = "workspace"
		}
		return h.compare(w, r, from, compareParams{Against: string(p.ID), Only: only, Content: p.Content})
	}
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	page, err := h.diffJail(r.Context(), p)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, page)
}

func (h *diffHandler) diffJail(ctx context.Context, p diffParams) (wire.Page[wire.Change], error) {
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
		return page, fault.Fieldf("api.diffJail", "content", "%q is not unified", text.Clip(p.Content, 64))
	}
	o := jail.ChangesOptions{Workspace: p.Workspace, Below: p.Path, Text: p.Content != "", After: after}
	all, err := h.changes(ctx, p, o)
	if err != nil {
		return page, err
	}
	list := all.changes
	from, _ := slices.BinarySearchFunc(list, after, func(c jail.Change, after string) int {
		return cmp.Or(strings.Compare(c.Path, after), -1) // the first item after it
	})
	list = list[from:]
	// The total text size of a response is limited. The page ends at the limit.
	if i := slices.IndexFunc(list, func(c jail.Change) bool { return c.NoDiff == jail.DiffTruncated }); i > 0 {
		n = min(n, i)
	}
	list, page.Next = cut(list, n, func(c jail.Change) string { return pathKey(c.Path) })
	switch {
	case o.Text: // only this page has texts
	case page.Next == "":
		h.listings.drop(all)
	default:
		h.listings.keep(all, page.Next)
	}
	page.Items = each(list, func(c jail.Change) wire.Change {
		return wire.Change{
			Path: c.Path, Kind: c.Kind, Type: c.Type, Size: c.Size, Mode: octal(c.Mode),
			From: c.From, What: c.What, Diff: c.Diff, NoDiff: c.NoDiff,
		}
	})
	return page, nil
}

// changes returns the list for a page: the cached list of the previous page, or a new one.
func (h *diffHandler) changes(ctx context.Context, p diffParams, o jail.ChangesOptions) (*listing, error) {
	key := listingKey{jail: p.ID, against: p.Against, path: p.Path, workspace: p.Workspace}
	if p.After != "" && !o.Text {
		if l := h.listings.find(key, p.After); l != nil {
			return l, h.checkExists(ctx, p)
		}
	}
	var list []jail.Change
	var err error
	if p.Against == "" {
		list, err = h.jails.Changes(ctx, p.ID, o)
	} else {
		list, err = h.changesAgainst(ctx, p, o)
	}
	if err != nil {
		return nil, err
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b jail.Change) int { return strings.Compare(a.Path, b.Path) })
	return newListing(key, list), nil
}

// checkExists returns an error if a compared jail or snapshot was deleted.
func (h *diffHandler) checkExists(ctx context.Context, p diffParams) error {
	if _, err := h.jails.Get(ctx, p.ID); err != nil || p.Against == "" {
		return err
	}
	against, err := endOf("against", p.Against)
	if err != nil {
		return err
	}
	if against.Jail != "" {
		_, err = h.jails.Get(ctx, against.Jail)
		return err
	}
	_, err = h.snapshots.Get(ctx, against.Snapshot)
	return err
}

// pathKey encodes a path as the 'next' of a page: as it is, unless it is not valid UTF-8. JSON
// would replace invalid bytes, and the pagination might never end.
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
		return "", fault.Fieldf("api.pathAfter", "after", "%q is not the 'next' of a page", text.Clip(key, 64))
	}
	return string(p), nil
}

// changesAgainst lists the file changes from another jail or a snapshot to the jail.
func (h *diffHandler) changesAgainst(ctx context.Context, p diffParams, o jail.ChangesOptions) ([]jail.Change, error) {
	from, err := endOf("against", p.Against)
	if err != nil {
		return nil, err
	}
	return h.snapshots.Changes(ctx, from, snapshot.Side{Jail: p.ID}, o)
}

// endOf parses the id of a jail or snapshot.
func endOf(field, s string) (snapshot.Side, error) {
	switch {
	case id.Valid('s', s):
		return snapshot.Side{Snapshot: id.Snapshot(s)}, nil
	case id.Valid('j', s):
		return snapshot.Side{Jail: id.Jail(s)}, nil
	}
	return snapshot.Side{}, fault.Fieldf("api.endOf", field, "%q is neither a jail id nor a snapshot id", text.Clip(s, 64))
}

// compareParams select the content and format of a comparison.
type compareParams struct {
	Against string `query:"against" description:"The jail or snapshot to compare with. The result lists the changes that lead to it."`
	Only    string `query:"only" description:"Parts to compare, separated by commas: files, workspace, processes, events, usage. Default: all."`
	Content string `query:"content" enum:"unified" description:"unified: include unified diffs (diff -u) of text files, up to a size limit."`
	Format  string `query:"format" enum:"json,text,html" description:"Response format, like the Accept header: application/json (the default), text/plain or text/html."`
}

type compareJail struct {
	ID id.Jail `path:"id"`
	compareParams
}

// compareJail responds with the differences between a jail and another jail or a snapshot.
func (h *diffHandler) compareJail(w http.ResponseWriter, r *http.Request, p compareJail) error {
	if p.Against == "" {
		return fault.Fieldf("api.compareJail", "against", "missing: a jail or a snapshot to compare with")
	}
	return h.compare(w, r, snapshot.Side{Jail: p.ID}, p.compareParams)
}

type compareSnapshot struct {
	ID id.Snapshot `path:"sid"`
	compareParams
}

// compareSnapshot responds with the differences between a snapshot and its jail, or another
// jail or snapshot.
func (h *diffHandler) compareSnapshot(w http.ResponseWriter, r *http.Request, p compareSnapshot) error {
	if p.Against == "" {
		one, err := h.snapshots.Get(r.Context(), p.ID)
		if err != nil {
			return err
		}
		p.Against = string(one.Jail.ID)
	}
	return h.compare(w, r, snapshot.Side{Snapshot: p.ID}, p.compareParams)
}

// comparisonPolicy is the Content-Security-Policy of a comparison page, as reportPolicy is that of
// a report.
var comparisonPolicy = report.ComparisonPolicy + "; sandbox"

func (h *diffHandler) compare(w http.ResponseWriter, r *http.Request, from snapshot.Side, p compareParams) error {
	if _, err := readBody(w, r, &none{}); err != nil {
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
		return fault.Fieldf("api.compare", "content", "%q is not unified", text.Clip(p.Content, 64))
	}
	o.Parts, err = parts(p.Only)
	if err != nil {
		return err
	}
	c, err := h.snapshots.Compare(r.Context(), from, to, o)
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
	var b bytes.Buffer // buffered, so that a rendering error does not leave a partial page
	if err := render(&b); err != nil {
		return fmt.Errorf("render the comparison: %w", err)
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
		return "", fault.Fieldf("api.kind", "format", "%q is not one of json, text, html", text.Clip(p.Format, 64))
	}
	for _, kind := range []string{jsonKind, htmlKind, textKind} {
		if accepts(r, kind) {
			return kind, nil
		}
	}
	return jsonKind, nil
}

// parts parses the list of the parts of a comparison.
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
			return p, fault.Fieldf("api.parts", "only", "%q is not one of files, workspace, processes, events, usage", text.Clip(word, 64))
		}
	}
	return p, nil
}
