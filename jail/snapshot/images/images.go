// Package images stores the memory images of snapshots on disk. It splits them at page
// boundaries into chunks. Each chunk is compressed and stored once for all snapshots (content
// addressing).
//
// An image directory is the output of a checkpoint: a flat directory of regular files, which
// consist mostly of memory pages. Successive snapshots of one jail share most pages, at
// different positions. A [Store] holds
//
//	packs/{id}   the chunks that one snapshot added, compressed and concatenated
//	refs/{id}    the index of that snapshot: its files as lists of chunks in packs
//
// The snapshot's own directory holds a hard link of its index, named "index". The link makes
// the snapshot exist: Put creates it last, when all data that the index refers to is on disk,
// and an index without the link is garbage. Removing the directory therefore deletes the
// snapshot, with or without the store. There are no reference counts on disk: Open computes
// them from the indexes.
//
// [Export] and [Import] transfer a complete snapshot to another host.
package images

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/dirs"
)

// A Store stores image directories. Its methods are safe for concurrent use. Only one process
// may have a directory open.
type Store struct {
	dir string

	// linkless reports that the directory was copied without preserving hard links. An index
	// without a link is then not garbage.
	linkless bool

	collecting sync.Mutex // held by GC; before mu

	mu sync.Mutex
	// +checklocks:mu
	bySum map[sum]*chunk // chunks that Put may reuse, by content
	// +checklocks:mu
	packs map[packID]*pack
	// +checklocks:mu
	snaps map[packID]*snap // the snapshots that exist or are being read
}

// A packID identifies a snapshot in the store and the pack that it added.
type packID [16]byte

func (id packID) String() string { return hex.EncodeToString(id[:]) }

func newPackID() (id packID) {
	rand.Read(id[:])
	return id
}

func parsePackID(s string) (id packID, ok bool) {
	n, err := hex.Decode(id[:], []byte(s[:min(len(s), 2*len(id))]))
	return id, err == nil && n == len(id) && id.String() == s
}

// A pack is a file of chunks. Its fields are guarded by Store.mu.
type pack struct {
	id     packID
	chunks map[int64]*chunk // the chunks in use, by offset
	open   bool             // a Put is writing it
	holes  bool             // it has unused parts that are not yet freed
}

// A chunk is a piece of a file that is stored in a pack.
type chunk struct {
	location
	pack *pack
	refs int // number of snapshots and Puts in progress that use it. Guarded by Store.mu
}

// A snap is a snapshot in the store. Its fields are guarded by Store.mu.
type snap struct {
	chunks  []*chunk
	index   int64 // size of its index
	readers int
	deleted bool
}

// Sum describes the content and size of an image directory.
type Sum struct {
	Digest   string // sha256 in hex over names, sizes and content; equal if and only if the directories are equal
	Raw      int64  // size of the files, including holes
	Stored   int64  // size of its chunks in the store, including shared ones
	NewBytes int64  // size of the chunks and index that this snapshot added; set only by Put
}

const (
	indexName = "index"
	packsDir  = "packs"
	refsDir   = "refs"
)

// Open opens the store in dir and creates the directory if necessary. Snapshots must be on the
// same file system.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir, bySum: map[sum]*chunk{}, packs: map[packID]*pack{}, snaps: map[packID]*snap{}}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open the memory image store: %w", err)
	}
	return s, nil
}

func (s *Store) open() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := dirs.Make(s.dir, s.path(packsDir), s.path(refsDir)); err != nil {
		return err
	}
	s.linkless, err = lostLinks(s.dir)
	if err != nil {
		return err
	}
	if err := errors.Join(dirs.Sync(s.dir), dirs.Sync(filepath.Dir(s.dir))); err != nil {
		return err
	}
	packs, err := os.ReadDir(s.path(packsDir))
	if err != nil {
		return err
	}
	for _, e := range packs {
		if id, ok := parsePackID(e.Name()); ok {
			s.packs[id] = &pack{id: id, chunks: map[int64]*chunk{}, holes: true}
		}
	}
	refs, err := os.ReadDir(s.path(refsDir))
	if err != nil {
		return err
	}
	for _, e := range refs {
		id, ok := parsePackID(e.Name())
		if !ok {
			continue
		}
		if err := s.load(id); err != nil {
			return err
		}
	}
	return s.distrustTruncated()
}

