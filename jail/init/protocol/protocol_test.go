package protocol_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

func TestFrameRoundTrip(t *testing.T) {
	var b bytes.Buffer
	w := protocol.NewWriter(&b)
	big := bytes.Repeat([]byte("x"), protocol.MaxData+10)
	chunk := protocol.Chunk{Stream: protocol.Stderr, Offset: 1 << 40, Lost: 7, Data: []byte("out")}
	for _, err := range []error{
		w.JSON(protocol.FrameReply, protocol.Hello{PID: 1}),
		w.Data(big),
		w.Data(nil),
		w.Chunk(chunk),
		w.Ack(12345),
		w.JSON(protocol.FrameEnd, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	r := protocol.NewReader(&b)
	var h protocol.Hello
	if err := r.Expect(protocol.FrameReply, &h); err != nil || h.PID != 1 {
		t.Errorf("Hello %+v, %v", h, err)
	}
	for _, want := range []int{protocol.MaxData, 10} { // two frames, and none for empty data
		if kind, p, err := r.Next(); kind != protocol.FrameData || len(p) != want || err != nil {
			t.Errorf("kind %d with %d bytes, %v; want data of %d", kind, len(p), err, want)
		}
	}
	_, p, _ := r.Next()
	if c, err := protocol.DecodeChunk(p); err != nil || c.Stream != chunk.Stream || c.Offset != chunk.Offset || c.Lost != 7 || string(c.Data) != "out" {
		t.Errorf("chunk %+v, %v", c, err)
	}
	_, p, _ = r.Next()
	if at, err := protocol.DecodeAck(p); err != nil || at != 12345 {
		t.Errorf("acknowledgement = %d, %v; want 12345", at, err)
	}
	if err := r.Expect(protocol.FrameEnd, nil); err != nil {
		t.Error(err)
	}
	if _, _, err := r.Next(); err != io.EOF {
		t.Errorf("Next after the last frame = %v, want EOF", err)
	}
}

func TestFailureRoundTrip(t *testing.T) {
	sent := &fault.Error{Op: "exec.Start", On: "x-1", Kind: fault.Exhausted, Field: "argv", Remedy: "end some", Err: errors.New("the limit is reached")}
	got := protocol.NewFailure(sent).Err()
	if !errors.Is(got, fault.Exhausted) || fault.FieldOf(got) != "argv" || fault.RemedyOf(got) != "end some" || got.Error() != sent.Error() {
		t.Errorf("got %v, want %v", got, sent)
	}
	if got := protocol.NewFailure(errors.New("boom")).Err(); fault.KindOf(got) != "" || got.Error() != "boom" {
		t.Errorf("decoded internal error = %v, kind %q; want boom without kind", got, fault.KindOf(got))
	}
}

func TestFailureSanitizesText(t *testing.T) {
	got := protocol.Failure{Kind: "root", Op: "\x1b[2J", Message: strings.Repeat("\x1b]0;pwned\a", 10000)}.Err()
	if fault.KindOf(got) != "" || strings.ContainsAny(got.Error(), "\x1b\a") || len(got.Error()) > 10000 {
		t.Errorf("kind %q, %d bytes: %.50q; want no kind and clean text", fault.KindOf(got), len(got.Error()), got)
	}
}

func TestTooLargeMessage(t *testing.T) {
	var b bytes.Buffer
	err := protocol.NewWriter(&b).JSON(protocol.FrameRequest, strings.Repeat("x", protocol.MaxMessage))
	if _, ok := errors.AsType[*protocol.TooLargeError](err); !ok || b.Len() > 0 {
		t.Errorf("JSON = %v, %d bytes sent; want TooLargeError and none", err, b.Len())
	}
}

func TestAnnouncedLengthAllocatesNoMemory(t *testing.T) {
	head := binary.BigEndian.AppendUint32([]byte{byte(protocol.FrameReply)}, protocol.MaxMessage)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		if _, _, err := protocol.NewReader(bytes.NewReader(append(head, "abc"...))).Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) / 20; took > 200<<10 {
		t.Errorf("a frame with 3 of 8 MiB allocates %d bytes, want at most 200 KiB", took)
	}
}

func TestTruncatedFrameIsUnexpectedEOF(t *testing.T) {
	for _, s := range []string{"\x05", "\x05\x00\x00\x00", "\x05\x00\x00\x00\x02a"} {
		if _, _, err := protocol.NewReader(strings.NewReader(s)).Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v, want unexpected EOF", s, err)
		}
	}
}

func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	w := protocol.NewWriter(&b)
	w.JSON(protocol.FrameReply, protocol.ExecStatus{ID: "x-aaaaaaaaaaaa"})
	w.Chunk(protocol.Chunk{Stream: protocol.Stdout, Offset: 5, Lost: 2, Data: []byte("hi")})
	w.Ack(7)
	w.JSON(protocol.FrameError, protocol.Failure{Kind: fault.Invalid, Message: "m"})
	f.Add(b.Bytes())
	w.JSON(protocol.FrameParked, protocol.Parked{Acknowledged: 3, Written: 4})
	w.JSON(protocol.FrameReply, protocol.BranchedReply{Problems: []string{"\x1b[2J"}})
	f.Add(b.Bytes())
	f.Add([]byte("\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := protocol.NewReader(bytes.NewReader(in))
		for read := 0; ; {
			kind, p, err := r.Next()
			if err != nil {
				return
			}
			read += 5 + len(p)
			if read > len(in) {
				t.Fatalf("%d bytes decoded of %d", read, len(in))
			}
			if c, err := protocol.DecodeChunk(p); err == nil && (c.Offset < 0 || c.Lost < 0 || c.Lost > c.Offset || c.Offset+int64(len(c.Data)) > math.MaxInt64-1) {
				t.Fatalf("chunk %+v", c)
			}
			if at, err := protocol.DecodeAck(p); err == nil && at < 0 {
				t.Fatalf("acknowledgement = %d, want an error", at)
			}
			var s protocol.ExecStatus
			protocol.Decode(kind, p, protocol.FrameReply, &s)
			var parked protocol.Parked
			if protocol.Decode(kind, p, protocol.FrameParked, &parked) == nil && parked.Err() == nil && (parked.Acknowledged < 0 || parked.Written < parked.Acknowledged) {
				t.Fatalf("parked: %+v", parked)
			}
			var reply protocol.BranchedReply
			if protocol.Decode(kind, p, protocol.FrameReply, &reply) == nil {
				if err := reply.Err(); (err == nil) != (len(reply.Problems) == 0) || err != nil && strings.ContainsFunc(err.Error(), unicode.IsControl) {
					t.Fatalf("Err of problems %q = %v", reply.Problems, err)
				}
			}
			var q protocol.Request
			if protocol.Decode(kind, p, protocol.FrameRequest, &q) == nil && q.Branched.Check() == nil && len(q.Branched.Seed) != protocol.SeedSize {
				t.Fatalf("Check(%+v) = nil, want an error", q.Branched)
			}
		}
	})
}
