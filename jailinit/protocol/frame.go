package protocol

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// Frame is the kind of a frame.
type Frame byte

const (
	FrameRequest Frame = 1 + iota // JSON Request
	FrameReply                    // JSON, by operation
	FrameError                    // JSON Failure; the operation is over
	FrameEnd                      // JSON or empty: what the sender streams is complete
	FrameData                     // bytes of a file, an archive or stdin
	FrameChunk                    // output: stream, offset, lost, bytes
	FrameAck                      // offset: the reader, or the command, has taken everything before it
	FrameEvent                    // JSON FileEvent
	FrameParked                   // JSON Parked; the operation is to be taken up again on a new connection
	frameLimit
)

const (
	// MaxMessage bounds a JSON frame. An argument list and an environment of
	// the kernel's own limit (2 MiB) fit, escapes included.
	MaxMessage = 8 << 20

	// MaxData bounds the bytes of a Data or Chunk frame.
	MaxData = 128 << 10

	headerSize = 5         // kind, length
	chunkSize  = 1 + 8 + 8 // stream, offset, lost
	readStep   = 64 << 10  // memory taken ahead of bytes that have arrived
	readBuffer = 4 << 10   // of the connection's reader
	keepBuffer = 192 << 10 // a larger one is dropped after use
)

// ErrMalformed means that the peer does not speak the protocol.
var ErrMalformed = errors.New("malformed frame")

// limit is how long a frame of kind f may be.
func (f Frame) limit() int {
	switch f {
	case FrameData:
		return MaxData
	case FrameChunk:
		return MaxData + chunkSize
	case FrameAck:
		return 8
	default:
		return MaxMessage
	}
}

// A Reader takes frames off a connection. It is not safe for concurrent use.
type Reader struct {
	r   *bufio.Reader
	buf []byte
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, readBuffer)}
}

// Next returns the next frame. The payload is valid until the following call.
// The error is io.EOF only between frames.
func (r *Reader) Next() (Frame, []byte, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		return 0, nil, err
	}
	kind, n := Frame(head[0]), binary.BigEndian.Uint32(head[1:])
	if kind == 0 || kind >= frameLimit {
		return 0, nil, fmt.Errorf("%w: kind %d", ErrMalformed, kind)
	}
	if uint64(n) > uint64(kind.limit()) {
		return 0, nil, fmt.Errorf("%w: %d bytes in a frame of kind %d, at most %d are allowed", ErrMalformed, n, kind, kind.limit())
	}
	payload, err := r.payload(int(n))
	if err != nil {
		return 0, nil, fmt.Errorf("read frame: %w", unexpected(err))
	}
	return kind, payload, nil
}

// Rest returns what comes after the frames that were read, as it is.
func (r *Reader) Rest() io.Reader { return r.r }

// payload reads n bytes. Memory grows with what has arrived, not with what
// was announced.
func (r *Reader) payload(n int) ([]byte, error) {
	if cap(r.buf) > keepBuffer {
		r.buf = nil
	}
	for have := 0; have < n; {
		step := min(n-have, max(readStep, have))
		if need := have + step; need > cap(r.buf) {
			grown := make([]byte, need)
			copy(grown, r.buf[:have])
			r.buf = grown
		}
		if _, err := io.ReadFull(r.r, r.buf[have:have+step]); err != nil {
			return nil, err
		}
		have += step
	}
	return r.buf[:n], nil
}

// Expect reads the next frame, which must be of the kind given, and decodes
// its JSON into v unless v is nil. An Error frame becomes the error it holds.
func (r *Reader) Expect(kind Frame, v any) error {
	got, payload, err := r.Next()
	if err != nil {
		return unexpected(err)
	}
	return Decode(got, payload, kind, v)
}

// Decode checks that a frame is of the kind wanted and decodes it into v
// unless v is nil. An Error frame becomes the error it holds.
func Decode(got Frame, payload []byte, want Frame, v any) error {
	if got == FrameError && want != FrameError {
		return decodeFailure(payload)
	}
	if got != want {
		return fmt.Errorf("%w: kind %d instead of %d", ErrMalformed, got, want)
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(payload, v); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// DecodeChunk decodes the payload of a Chunk frame. Data points into it.
func DecodeChunk(payload []byte) (Chunk, error) {
	if len(payload) < chunkSize {
		return Chunk{}, fmt.Errorf("%w: a chunk of %d bytes", ErrMalformed, len(payload))
	}
	offset, lost := binary.BigEndian.Uint64(payload[1:]), binary.BigEndian.Uint64(payload[9:])
	c := Chunk{Stream: Stream(payload[0]), Offset: int64(offset), Lost: int64(lost), Data: payload[chunkSize:]}
	if c.Stream != Stdout && c.Stream != Stderr {
		return Chunk{}, fmt.Errorf("%w: stream %d", ErrMalformed, c.Stream)
	}
	if offset > math.MaxInt64-MaxData || lost > offset {
		return Chunk{}, fmt.Errorf("%w: chunk at %d with %d lost before it", ErrMalformed, offset, lost)
	}
	return c, nil
}

// DecodeAck decodes the payload of an Ack frame.
func DecodeAck(payload []byte) (int64, error) {
	if len(payload) != 8 {
		return 0, fmt.Errorf("%w: an acknowledgement of %d bytes", ErrMalformed, len(payload))
	}
	offset := binary.BigEndian.Uint64(payload)
	if offset > math.MaxInt64 {
		return 0, fmt.Errorf("%w: acknowledgement of %d", ErrMalformed, offset)
	}
	return int64(offset), nil
}

// A Writer puts frames on a connection, each with one write. It is not safe
// for concurrent use.
type Writer struct {
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// JSON writes a frame that holds v as JSON, or nothing if v is nil.
func (w *Writer) JSON(kind Frame, v any) error {
	var payload []byte
	if v != nil {
		var err error
		if payload, err = json.Marshal(v); err != nil {
			return err
		}
	}
	if len(payload) > kind.limit() {
		return &TooLargeError{Size: len(payload), Limit: kind.limit()}
	}
	return w.flush(append(w.frame(kind, len(payload)), payload...))
}

// Data writes bytes as Data frames. No bytes are no frame.
func (w *Writer) Data(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), MaxData)
		if err := w.flush(append(w.frame(FrameData, n), p[:n]...)); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// Chunk writes a piece of output, at most MaxData long.
func (w *Writer) Chunk(c Chunk) error {
	b := append(w.frame(FrameChunk, chunkSize+len(c.Data)), byte(c.Stream))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Offset))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Lost))
	return w.flush(append(b, c.Data...))
}

// Ack tells that everything before offset was taken.
func (w *Writer) Ack(offset int64) error {
	return w.flush(binary.BigEndian.AppendUint64(w.frame(FrameAck, 8), uint64(offset)))
}

func (w *Writer) frame(kind Frame, n int) []byte {
	return binary.BigEndian.AppendUint32(append(w.buf[:0], byte(kind)), uint32(n))
}

func (w *Writer) flush(b []byte) error {
	if w.buf = b; cap(b) > keepBuffer+headerSize {
		w.buf = nil
	}
	_, err := w.w.Write(b)
	return err
}

// A TooLargeError is a message that does not fit a frame.
type TooLargeError struct{ Size, Limit int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("a message of %d bytes, at most %d are allowed", e.Size, e.Limit)
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
