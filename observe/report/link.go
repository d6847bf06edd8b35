package report

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/observe/event"
)

// A Link refers to the events that match Query and have sequence numbers from First to Last.
type Link struct {
	Query Text   `json:"q"`
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

func (l *Link) saw(seq uint64) {
	if l.First == 0 || seq < l.First {
		l.First = seq
	}
	l.Last = max(l.Last, seq)
}

// URL returns the API path of the events of a jail that l refers to.
func (l Link) URL(jail id.Jail) string {
	v := url.Values{"q": {l.String()}, "format": {"ndjson"}}
	return "/jails/" + url.PathEscape(string(jail)) + "/events?" + v.Encode()
}

// String returns l as one filter.
func (l Link) String() string {
	q := string(l.Query)
	switch {
	case l.Last > 0:
		q += fmt.Sprintf(" seq:%d..%d", l.First, l.Last)
	case l.First > 0:
		q += fmt.Sprintf(" seq:>=%d", l.First)
	}
	return strings.TrimSpace(q)
}

// query builds a filter from alternating keys and values. Values are matched literally. A term
// that does not parse, such as an invalid address from a damaged log, is omitted; the filter
// then matches more events.
func query(keyValues ...string) Text {
	var terms []string
	for i := 0; i+1 < len(keyValues); i += 2 {
		if v := keyValues[i+1]; v != "" {
			terms = append(terms, keyValues[i]+":"+literal(v))
		}
	}
	return allOf(terms...)
}

// allOf joins the terms of a filter.
func allOf(terms ...string) Text {
	return Text(strings.Join(slices.DeleteFunc(terms, func(t string) bool {
		_, err := event.ParseFilter(t)
		return err != nil
	}), " "))
}

// maxLiteral bounds one value, because the length of a filter is limited. A longer value is
// matched by its prefix.
const maxLiteral = 1500

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `*`, `\*`)

// literal returns a filter value that matches only v.
func literal(v string) string {
	rest := ""
	if len(v) > maxLiteral {
		v, rest = text.Prefix(v, maxLiteral), "*"
	}
	if !strings.ContainsFunc(v, func(r rune) bool { return special(r) || r == ',' || r >= 0x7f }) {
		return v + rest
	}
	return `"` + escaper.Replace(v) + `"` + rest
}

// errno returns the name of an error, or its number.
func errno(ret int64) string {
	if name := event.ErrnoName(ret); name != "" {
		return name
	}
	return strconv.FormatInt(ret, 10)
}
