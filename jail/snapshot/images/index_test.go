package images

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"reflect"
	"testing"

	"glasshouse/fault"
)

// These tests are in the package itself because they use unexported types.

func sample() *index {
	return &index{
		id:    packID{1},
		packs: []packID{{1}, {2}},
		chunks: []indexed{
			{location{sum{9}, 0, 100, 4096}, 0},
			{location{sum{8}, 1 << 40, 2, maxChunk}, 1},
		},
		files: []file{
			{name: "empty"},
			{name: "pages-1.img", size: 4096 + 1<<40 + maxChunk, extents: []extent{{chunk: 0}, {hole: 1 << 40}, {chunk: 1}}},
		},
	}
}

func TestIndexRoundTrip(t *testing.T) {
	want := sample()
	b := want.encode()
	got, err := decodeIndex(b)
	if err != nil {
		t.Fatal(err)
	}
	want.size = int64(len(b))
	got.files[0].extents = nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, wrote %+v", got, want)
	}
}

func TestDamagedIndexIsRejected(t *testing.T) {
	b := sample().encode()
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1
		if _, err := decodeIndex(bad); !errors.Is(err, errDamaged) {
			t.Errorf("decode with byte %d changed = %v, want damaged", i, err)
		}
		if _, err := decodeIndex(b[:i]); !errors.Is(err, errDamaged) {
			t.Errorf("decode of the first %d bytes = %v, want damaged", i, err)
		}
	}
}

func TestNewerIndexVersionIsUnsupported(t *testing.T) {
	b := sample().encode()
	b[len(magic)] = version + 1
	s := sha256.Sum256(b[:len(b)-len(sum{})])
	copy(b[len(b)-len(s):], s[:])
	if _, err := decodeIndex(b); !errors.Is(err, fault.Unsupported) || errors.Is(err, errDamaged) {
		t.Errorf("an index of a newer version: %v, want unsupported", err)
	}
}

func TestInconsistentIndexIsRejected(t *testing.T) {
	for what, change := range map[string]func(*index){
		"a path for a name":       func(x *index) { x.files[0].name = "../x" },
		"no name":                 func(x *index) { x.files[0].name = "" },
		"the parent":              func(x *index) { x.files[0].name = ".." },
		"names out of order":      func(x *index) { x.files[0].name = "zz" },
		"a name twice":            func(x *index) { x.files[0].name = x.files[1].name },
		"an extent of no chunk":   func(x *index) { x.files[1].extents[0].chunk = 2 },
		"a chunk in no pack":      func(x *index) { x.chunks[0].pack = 2 },
		"a chunk too long":        func(x *index) { x.chunks[0].raw = maxChunk + 1 },
		"a chunk too long packed": func(x *index) { x.chunks[0].stored = 1 << 40 },
		"an empty chunk":          func(x *index) { x.chunks[0].raw = 0 },
		"a file too short":        func(x *index) { x.files[1].size++ },
		"a file too long":         func(x *index) { x.files[1].size-- },
		"a file past all":         func(x *index) { x.files[0].size = -1 },
	} {
		x := sample()
		change(x)
		if _, err := decodeIndex(x.encode()); !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v, want damaged", what, err)
		}
	}
}

func FuzzIndex(f *testing.F) {
	b := sample().encode()
	f.Add(b[:len(b)-len(sum{})])
	f.Add((&index{}).encode()[:60])
	f.Fuzz(func(t *testing.T, body []byte) {
		x, err := decodeBody(body)
		if err != nil {
			if !errors.Is(err, errDamaged) && !errors.Is(err, fault.Unsupported) {
				t.Errorf("error without a kind: %v", err)
			}
			return
		}
		x.digest()
		again, err := decodeIndex(x.encode())
		if err != nil {
			t.Fatalf("decode of the encoded index: %v", err)
		}
		again.size = 0
		if !reflect.DeepEqual(x, again) {
			t.Errorf("index %+v decodes as %+v", x, again)
		}
	})
}

// FuzzCut describes pages by letters: z is a page of zeros, other letters are pages of that
// letter. tail more bytes follow.
func FuzzCut(f *testing.F) {
	f.Add([]byte("aabzzzbzzzzzzzzzzzzcde"), uint16(17))
	f.Add(bytes.Repeat([]byte("abcdzefgh"), 100), uint16(0))
	f.Add(bytes.Repeat([]byte("z"), 600), uint16(4095))
	f.Fuzz(func(t *testing.T, letters []byte, tail uint16) {
		var in []byte
		for _, l := range append(letters, 'z') {
			if l == 'z' {
				l = 0
			}
			in = append(in, bytes.Repeat([]byte{l}, page)...)
		}
		in = in[:len(in)-page+int(tail)%page]
		var out []byte
		holes := 0
		c := cutter{
			get: func() []byte { return nil },
			emit: func(hole int64, data []byte) error {
				if len(data) > maxChunk || (hole > 0) == (len(data) > 0) || len(data) > 0 && len(out)%page != 0 {
					t.Errorf("invalid piece of %d bytes and %d zeros at %d", len(data), hole, len(out))
				}
				holes++
				if hole == 0 {
					holes = 0
				}
				out = append(append(out, data...), make([]byte, hole)...)
				if holes > 1 {
					t.Error("two holes in a row")
				}
				return nil
			},
		}
		if err := c.cut(bytes.NewReader(in)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(in, out) {
			t.Error("the pieces do not add up to the input")
		}
	})
}
