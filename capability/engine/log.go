package engine

import (
	"bytes"
	"strings"
)

// LogEnd returns the end of the output of a program as text of about limit bytes. cut
// reports that the beginning of log was already discarded. Truncated text begins after a
// line break, or after other white space if there is no line break: a partial word could be
// the end of a secret, and masking does not recognise partial secrets.
func LogEnd(log []byte, limit int, cut bool) string {
	if over := len(log) - limit; over > 0 {
		log, cut = log[over:], true
	}
	if !cut {
		return strings.ToValidUTF8(string(log), "�")
	}
	// A line break at the very end does not count: the result would be empty.
	i := bytes.IndexByte(bytes.TrimRight(log, "\n"), '\n')
	if i < 0 {
		i = bytes.IndexAny(log, " \t\r\n")
	}
	if i < 0 {
		return "…"
	}
	return "…" + strings.ToValidUTF8(string(log[i+1:]), "�")
}
