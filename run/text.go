package run

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// clip is the beginning of a text, of at most n bytes, fit to be kept.
func clip(s string, n int) string {
	return text.Prefix(strings.ToValidUTF8(s, "\uFFFD"), n)
}

// actor is the name of who acts, fit to be recorded.
func actor(s string) string {
	return clip(strings.Map(func(r rune) rune {
		if text.Hidden(r) {
			return '\uFFFD'
		}
		return r
	}, s), maxName)
}

// checkText refuses a text that is too long or not UTF-8.
func checkText(op, field, s string, most int) error {
	switch {
	case len(s) > most:
		return &fault.Error{Op: op, Kind: fault.TooLarge, Field: field, Err: fmt.Errorf("%d bytes, and at most %d are kept", len(s), most)}
	case !utf8.ValidString(s):
		return fault.Fieldf(op, field, "it is not valid UTF-8")
	}
	return nil
}

// checkKey refuses what cannot be a key.
func checkKey(op, key string) error {
	if len(key) > maxKey || !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' }) {
		return fault.Fieldf(op, "key", "want at most %d bytes of UTF-8, without control characters", maxKey)
	}
	return nil
}

// pageOf is how many are listed at once.
func pageOf(limit int) int {
	if limit <= 0 {
		return 100
	}
	return min(limit, 1000)
}
