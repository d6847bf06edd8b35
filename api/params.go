package api

import (
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// readParams sets the fields of the struct that into points to from the path and the query, by
// their tags. An unknown or duplicate parameter and a value of the wrong type are errors that
// name the parameter.
func readParams(r *http.Request, into any) error {
	v := reflect.ValueOf(into).Elem()
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return fault.Fieldf("api.readParams", "query", "malformed query string")
	}
	if err := fill(r, v, query); err != nil {
		return err
	}
	for name := range query {
		return fault.Fieldf("api.readParams", text.Visible(text.Clip(name, 64)), "unknown parameter")
	}
	return nil
}

// fill sets the fields of a struct and its embedded structs from query.
func fill(r *http.Request, v reflect.Value, query url.Values) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			if err := fill(r, v.Field(i), query); err != nil {
				return err
			}
			continue
		}
		if name, ok := f.Tag.Lookup("path"); ok {
			if err := setPath(v.Field(i), r.PathValue(name)); err != nil {
				return err
			}
		}
		name, ok := f.Tag.Lookup("query")
		if !ok {
			continue
		}
		if err := setQuery(v.Field(i), name, query[name]); err != nil {
			return err
		}
		delete(query, name)
	}
	return nil
}

// prefixes has the prefix of each identifier type.
var prefixes = map[reflect.Type]struct {
	letter byte
	noun   string
}{
	reflect.TypeFor[id.Jail]():  {'j', "jail"},
	reflect.TypeFor[id.Exec]():  {'x', "command"},
	reflect.TypeFor[id.Token](): {'t', "token"},
	reflect.TypeFor[id.Login](): {'b', "login"},

	reflect.TypeFor[id.Snapshot](): {'s', "snapshot"},

	reflect.TypeFor[id.Run]():        {'r', "run"},
	reflect.TypeFor[id.Checkpoint](): {'p', "checkpoint"},
	reflect.TypeFor[id.Schedule]():   {'h', "schedule"},
	reflect.TypeFor[id.Request]():    {'q', "request"},
}

// setPath sets an identifier from the path. A malformed one is not found.
func setPath(v reflect.Value, s string) error {
	if p, ok := prefixes[v.Type()]; ok && !id.Valid(p.letter, s) {
		return fault.Newf(fault.NotFound, "api.setPath", text.Visible(text.Clip(s, 64)), "no such %s", p.noun)
	}
	v.SetString(s)
	return nil
}

func setQuery(v reflect.Value, name string, values []string) error {
	if len(values) == 0 {
		return nil
	}
	for _, s := range values {
		if !utf8.ValidString(s) || strings.Contains(s, "\x00") {
			return fault.Fieldf("api.setQuery", name, "must be UTF-8 without NUL")
		}
	}
	if v.Kind() == reflect.Slice {
		v.Set(reflect.ValueOf(values))
		return nil
	}
	if len(values) > 1 {
		return fault.Fieldf("api.setQuery", name, "given %d times", len(values))
	}
	return setValue(v, name, values[0])
}

func setValue(v reflect.Value, name, s string) error {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return setValue(v.Elem(), name, s)
	case reflect.String:
		if p, ok := prefixes[v.Type()]; ok && s != "" && !id.Valid(p.letter, s) {
			return fault.Fieldf("api.setValue", name, "%q is not a %s's id", text.Clip(s, 64), p.noun)
		}
		v.SetString(s)
	case reflect.Bool:
		b, err := strconv.ParseBool(s)
		if s != "" && err != nil { // ?tar means ?tar=1
			return fault.Fieldf("api.setValue", name, "%q is not true or false", text.Clip(s, 64))
		}
		v.SetBool(s == "" || b)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(s, 10, v.Type().Bits())
		if err != nil {
			return fault.Fieldf("api.setValue", name, "%q is not a whole number in range", text.Clip(s, 64))
		}
		v.SetInt(n)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(s, 10, v.Type().Bits())
		if err != nil {
			return fault.Fieldf("api.setValue", name, "%q is not a whole number in range", text.Clip(s, 64))
		}
		v.SetUint(n)
	case reflect.Struct:
		at, ok := v.Addr().Interface().(*time.Time)
		if !ok {
			panic("api: parameter " + name + " has type " + v.Type().String())
		}
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return fault.Fieldf("api.setValue", name, "%q is not a time such as 2026-01-02T15:04:05Z", text.Clip(s, 64))
		}
		*at = t
	default:
		panic("api: parameter " + name + " has type " + v.Type().String())
	}
	return nil
}

// paging are the parameters of all paged lists.
type paging struct {
	Limit int    `query:"limit" description:"Maximum number of items per page. Default 100." minimum:"1" maximum:"1000"`
	After string `query:"after" description:"The 'next' value of the previous page."`
}

const (
	defaultPage = 100
	maxPage     = 1000
)

// limit returns the page size. Zero selects the default.
func limit(n int) (int, error) {
	switch {
	case n == 0:
		return defaultPage, nil
	case n < 0 || n > maxPage:
		return 0, fault.Fieldf("api.limit", "limit", "%d is not between 1 and %d", n, maxPage)
	}
	return n, nil
}

// maxMillis prevents the overflow of a time.Duration.
const maxMillis = int64(24 * time.Hour / time.Millisecond * 365)

func millis(field string, ms int64) (time.Duration, error) {
	if ms < 0 || ms > maxMillis {
		return 0, fault.Fieldf("api.millis", field, "%d is not between 0 and %d", ms, maxMillis)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// cut returns the first n items of list, and the key of the last of them if there are more.
func cut[T any](list []T, n int, key func(T) string) ([]T, string) {
	if len(list) <= n {
		return list, ""
	}
	return list[:n], key(list[n-1])
}

// pageOf reads one page. It requests one item more than the page size to detect further items.
func pageOf[T, W any](size int, read func(n int) ([]T, error), key func(T) string, show func(T) W) (wire.Page[W], error) {
	var page wire.Page[W]
	n, err := limit(size)
	if err != nil {
		return page, err
	}
	list, err := read(n + 1)
	if err != nil {
		return page, err
	}
	list, page.Next = cut(list, n, key)
	page.Items = each(list, show)
	return page, nil
}

// pageAfter returns one page of a list that is read whole: the items after the one with the key
// after.
func pageAfter[T, W any](size int, after string, read func() ([]T, error), key func(T) string, show func(T) W) (wire.Page[W], error) {
	return pageOf(size, func(int) ([]T, error) {
		list, err := read()
		if err != nil {
			return nil, err
		}
		return afterID(list, after, key)
	}, key, show)
}

// each never returns nil, so that an empty list is [] in JSON.
func each[T, U any](list []T, f func(T) U) []U {
	out := make([]U, 0, len(list))
	for _, v := range list {
		out = append(out, f(v))
	}
	return out
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// afterID returns the items after the one with the given key.
func afterID[T any](list []T, after string, key func(T) string) ([]T, error) {
	if after == "" {
		return list, nil
	}
	for i, v := range list {
		if key(v) == after {
			return list[i+1:], nil
		}
	}
	return nil, fault.Fieldf("api.afterID", "after", "%s no longer exists; restart from the first page", text.Visible(text.Clip(after, 64)))
}
