// Package images keeps the memory images of snapshots on disk: cut at pages into
// chunks, each kept once for all snapshots, compressed, and named by its content.
//
// An image directory is what a checkpoint writes: a flat directory of regular
// files, most of whose bytes are memory pages. Successive snapshots of one jail
// share most pages, at other positions. A [Store] holds
//
//	packs/{id}   the chunks that one snapshot brought, compressed, end to end
//	refs/{id}    that snapshot's index: its files as a list of chunks in packs
//
// and the snapshot's own directory holds a hard link of its index, named
// "index". That link is what keeps a snapshot: a Put makes it last, when all the
// index names is on disk, and an index without it is garbage. Whoever removes
// the directory has therefore deleted the snapshot, whether it went through the
// store or not. Nothing is counted on disk: who uses a chunk is told from the
// indexes when the store is opened.
//
// [Export] and [Import] carry a whole snapshot to another host.
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

// A Store keeps image directories. Its methods may be called at once; no two
// processes may have one directory open.
type Store struct {
	dir string

	// linkless says that the directory was copied by something that makes two
	// files of two links. An index without a link then says nothing.
	linkless bool

	collecting sync.Mutex // held by GC; before mu

	mu sync.Mutex
	// +checklocks:mu
	known map[sum]*chunk // where a content can be had, for Put
	// +checklocks:mu
	packs map[packID]*pack
	// +checklocks:mu
	snaps map[packID]*snap // the snapshots that exist or are being read
}

// A packID names a snapshot in the store, and the pack that it brought.
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
	chunks map[int64]*chunk // those in use, by offset
	open   bool             // a Put writes it
	holes  bool             // something in it is no longer used and not yet given back
}

// A chunk is a piece of a file, as it lies in a pack.
type chunk struct {
	place
	pack *pack
	refs int // snapshots, and Puts in progress, that use it. guarded by Store.mu
}

// A snap is a snapshot as the store knows it. Its fields are guarded by Store.mu.
type snap struct {
	chunks  []*chunk
	index   int64 // size of its index
	readers int
	deleted bool
}

// Sum tells what an image directory is and what it takes.
type Sum struct {
	Digest   string // sha256, in hex, over names, sizes and content; equal if and only if the directories are
	Raw      int64  // bytes of its files, holes included
	Stored   int64  // bytes that its chunks take in the store, shared or not
	NewBytes int64  // those of them that no other snapshot had, and the index; only Put says
}

const (
	indexName = "index"
	packsDir  = "packs"
	refsDir   = "refs"
)

// Open opens the store in dir, which it makes if need be. Snapshots must be on
// the same filesystem.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir, known: map[sum]*chunk{}, packs: map[packID]*pack{}, snaps: map[packID]*snap{}}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open the store of memory images: %w", err)
	}
	return s, nil
}

func (s *Store) open() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := dirs.Make(s.dir, s.path(packsDir), s.path(refsDir)); err != nil {
		return err
	}
	if s.linkless, err = lostLinks(s.dir); err != nil {
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
	return s.distrustTorn()
}

// load makes the chunks of a snapshot known. An index that is damaged is left to
// GC and to whoever reads the snapshot.
//
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
		if pk == nil { // its file is gone; reading the snapshot will say so
			pk = &pack{id: x.packs[p.pack], chunks: map[int64]*chunk{}}
			s.packs[pk.id] = pk
		}
		c := pk.chunks[p.off]
		if c == nil {
			c = &chunk{place: p.place, pack: pk}
			pk.chunks[p.off] = c
		}
		c.refs++
		sn.chunks = append(sn.chunks, c)
		if s.known[c.sum] == nil {
			s.known[c.sum] = c
		}
	}
	s.snaps[id] = sn
	return nil
}

// distrustTorn forgets, for new snapshots, the chunks of packs that are missing
// or short.
//
// +checklocks:s.mu
func (s *Store) distrustTorn() error {
	for id, pk := range s.packs {
		var size int64
		switch st, err := os.Lstat(s.pack(id)); {
		case err == nil:
			size = st.Size()
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
		for _, c := range pk.chunks {
			if c.off+c.stored > size && s.known[c.sum] == c {
				delete(s.known, c.sum)
			}
		}
	}
	return nil
}

// lostLinks tells whether dir was copied without its hard links, by a pair of
// links that is made with the store.
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

// linked tells whether a snapshot's directory still holds its index.
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

// pin keeps the chunk of a content until release, and returns nil if there is
// none.
func (s *Store) pin(of sum) *chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.known[of]
	if c != nil {
		c.refs++
	}
	return c
}

// release gives up the use of chunks. s.mu must be held.
//
// +checklocks:s.mu
func (s *Store) release(chunks []*chunk) {
	for _, c := range chunks {
		if c.refs--; c.refs > 0 {
			continue
		}
		delete(c.pack.chunks, c.off)
		c.pack.holes = true
		if s.known[c.sum] == c {
			delete(s.known, c.sum)
		}
	}
}

// distrust keeps new snapshots from using a chunk that cannot be read.
func (s *Store) distrust(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.known[p.sum]; c != nil && c.place == p {
		delete(s.known, p.sum)
	}
}

// acquire keeps a snapshot's chunks readable until done is called.
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

// drop forgets a deleted snapshot that nobody reads. s.mu must be held.
//
// +checklocks:s.mu
func (s *Store) drop(id packID, sn *snap) {
	if sn.deleted && sn.readers == 0 && s.snaps[id] == sn {
		delete(s.snaps, id)
		s.release(sn.chunks)
	}
}

// compressor and expander are shared: each call takes what it needs. A chunk is
// the largest thing they see.
var compressor = sync.OnceValue(func() *zstd.Encoder {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(workers()),
		zstd.WithWindowSize(maxChunk), zstd.WithEncoderCRC(false)) // a chunk's name is its checksum
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

// failed says what failed on what, and gives a full disk its kind.
func failed(op, on string, err error) error {
	if err != nil && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		return &fault.Error{Op: op, On: on, Kind: fault.NoSpace, Err: err, Remedy: "free space on the host's disk, or delete snapshots"}
	}
	if err != nil {
		return &fault.Error{Op: op, On: on, Err: err} // which may have a kind
	}
	return nil
}
