package eventlog

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func TestEveryClosedSegmentIsToldOfWithItsDigest(t *testing.T) {
	for _, plain := range []bool{false, true} {
		cfg := config(t, Policy{SegmentMB: 1, Plain: plain})
		var mu sync.Mutex
		told := map[uint64]Segment{}
		twice := 0
		cfg.Finished = func(s Segment) {
			mu.Lock()
			defer mu.Unlock()
			if _, ok := told[s.First]; ok {
				twice++
			}
			told[s.First] = s
		}
		l := open(t, cfg)
		fill(l, 0, 20_000)
		if err := l.Close(); err != nil { // what is closed may not be finished
			t.Fatal(err)
		}
		l = open(t, cfg)
		grow(t, l, 20_000, 40_000)
		segs, err := l.Segments()
		if err != nil {
			t.Fatal(err)
		}
		closed := 0
		for _, s := range segs {
			if !s.Closed {
				continue
			}
			closed++
			if got := told[s.First]; got != s {
				t.Errorf("plain=%v: of %+v was told %+v", plain, s, got)
			}
			if got := textSum(t, l.path(s.File), s.Compressed > 0); got != s.SHA256 {
				t.Errorf("plain=%v: the digest of %s is %s, and %s was told", plain, s.File, got, s.SHA256)
			}
		}
		if closed < 3 || len(told) != closed || twice > 0 {
			t.Errorf("plain=%v: %d closed segments, %d told of, %d of them twice", plain, closed, len(told), twice)
		}
	}
}

// textSum reads a file as anybody could.
func textSum(t *testing.T, name string, packed bool) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	if packed {
		z, err := zstd.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		r = z
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
