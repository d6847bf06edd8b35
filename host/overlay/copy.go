package overlay

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// A CopyLimit limits a copy. 0 is unlimited.
type CopyLimit struct {
	Files int64 // names, of any type
	Bytes int64 // on disk: holes take none, and a file with two names counts once
}

// CopyStats count the copied files and bytes, as in CopyLimit.
type CopyStats CopyLimit

// add counts files and bytes and returns an error if they exceed limit.
func (s *CopyStats) add(files, bytes int64, limit CopyLimit) error {
	s.Files += files
	s.Bytes += bytes
	if limit.Files > 0 && s.Files > limit.Files {
		return fault.Newf(fault.TooLarge, "overlay.CopyLayer", "", "the layer has more than %d files", limit.Files)
	}
	if limit.Bytes > 0 && s.Bytes > limit.Bytes {
		return fault.Newf(fault.TooLarge, "overlay.CopyLayer", "", "the layer has more than %d bytes", limit.Bytes)
	}
	return nil
}

// CopyLayer copies the upper layer src, as it is on disk, to the empty directory dst, which may
// be on another filesystem. It copies whiteouts, opaque directories and the overlay's other
// marks, owners, modes, times, extended attributes, hard links and holes. It returns
// fault.TooLarge if the layer exceeds limit and fault.Conflict if it changes meanwhile. If
// CopyLayer fails the caller must remove the partial content of dst.
//
// Nothing outside of src is read, independent of file names and the targets of links.
func CopyLayer(ctx context.Context, src, dst string, limit CopyLimit) (CopyStats, error) {
	m, err := newMerger(ctx, []string{src}, dst)
	if err != nil {
		return CopyStats{}, fmt.Errorf("copy layer %s: %w", src, err)
	}
	defer m.close()
	m.limit = limit
	if err := m.run(); err != nil {
		return m.stats, fmt.Errorf("copy layer %s: %w", src, err)
	}
	return m.stats, nil
}

// Measure counts the files and bytes of an upper layer until they exceed limit. The layer may
// be in use. Concurrent changes may or may not be counted.
func Measure(ctx context.Context, upper string, limit CopyLimit) (files, bytes int64, over bool, err error) {
	top, err := os.OpenFile(upper, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, 0, false, fmt.Errorf("measure layer: %w", err)
	}
	defer top.Close()
	m := measure{limit: limit, seen: map[uint64]bool{}, todo: []*node{{}}}
	for len(m.todo) > 0 && !over && err == nil {
		at := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		over, err = m.dir(ctx, top, at)
	}
	if err != nil {
		err = fmt.Errorf("measure layer %s: %w", upper, err)
	}
	return m.stats.Files, m.stats.Bytes, over, err
}

type measure struct {
	limit CopyLimit
	stats CopyStats
	seen  map[uint64]bool // inodes with several names; a layer is on one filesystem
	todo  []*node
}

func (m *measure) dir(ctx context.Context, top *os.File, at *node) (over bool, err error) {
	if at.depth > maxDepth {
		return true, nil
	}
	dir, err := openBelow(top, at.rel(), unix.O_RDONLY|unix.O_DIRECTORY)
	if moving(err) && at.up != nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1024) // a directory can be huge, and the limit small
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			if m.count(&st) != nil {
				return true, nil
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				m.todo = append(m.todo, at.child(name))
			}
		}
		if err == io.EOF || moving(err) {
			return false, ctx.Err()
		}
		if err != nil {
			return false, err
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
	}
}

func (m *measure) count(st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return m.stats.add(1, 0, m.limit)
	}
	if st.Nlink > 1 {
		if m.seen[st.Ino] {
			return m.stats.add(1, 0, m.limit)
		}
		m.seen[st.Ino] = true
	}
	return m.stats.add(1, st.Blocks*512, m.limit)
}
