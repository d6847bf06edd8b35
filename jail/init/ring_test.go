package jailinit

import (
	"bytes"
	"slices"
	"testing"

	"glasshouse/jail/init/protocol"
)

// A model is the reference of a ring: all bytes ever written.
type model struct {
	data   []byte
	stream []protocol.Stream
}

// FuzzRing performs the writes of the input and compares the ring with the model. Two bytes of
// input are a write: its stream and length.
func FuzzRing(f *testing.F) {
	f.Add([]byte{1, 10, 0, 200, 1, 255, 1, 1, 0, 1, 1, 1}, 300, 1000)
	f.Add(bytes.Repeat([]byte{0, 1, 1, 1}, 200), 64, 100)
	f.Add(bytes.Repeat([]byte{0, 255}, 100), 5000, 0)
	f.Fuzz(func(t *testing.T, writes []byte, limit, allowed int) {
		var b budget
		b.left.Store(int64(max(0, allowed%100_000)))
		r := &ring{limit: 1 + max(0, limit%10_000), budget: &b}
		var m model
		for i := 0; i+1 < len(writes); i += 2 {
			stream := protocol.Stdout + protocol.Stream(writes[i]%2)
			data := bytes.Repeat([]byte{byte(i)}, 16*int(writes[i+1]))
			for len(data) > 0 {
				n := r.fit(len(data))
				if n <= 0 || n > r.limit {
					t.Fatalf("fit(%d) = %d with a limit of %d", len(data), n, r.limit)
				}
				drop := r.reserve(stream, n)
				r.append(stream, data[:n])
				if r.oldest > drop {
					t.Fatalf("oldest = %d, want %d as reserve returned", r.oldest, drop)
				}
				m.data = append(m.data, data[:n]...)
				m.stream = append(m.stream, slices.Repeat([]protocol.Stream{stream}, n)...)
				data = data[n:]
			}
		}
		m.check(t, r)
		r.shrink()
		m.check(t, r)
		r.release()
		if r.memory() != 0 {
			t.Errorf("memory after release = %d, want 0", r.memory())
		}
		if left := b.left.Load(); left != int64(max(0, allowed%100_000)) {
			t.Errorf("budget = %d, want %d", left, max(0, allowed%100_000))
		}
		if c, ok := r.read(0, make([]byte, 10)); ok != (len(m.data) > 0) || int(c.Lost) != len(m.data) {
			t.Errorf("read after release = %+v, %v; want all %d lost", c, ok, len(m.data))
		}
	})
}

func (m *model) check(t *testing.T, r *ring) {
	t.Helper()
	if r.next != int64(len(m.data)) || r.next-r.oldest > int64(r.limit) {
		t.Fatalf("ring from %d to %d, limit %d, after %d bytes written", r.oldest, r.next, r.limit, len(m.data))
	}
	buf := make([]byte, 77)
	for at := int64(0); ; {
		c, ok := r.read(at, buf)
		if !ok {
			if at != r.next {
				t.Fatalf("no output at %d of %d", at, r.next)
			}
			return
		}
		if c.Offset != at+c.Lost || c.Lost != 0 && c.Offset != r.oldest {
			t.Fatalf("read(%d) = offset %d with %d lost, oldest %d", at, c.Offset, c.Lost, r.oldest)
		}
		end := c.Offset + int64(len(c.Data))
		if !bytes.Equal(c.Data, m.data[c.Offset:end]) {
			t.Fatalf("wrong bytes at %d", c.Offset)
		}
		for _, s := range m.stream[c.Offset:end] {
			if s != c.Stream {
				t.Fatalf("stream %d at %d, want %d", c.Stream, c.Offset, s)
			}
		}
		at = end
	}
}
