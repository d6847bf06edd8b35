package report

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"glasshouse/event"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// A Link names events, so that a reader can go and look: they match Query and
// have sequence numbers from First to Last.
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

// URL is where the API has the events of a jail that l names.
func (l Link) URL(jail id.Jail) string {
	v := url.Values{"q": {l.String()}, "format": {"ndjson"}}
	return "/jails/" + url.PathEscape(string(jail)) + "/events?" + v.Encode()
}

// String is l as one filter.
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

// query writes a filter: keys and values in turn. Values are meant as they are,
// whatever is in them. A term that is no term, as there is none for an address
// that a damaged log made up, is left out: the filter then finds more.
func query(keyValues ...string) Text {
	var terms []string
	for i := 0; i+1 < len(keyValues); i += 2 {
		if v := keyValues[i+1]; v != "" {
			terms = append(terms, keyValues[i]+":"+literal(v))
		}
	}
	return allOf(terms...)
}

// allOf joins terms to a filter.
func allOf(terms ...string) Text {
	return Text(strings.Join(slices.DeleteFunc(terms, func(t string) bool {
		_, err := event.ParseFilter(t)
		return err != nil
	}), " "))
}

// maxLiteral bounds one value, for a filter is bounded. What is longer is looked
// for by its beginning.
const maxLiteral = 1500

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `*`, `\*`)

// literal is a value that matches v and nothing else.
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

// errno is the name of an error, or its number.
func errno(ret int64) string {
	if name := event.ErrnoName(ret); name != "" {
		return name
	}
	return strconv.FormatInt(ret, 10)
}
