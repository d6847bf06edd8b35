package llm

import (
	"bufio"
	"bytes"
	"errors"
)

// An sse is one server-sent event, raw and parsed.
type sse struct {
	raw  []byte // including the empty line that ends it
	name string // name of "event:"; empty: none
	data []byte // values of its "data:" lines, joined
}

var errEvent = errors.New("a server-sent event is too long")

// An events reads server-sent events. A returned event is valid until the next read.
type events struct {
	r   *bufio.Reader
	max int
	raw []byte
	buf []byte
}

func newEvents(r *bufio.Reader, longest int) *events { return &events{r: r, max: longest} }

// next returns the next event. At the end of the stream it returns the unterminated rest with
// io.EOF, and after an error the bytes read before it.
func (e *events) next() (sse, error) {
	e.raw = e.raw[:0]
	for start := 0; ; start = len(e.raw) {
		err := e.line()
		line := bytes.TrimRight(e.raw[start:], "\r\n")
		if err != nil {
			return e.event(), err
		}
		if len(line) == 0 {
			return e.event(), nil
		}
	}
}

// ready reports whether another event is buffered.
func (e *events) ready() bool {
	here, err := e.r.Peek(e.r.Buffered())
	return err == nil && (bytes.Contains(here, []byte("\n\n")) || bytes.Contains(here, []byte("\r\n\r\n")))
}

// line reads one line with its end.
func (e *events) line() error {
	for {
		part, err := e.r.ReadSlice('\n')
		if len(e.raw)+len(part) > e.max {
			return errEvent
		}
		e.raw = append(e.raw, part...)
		if err != bufio.ErrBufferFull {
			return err
		}
	}
}

// event parses the buffered lines.
func (e *events) event() sse {
	ev := sse{raw: e.raw}
	several := false
	for rest := e.raw; len(rest) > 0; {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		rest = after
		line = bytes.TrimSuffix(line, []byte("\r"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			ev.name = string(value)
		case "data":
			if ev.data == nil {
				ev.data = value // the usual case, a single line, is not copied
				continue
			}
			if !several {
				several = true
				e.buf = append(e.buf[:0], ev.data...)
			}
			e.buf = append(append(e.buf, '\n'), value...)
			ev.data = e.buf
		}
	}
	return ev
}
