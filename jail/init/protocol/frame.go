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
	FrameEnd                      // JSON or empty: the sender's stream is complete
	FrameData                     // bytes of a file, an archive or stdin
	FrameChunk                    // output: stream, offset, lost, bytes
	FrameAck                      // offset: the reader, or the command, has received all bytes before it
	FrameEvent                    // JSON FileEvent
	FrameParked                   // JSON Parked; the client retries the operation on a new connection
	frameLimit
)

const (
	// MaxMessage bounds a JSON frame. It is large enough for an argument list and an
	// environment at the kernel's limit (2 MiB), with escapes.
	MaxMessage = 8 << 20

	// MaxData bounds the bytes of a Data or Chunk frame.
	MaxData = 128 << 10

	headerSize = 5         // kind, length
	chunkSize  = 1 + 8 + 8 // stream, offset, lost
	readStep   = 64 << 10  // memory that is allocated before its bytes have arrived
	readBuffer = 4 << 10   // buffer of the connection's reader
	keepBuffer = 192 << 10 // a larger buffer is released after use
)

// ErrMalformed means that the peer violated the protocol.
var ErrMalformed = errors.New("malformed frame")

// limit returns the maximal payload size of a frame of kind f.
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

// A Reader reads frames from a connection. It is not safe for concurrent use.
type Reader struct {
	r   *bufio.Reader
	buf []byte
}

// NewReader returns a Reader on r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, readBuffer)}
}

// Next returns the next frame. The payload is valid until the next call. The error is io.EOF
// only at the end of a frame.
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

// Rest returns a reader of the raw bytes after the frames that were read.
func (r *Reader) Rest() io.Reader { return r.r }

// payload reads n bytes. It allocates memory in proportion to the bytes that have arrived, not
// to the announced length.
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

// Expect reads the next frame, which must be of the given kind, and decodes its JSON into v
// unless v is nil. For an Error frame it returns the error in it.
func (r *Reader) Expect(kind Frame, v any) error {
	got, payload, err := r.Next()
	if err != nil {
		return unexpected(err)
	}
	return Decode(got, payload, kind, v)
}

// Decode checks that a frame is of the kind want and decodes it into v unless v is nil. For an
// Error frame it returns the error in it.
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

// DecodeChunk decodes the payload of a Chunk frame. Data refers to the payload.
func DecodeChunk(payload []byte) (Chunk, error) {
	if len(payload) < chunkSize {
		return Chunk{}, fmt.Errorf("%w: a chunk of %d bytes", ErrMalformed, len(payload))
	}
	offset, lost := binary.BigEndian.Uint64(payload[1:]), binary.BigEndian.Uint64(payload[9:])
	c := Chunk{Stream: Stream(payload[0]), Offset: int64(offset), Lost: int64(lost), Data: payload[chunkSize:]}
	if c.Stream != Stdout && c.Stream != Stderr {
		return Chunk{}, fmt.Errorf("%w: stream %d", ErrMalformed, c.Stream)
	}
	// This bound keeps Offset+len(Data) within an int64.
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

// A Writer writes frames to a connection, each with one write. It is not safe for concurrent
// use.
type Writer struct {
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// JSON writes a frame with v as JSON, or an empty frame if v is nil.
func (w *Writer) JSON(kind Frame, v any) error {
	var payload []byte
	if v != nil {
		var err error
		if payload, err = json.Marshal(v); err != nil {
			return fmt.Errorf("encode the message: %w", err)
		}
	}
	if len(payload) > kind.limit() {
		return &TooLargeError{Size: len(payload), Limit: kind.limit()}
	}
	return w.flush(append(w.frame(kind, len(payload)), payload...))
}

// Data writes bytes as Data frames. For no bytes it writes no frame.
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

// Chunk writes a Chunk frame with at most MaxData bytes of data.
func (w *Writer) Chunk(c Chunk) error {
	b := append(w.frame(FrameChunk, chunkSize+len(c.Data)), byte(c.Stream))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Offset))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Lost))
	return w.flush(append(b, c.Data...))
}

// Ack acknowledges all bytes before offset.
func (w *Writer) Ack(offset int64) error {
	return w.flush(binary.BigEndian.AppendUint64(w.frame(FrameAck, 8), uint64(offset)))
}

func (w *Writer) frame(kind Frame, n int) []byte {
	return binary.BigEndian.AppendUint32(append(w.buf[:0], byte(kind)), uint32(n))
}

func (w *Writer) flush(b []byte) error {
	w.buf = b
	if cap(b) > keepBuffer+headerSize {
		w.buf = nil
	}
	// One write per frame, by whose result init recognizes a frame that was cut off
	// (tornWriter).
	_, err := w.w.Write(b)
	return err
}

// A TooLargeError is a message that exceeds the limit of a frame.
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