// load adds the chunks of a snapshot. It skips damaged indexes, which GC and readers report.
// +checklocks:s.mu
func (s *Store) load(id packID) error {
	live, err := s.linked(id)
	if err != nil || !live {
		return err
	}
	x, err := readIndex(s.ref(id))
	if errors.Is(err, errDamaged) {
		return nil
	}
	if err != nil {
		return err
	}
	sn := &snap{index: x.size}
	for _, p := range x.chunks {
		pk := s.packs[x.packs[p.pack]]
		if pk == nil { // its file is missing; reading the snapshot will fail
			pk = &pack{id: x.packs[p.pack], chunks: map[int64]*chunk{}}
			s.packs[pk.id] = pk
		}
		c := pk.chunks[p.off]
		if c == nil {
			c = &chunk{location: p.location, pack: pk}
			pk.chunks[p.off] = c
		}
		c.refs++
		sn.chunks = append(sn.chunks, c)
		if s.bySum[c.sum] == nil {
			s.bySum[c.sum] = c
		}
	}
	s.snaps[id] = sn
	return nil
}

// distrustTruncated prevents new snapshots from using chunks of missing or truncated packs.
// +checklocks:s.mu
func (s *Store) distrustTruncated() error {
	for id, pk := range s.packs {
		var size int64
		switch st, err := os.Lstat(s.pack(id)); {
		case err == nil:
			size = st.Size()
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
		for _, c := range pk.chunks {
			if c.off+c.stored > size && s.bySum[c.sum] == c {
				delete(s.bySum, c.sum)
			}
		}
	}
	return nil
}

// lostLinks reports whether dir was copied without its hard links. It checks a pair of links
// that is created with the store.
func lostLinks(dir string) (bool, error) {
	one, two := filepath.Join(dir, "links"), filepath.Join(dir, "links.pair")
	_, err := os.Lstat(two)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(one, []byte("A copy of this directory must keep hard links.\n"), 0o600); err != nil {
			return false, err
		}
		return false, os.Link(one, two)
	}
	if err != nil {
		return false, err
	}
	n, err := links(two)
	return n < 2, err
}

// linked reports whether a snapshot's directory still contains its index.
func (s *Store) linked(id packID) (bool, error) {
	n, err := links(s.ref(id))
	return n > 1 || s.linkless, err
}

func links(name string) (int, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return 0, &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	return int(st.Nlink), nil
}

func (s *Store) path(elem string) string { return filepath.Join(s.dir, elem) }
func (s *Store) ref(id packID) string    { return filepath.Join(s.dir, refsDir, id.String()) }
func (s *Store) pack(id packID) string   { return filepath.Join(s.dir, packsDir, id.String()) }

// pin returns the chunk with the given content and keeps it until release. It returns nil if
// there is no such chunk.
func (s *Store) pin(of sum) *chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.bySum[of]
	if c != nil {
		c.refs++
	}
	return c
}

// release drops one use of each chunk. s.mu must be held.
//
// +checklocks:s.mu
func (s *Store) release(chunks []*chunk) {
	for _, c := range chunks {
		c.refs--
		if c.refs > 0 {
			continue
		}
		delete(c.pack.chunks, c.off)
		c.pack.holes = true
		if s.bySum[c.sum] == c {
			delete(s.bySum, c.sum)
		}
	}
}

// distrust prevents new snapshots from using an unreadable chunk.
func (s *Store) distrust(p location) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.bySum[p.sum]; c != nil && c.location == p {
		delete(s.bySum, p.sum)
	}
}

// acquire keeps the chunks of a snapshot readable until done is called.
func (s *Store) acquire(id packID) (done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sn := s.snaps[id]
	if sn == nil || sn.deleted {
		return nil, false
	}
	sn.readers++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		sn.readers--
		s.drop(id, sn)
	}, true
}

// drop removes a deleted snapshot without readers. s.mu must be held.
//
// +checklocks:s.mu
func (s *Store) drop(id packID, sn *snap) {
	if sn.deleted && sn.readers == 0 && s.snaps[id] == sn {
		delete(s.snaps, id)
		s.release(sn.chunks)
	}
}

// compressor and expander are shared: EncodeAll and DecodeAll are safe for concurrent use.
// Their largest input is a chunk.
var compressor = sync.OnceValue(func() *zstd.Encoder {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(workers()),
		zstd.WithWindowSize(maxChunk), zstd.WithEncoderCRC(false)) // chunks have a checksum: their sha256
	if err != nil {
		panic(err) // the options are constants
	}
	return w
})

var expander = sync.OnceValue(func() *zstd.Decoder {
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxChunk), zstd.WithDecoderMaxWindow(maxChunk))
	if err != nil {
		panic(err)
	}
	return r
})

func workers() int { return runtime.GOMAXPROCS(0) }

// wrapError adds operation and object to err, and marks errors of a full disk.
func wrapError(op, on string, err error) error {
	if err != nil && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		return &fault.Error{Op: op, On: on, Kind: fault.NoSpace, Err: err, Remedy: "free space on the host's disk, or delete snapshots"}
	}
	if err != nil {
		return &fault.Error{Op: op, On: on, Err: err} // keeps the kind of err
	}
	return nil
}
