package acp

import (
	"bytes"
	"errors"
	"io"

	"glasshouse/fault"
)

// A Conn connects to the standard input and output of an agent. Next is called by one
// goroutine and Write by another.
type Conn interface {
	// Next returns the next piece of the agent's output and its byte offset. It blocks
	// until there is output, and returns io.EOF at the end. Offsets may skip data that is
	// not part of the conversation. No data of the conversation is missing.
	Next() (at int64, piece []byte, err error)

	// Write writes a line to the agent's input, starting at offset at. It omits the bytes
	// that an earlier process has written. It returns io.ErrClosedPipe if the agent has
	// closed its input.
	Write(at int64, line []byte) error

	// Close unblocks the other two methods.
	Close() error
}

// Pipes returns a Conn of two streams. Close closes both streams.
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
	p.at += int64(n)
	if n > 0 {
		err = nil // the next Read returns it again
	}
	return at, p.buf[:n], err
}

func (p *pipes) Write(_ int64, line []byte) error {
	if _, err := p.in.Write(line); err != nil {
		return io.ErrClosedPipe
	}
	return nil
}

func (p *pipes) Close() error { return errors.Join(p.in.Close(), p.out.Close()) }

// maxLine is the maximum size of a message in bytes.
const maxLine = 8 << 20

// A frame is a line of the agent's output, including the newline.
type frame struct {
	at, next int64 // offsets of its first byte and of the byte after it
	text     []byte
}

// A framer splits the output of a Conn into lines. It buffers one piece and one line.
type framer struct {
	conn Conn
	at   int64  // offset of rest
	rest []byte // unread part of the last piece
}

// frame returns the next line. The last line may lack a newline and is returned together
// with the error.
func (f *framer) frame() (l frame, err error) {
	for begun := false; ; {
		for len(f.rest) == 0 {
			f.at, f.rest, err = f.conn.Next()
			if err != nil {
				return l, err
			}
		}
		if !begun {
			l.at, begun = f.at, true
		}
		n := bytes.IndexByte(f.rest, '\n') + 1
		complete := n > 0
		if !complete {
			n = len(f.rest)
		}
		if len(l.text)+n > maxLine {
			return l, fault.Newf(fault.TooLarge, opDrive, "", "the agent sent a message of more than %d MiB", maxLine>>20)
		}
		l.text = append(l.text, f.rest[:n]...)
		f.at, f.rest = f.at+int64(n), f.rest[n:]
		l.next = f.at
		if complete {
			return l, nil
		}
	}
}
