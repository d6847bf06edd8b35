package api

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"unicode/utf8"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

type diffParams struct {
	ID    id.Jail `path:"id"`
	Limit int     `query:"limit" minimum:"1" maximum:"1000" description:"Items of a page, 100 if not given."`
	After string  `query:"after" description:"The 'next' of the page before."`

	Workspace bool   `query:"workspace" description:"How its workspace differs from the host's directory, instead of its root filesystem."`
	Path      string `query:"path" description:"Only this path and what is below it."`
	Content   string `query:"content" enum:"unified" description:"unified: with the differences of text files, as diff -u writes them. A page may then be shorter than its limit."`
}

func (s *Server) diffJail(ctx context.Context, p diffParams, _ none) (wire.Page[wire.Change], error) {
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
		return page, fault.Fieldf("api", "content", "%q is not unified", printable(p.Content))
	}
	list, err := s.o.Jails.Changes(ctx, p.ID, jail.ChangesOptions{
		Workspace: p.Workspace, Below: p.Path, Text: p.Content != "", After: after,
	})
	if err != nil {
		return page, err
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b jail.Change) int { return strings.Compare(a.Path, b.Path) })
	from, _ := slices.BinarySearchFunc(list, after, func(c jail.Change, after string) int {
		return cmp.Or(strings.Compare(c.Path, after), -1) // after it, not at it
	})
	list = list[from:]
	// The texts of one answer are bounded: the page ends where they do.
	if i := slices.IndexFunc(list, func(c jail.Change) bool { return c.NoDiff == jail.DiffLater }); i > 0 {
		n = min(n, i)
	}
	list, page.Next = cut(list, n, func(c jail.Change) string { return pathKey(c.Path) })
	page.Items = each(list, func(c jail.Change) wire.Change {
		return wire.Change{
			Path: c.Path, Kind: c.Kind, Type: c.Type, Size: c.Size, Mode: octal(c.Mode),
			From: c.From, What: c.What, Diff: c.Diff, NoDiff: c.NoDiff,
		}
	})
	return page, nil
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
		return "", fault.Fieldf("api", "after", "%q is no page's 'next'", printable(key))
	}
	return string(p), nil
}
