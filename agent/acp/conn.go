package acp

import (
	"bytes"
	"errors"
	"io"

	"glasshouse/fault"
)

// A Conn is the standard input and output of an agent. One goroutine calls Next, one
// calls Give.
type Conn interface {
	// Next returns the next piece of what the agent wrote, and where in its output
	// that stands. Between two pieces may be what is not for us, and nothing is
	// missing. It waits; the end is io.EOF.
	Next() (at int64, piece []byte, err error)

	// Give gives the agent a line, which begins at a byte of its input. What of it
	// the agent was given by whoever was here before is not given again. It is
	// io.ErrClosedPipe if the agent takes no more.
	Give(at int64, line []byte) error

	// Close ends what waits in the other two.
	Close() error
}

// Pipes is a Conn of two streams, which end with it.
func Pipes(in io.WriteCloser, out io.ReadCloser) Conn { return &pipes{in: in, out: out} }

type pipes struct {
	in  io.WriteCloser
	out io.ReadCloser
	at  int64
	buf [64 << 10]byte
}

func (p *pipes) Next() (int64, []byte, error) {
	n, err := p.out.Read(p.buf[:])
	at := p.at
	if p.at += int64(n); n > 0 {
		err = nil // it comes again
	}
	return at, p.buf[:n], err
}

func (p *pipes) Give(_ int64, line []byte) error {
	if _, err := p.in.Write(line); err != nil {
		return io.ErrClosedPipe
	}
	return nil
}

func (p *pipes) Close() error { return errors.Join(p.in.Close(), p.out.Close()) }

// maxLine is the most bytes of one message.
const maxLine = 8 << 20

// A frame is one line of the agent's, with its end.
type frame struct {
	at, next int64 // where it begins, and what comes behind it
	text     []byte
}

// A framer makes lines of pieces. It holds no more than one piece and one line.
type framer struct {
	conn Conn
	at   int64  // of rest
	rest []byte // of the last piece
}

// frame returns the next line; the last may have no end, and comes with the error.
func (f *framer) frame() (l frame, err error) {
	for begun := false; ; {
		for len(f.rest) == 0 {
			if f.at, f.rest, err = f.conn.Next(); err != nil {
				return l, err
			}
		}
		if !begun {
			l.at, begun = f.at, true
		}
		n := bytes.IndexByte(f.rest, '\n') + 1
		whole := n > 0
		if !whole {
			n = len(f.rest)
		}
		if len(l.text)+n > maxLine {
			return l, fault.Newf(fault.TooLarge, opDrive, "", "the agent sent a message of more than %d MiB", maxLine>>20)
		}
		l.text = append(l.text, f.rest[:n]...)
		f.at, f.rest = f.at+int64(n), f.rest[n:]
		if l.next = f.at; whole {
			return l, nil
		}
	}
}
