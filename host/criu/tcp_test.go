package criu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	tcp_stream "github.com/checkpoint-restore/go-criu/v8/crit/images/tcp-stream"
	"google.golang.org/protobuf/proto"
)

// Images can be imported from another host, so they are untrusted.
func FuzzReadStream(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(streamImage(&tcp_stream.TcpStreamEntry{}, ""))
	f.Add(streamImage(&tcp_stream.TcpStreamEntry{InqLen: ptr[uint32](3), OutqLen: ptr[uint32](2), UnsqLen: ptr[uint32](1)}, "abcde"))
	f.Add(streamImage(&tcp_stream.TcpStreamEntry{InqLen: ptr[uint32](1 << 31), OutqLen: ptr[uint32](1 << 31)}, "abcde"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		name := filepath.Join(dir, "tcp-stream-1.img")
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		eachRecord(name, func(r []byte) error {
			if len(r) > len(b) {
				t.Errorf("record has %d bytes, image has %d", len(r), len(b))
			}
			return nil
		})
		s, err := readStream(name)
		if err != nil {
			return
		}
		if uint64(len(s.recv)) != uint64(s.state.GetInqLen()) || uint64(len(s.send)) != uint64(s.state.GetOutqLen()) || int(s.state.GetUnsqLen()) > len(s.send) {
			t.Errorf("queues have %d and %d bytes, state is %s", len(s.recv), len(s.send), s.state)
		}
	})
}

func streamImage(e *tcp_stream.TcpStreamEntry, queues string) []byte {
	e.InqSeq, e.OutqSeq, e.OptMask, e.SndWscale, e.MssClamp = ptr[uint32](1), ptr[uint32](2), ptr[uint32](0), ptr[uint32](0), ptr[uint32](1460)
	if e.InqLen == nil {
		e.InqLen, e.OutqLen = ptr[uint32](0), ptr[uint32](0)
	}
	record, err := proto.Marshal(e)
	if err != nil {
		panic(err)
	}
	b := binary.LittleEndian.AppendUint32(make([]byte, header), uint32(len(record)))
	return append(append(b, record...), queues...)
}

func TestReadStreamQueues(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tcp-stream-1.img")
	b := streamImage(&tcp_stream.TcpStreamEntry{InqLen: ptr[uint32](3), OutqLen: ptr[uint32](2), UnsqLen: ptr[uint32](1)}, "abcde")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := readStream(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(s.recv) != "abc" || string(s.send) != "de" {
		t.Errorf("queues = %q and %q, want abc and de", s.recv, s.send)
	}
	if err := os.WriteFile(name, b[:len(b)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readStream(name); err == nil {
		t.Error("readStream of a truncated image = nil, want an error")
	}
}
