package rootfs

import (
	"context"
	"io"
	"time"
)

// Extract unpacks layers into dir in the same way as Resolve, and returns the skipped entries.
func Extract(ctx context.Context, dir string, maxBytes, maxFiles int64, layers ...io.Reader) ([]string, error) {
	x, err := newExtractor(dir, maxBytes, maxFiles)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	for _, l := range layers {
		if err := x.layer(ctx, l); err != nil {
			return x.skipped, err
		}
	}
	return x.skipped, x.finish()
}

// Age sets back the time at which an image was last resolved.
func (p *Provider) Age(digest string, by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	img := p.images[digest]
	img.Used = img.Used.Add(-by)
	p.images[digest] = img
}

var (
	DebianLines = debianLines
	TarTree     = tarTree
	RemoveTree  = removeTree
)
