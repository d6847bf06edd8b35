package criu

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	tcp_stream "github.com/checkpoint-restore/go-criu/v8/crit/images/tcp-stream"
	"golang.org/x/sys/unix"
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

// The send buffer of a socket that sends much has grown, and that of a restored one must hold as much.
func TestRestoreOfLargeSendQueue(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("TCP repair mode needs root")
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0") // its port is the destination; nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	limit := 0
	text, err := os.ReadFile("/proc/sys/net/core/wmem_max") // the limit without SO_SNDBUFFORCE
	if err == nil {
		limit, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil {
		t.Fatal(err)
	}
	local := binary.NativeEndian.Uint32([]byte{127, 0, 0, 1})
	n := 4*limit + 8<<20
	s := &stream{
		sk: &sk_inet.InetSkEntry{
			SrcAddr: []uint32{local}, SrcPort: ptr[uint32](0),
			DstAddr: []uint32{local}, DstPort: ptr(uint32(listener.Addr().(*net.TCPAddr).Port)),
		},
		state: &tcp_stream.TcpStreamEntry{
			InqSeq: ptr[uint32](1), InqLen: ptr[uint32](0), OutqSeq: ptr(uint32(n)), OutqLen: ptr(uint32(n)),
			UnsqLen: ptr[uint32](0), OptMask: ptr[uint32](0), MssClamp: ptr[uint32](1460),
		},
		send: bytes.Repeat([]byte("x"), n), sock: fd,
	}
	if err := s.restoreAddr(); err != nil {
		t.Fatal(err)
	}
	if err := s.restoreQueues(); err != nil {
		t.Fatal(err)
	}
	if queued, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ); err != nil || queued != n {
		t.Errorf("the socket has %d bytes to send, %v, want %d", queued, err, n)
	}
	if locked, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK); err != nil && err != unix.ENOPROTOOPT || locked != 0 {
		t.Errorf("SO_BUF_LOCK = %d, %v, want a buffer that grows", locked, err)
	}
}
