package memory

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"unicode"
)

// Weights of a match by its position. A prefix match counts half.
const (
	inKey   = 8
	inTag   = 4
	inValue = 2
)

// A query is a search request. Each word must equal a word of the entry or be a prefix of one;
// each tag must be a tag of the entry.
type query struct {
	words  []string
	tags   []string
	prefix string // prefix of the key
}

// A hit is a matching entry.
type hit struct {
	Entry
	score int
}

// search returns the matches, best first; newer ones first among equals.
func (q query) search(all []Entry) []hit {
	var hits []hit
	for _, e := range all {
		if score, ok := q.score(e); ok {
			hits = append(hits, hit{e, score})
		}
	}
	slices.SortFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(b.score, a.score), b.Updated.Compare(a.Updated), cmp.Compare(a.Key, b.Key))
	})
	return hits
}

func (q query) score(e Entry) (score int, ok bool) {
	if !strings.HasPrefix(e.Key, q.prefix) {
		return 0, false
	}
	for _, t := range q.tags {
		if !slices.ContainsFunc(e.Tags, func(had string) bool { return strings.EqualFold(had, t) }) {
			return 0, false
		}
	}
	if len(q.words) == 0 {
		return 0, true
	}
	weights := map[string]int{}
	count(weights, words(valueText(e.Value)), inValue)
	count(weights, words(strings.Join(e.Tags, " ")), inTag)
	count(weights, words(e.Key), inKey)
	for _, w := range q.words {
		best := weights[w]
		for had, n := range weights {
			if strings.HasPrefix(had, w) {
				best = max(best, n/2)
			}
		}
		if best == 0 {
			return 0, false
		}
		score += best
	}
	return score, true
}

func count(weights map[string]int, words []string, n int) {
	for _, w := range words {
		weights[w] = max(weights[w], n)
	}
}

// words returns the runs of letters and digits in lower case.
func words(s string) []string {
	return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) })
}

// valueText returns the searchable text of a value: its strings, numbers and words, and the
// names in its objects.
func valueText(value json.RawMessage) string {
	var b strings.Builder
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	for {
		token, err := dec.Token()
		if err != nil {
			return b.String()
		}
		switch t := token.(type) {
		case string:
			b.WriteString(t)
		case json.Number:
			b.WriteString(t.String())
		case bool:
			if t {
				b.WriteString("true")
			} else {
				b.WriteString("false")
			}
		}
		b.WriteByte(' ')
	}
}
