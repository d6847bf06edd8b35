package images_test

import (
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkStore measures throughput relative to the size of the images: 200 MB of memory,
// first all new, then all known, then restored.
func BenchmarkStore(b *testing.B) {
	pages := memory(1, 50_000)
	h := newHarness(b)
	src := h.dump("src", pages)
	b.Run("Put/new", func(b *testing.B) {
		b.SetBytes(int64(len(pages)))
		for b.Loop() {
			h.put(src, "s1")
			b.StopTimer()
			h.must(h.store.Delete(h.path("s1")))
			h.gc()
			b.StartTimer()
		}
	})
	h.put(src, "s1")
	b.Run("Put/known", func(b *testing.B) {
		b.SetBytes(int64(len(pages)))
		for b.Loop() {
			h.put(src, "s2")
			b.StopTimer()
			h.must(h.store.Delete(h.path("s2")))
			b.StartTimer()
		}
	})
	b.Run("Get", func(b *testing.B) {
		b.SetBytes(int64(len(pages)))
		into := filepath.Join(b.TempDir(), "into")
		for b.Loop() {
			_, err := h.store.Get(b.Context(), h.path("s1"), into)
			h.must(err)
			b.StopTimer()
			h.must(os.RemoveAll(into))
			b.StartTimer()
		}
	})
}
