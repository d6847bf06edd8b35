package run

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// clip returns the first n bytes of a text at most, as valid UTF-8.
func clip(s string, n int) string {
	return text.Prefix(strings.ToValidUTF8(s, "\uFFFD"), n)
}

// actor returns the name of an actor with hidden characters replaced, for the audit log.
func actor(s string) string {
	return clip(strings.Map(func(r rune) rune {
		if text.Hidden(r) {
			return '\uFFFD'
		}
		return r
	}, s), maxName)
}

// checkText returns an error if s is longer than most bytes or not valid UTF-8.
func checkText(op, field, s string, most int) error {
	switch {
	case len(s) > most:
		return &fault.Error{Op: op, Kind: fault.TooLarge, Field: field, Err: fmt.Errorf("%d bytes exceed the limit of %d", len(s), most)}
	case !utf8.ValidString(s):
		return fault.Fieldf(op, field, "must be valid UTF-8")
	}
	return nil
}

// checkKey returns an error if key is not a valid key.
func checkKey(op, key string) error {
	if len(key) > maxKey || !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' }) {
		return fault.Fieldf(op, "key", "want at most %d bytes of UTF-8, without control characters", maxKey)
	}
	return nil
}

// pageLimit returns the size of a page of a list: limit, with a default and an upper bound.
func pageLimit(limit int) int {
	if limit <= 0 {
		return 100
	}
	return min(limit, 1000)
}
