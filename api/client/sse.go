package client

import (
	"bufio"
	"errors"
	"io"
	"strings"
)

// An event is a server-sent event.
type event struct {
	id   string // the last event ID, which may be that of an earlier event
	own  bool   // the event itself has an id field
	name string
	data string
}

// maxLine is the maximum length of a line or event, in bytes. The daemon's lines are far
// shorter.
const maxLine = 4 << 20

var errLongLine = errors.New("a line of the event stream is too long")

// A sseReader reads an event stream as specified by the WHATWG HTML standard, section 9.2
// (Server-sent events).
type sseReader struct {
	r    *bufio.Reader
	id   string
	past bool // the position is after an optional byte order mark
}

func newSSEReader(r io.Reader) *sseReader {
	return &sseReader{r: bufio.NewReaderSize(r, 64<<10)}
}

// next returns the next event that has data. An incomplete event at the end of the stream is
// discarded.
func (s *sseReader) next() (event, error) {
	var e event
	var data []string
	size := 0
	for {
		line, err := s.line()
		if err != nil {
			return event{}, err
		}
		if line == "" {
			if len(data) == 0 {
				e.name, e.own = "", false
				continue
			}
			e.id, e.data = s.id, strings.Join(data, "\n")
			return e, nil
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			e.name = value
		case "data":
			if size += len(value); size > maxLine {
				return event{}, errLongLine
			}
			data = append(data, value)
		case "id":
			if !strings.Contains(value, "\x00") {
				s.id, e.own = value, true
			}
		}
	}
}

// line returns the next line without its terminator, which is CR, LF or CRLF.
func (s *sseReader) line() (string, error) {
	var b strings.Builder
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return "", err
		}
		if c == '\n' || c == '\r' {
			if c == '\r' {
				s.skipLF()
			}
			break
		}
		if b.Len() == maxLine {
			return "", errLongLine
		}
		b.WriteByte(c)
	}
	line := b.String()
	if !s.past {
		s.past = true
		line = strings.TrimPrefix(line, "\uFEFF")
	}
	return line, nil
}

// skipLF discards the LF of a CRLF. It may block until the next byte arrives; the daemon
// terminates lines with LF only.
func (s *sseReader) skipLF() {
	if next, err := s.r.Peek(1); err == nil && next[0] == '\n' {
		s.r.Discard(1)
	}
}
