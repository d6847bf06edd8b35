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

func TestFinishedReportsEverySegment(t *testing.T) {
	for _, plain := range []bool{false, true} {
		cfg := config(t, Policy{SegmentMB: 1, Plain: plain})
		var mu sync.Mutex
		reported := map[uint64]Segment{}
		twice := 0
		cfg.Finished = func(s Segment) {
			mu.Lock()
			defer mu.Unlock()
			if _, ok := reported[s.First]; ok {
				twice++
			}
			reported[s.First] = s
		}
		l := open(t, cfg)
		fill(l, 0, 20_000)
		if err := l.Close(); err != nil { // some closed segments may not be finished yet
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
			if got := reported[s.First]; got != s {
				t.Errorf("plain=%v: segment %+v was reported as %+v", plain, s, got)
			}
			if got := textSum(t, l.path(s.File), s.Compressed > 0); got != s.SHA256 {
				t.Errorf("plain=%v: digest of %s = %s, reported %s", plain, s.File, got, s.SHA256)
			}
		}
		if closed < 3 || len(reported) != closed || twice > 0 {
			t.Errorf("plain=%v: %d closed segments, %d reported, %d of them twice", plain, closed, len(reported), twice)
		}
	}
}

// textSum hashes the text of a file without using the log.
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
