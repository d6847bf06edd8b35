package engine

import (
	"bytes"
	"strings"
)

// LogEnd returns the end of what a program wrote, as text of about limit bytes. cut says
// that log is an end itself. Text that was cut begins after a line break, or after other
// white space if there is no line break: a word without its beginning could be the end
// of a secret, which a mask does not recognise.
func LogEnd(log []byte, limit int, cut bool) string {
	if over := len(log) - limit; over > 0 {
		log, cut = log[over:], true
	}
	if !cut {
		return strings.ToValidUTF8(string(log), "�")
	}
	// A line break at the very end would leave nothing.
	i := bytes.IndexByte(bytes.TrimRight(log, "\n"), '\n')
	if i < 0 {
		i = bytes.IndexAny(log, " \t\r\n")
	}
	if i < 0 {
		return "…"
	}
	return "…" + strings.ToValidUTF8(string(log[i+1:]), "�")
}
