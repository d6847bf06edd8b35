package images

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/dirs"
)

// Put keeps the image directory src as dst, which it makes if need be, and whose
// parent must exist. When it returns, a power cut loses nothing of it. If it
// fails there is no snapshot, and what may be left is for GC.
//
// It returns fault.Conflict if dst holds images already, fault.Invalid if there
// is anything but regular files in src, fault.TooLarge if they are hundreds of
// gigabytes, and fault.NoSpace if the disk is full. Nothing may change src
// meanwhile.
func (s *Store) Put(ctx context.Context, src, dst string) (Sum, error) {
	p := &put{store: s, chunks: map[sum]*chunk{}, bufs: make(chan []byte, 2*workers())}
	sum, err := p.run(ctx, src, dst)
	if err != nil {
		p.abandon()
		return Sum{}, failed("images.Put", filepath.Base(dst), err)
	}
	return sum, nil
}

// A put is one image directory on its way into the store.
type put struct {
	store *Store
	pack  *pack
	bufs  chan []byte // the chunks' buffers: as many as may be on their way

	mu sync.Mutex // before Store.mu
	// +checklocks:mu
	chunks map[sum]*chunk // all that the directory uses
	// +checklocks:mu
	pinned []*chunk // those of them that were in the store
	// +checklocks:mu
	out *os.File // nil until there is a new chunk
	// +checklocks:mu
	w *bufio.Writer
	// +checklocks:mu
	size int64 // of the pack
}

// A piece is an extent whose chunk is yet to be known.
type piece struct {
	hole  int64
	chunk *chunk
}

func (p *put) run(ctx context.Context, src, dst string) (Sum, error) {
	madeDst, err := prepare(dst)
	if err != nil {
		return Sum{}, err
	}
	p.pack = p.store.newPack()
	x := &index{id: p.pack.id}
	pieces, err := p.read(ctx, src, x)
	if err == nil {
		err = p.flush()
	}
	if err == nil {
		x.resolve(pieces)
		err = p.commit(x, dst, madeDst)
	}
	if err != nil {
		if madeDst {
			os.Remove(dst)
		}
		return Sum{}, err
	}
	sum := x.sum()
	p.mu.Lock()
	defer p.mu.Unlock()
	sum.NewBytes = p.size + x.size
	return sum, nil
}

// prepare makes dst, or sees that nothing is kept there.
func prepare(dst string) (made bool, err error) {
	err = os.Mkdir(dst, 0o700)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return err == nil, err
	}
	_, err = os.Lstat(filepath.Join(dst, indexName))
	if err == nil {
		return false, kept(dst)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return false, err
}

func kept(dst string) error {
	return fault.Newf(fault.Conflict, "", "", "%s holds images already", dst)
}

func (s *Store) newPack() *pack {
	s.mu.Lock()
	defer s.mu.Unlock()
	pk := &pack{id: newPackID(), chunks: map[int64]*chunk{}, open: true}
	s.packs[pk.id] = pk
	return pk
}

// read cuts the files of src and keeps their chunks, many at a time.
func (p *put) read(ctx context.Context, src string, x *index) ([][]*piece, error) {
	entries, err := os.ReadDir(src)
	if err != nil {
		return nil, err
	}
	for range cap(p.bufs) {
		p.bufs <- nil
	}
	var pieces [][]*piece
	keepers, ctx := errgroup.WithContext(ctx)
	keepers.SetLimit(workers())
	for _, e := range entries {
		if !e.Type().IsRegular() || !plainName(e.Name()) {
			err = fault.Newf(fault.Invalid, "", "", "%q is not a plain file", e.Name())
			break
		}
		f := file{name: e.Name()}
		var of []*piece
		if of, err = p.readFile(ctx, keepers, filepath.Join(src, e.Name()), &f); err != nil {
			break
		}
		x.files = append(x.files, f)
		pieces = append(pieces, of)
	}
	// What a keeper met is why reading ended, if both say something.
	if met := keepers.Wait(); met != nil {
		err = met
	}
	return pieces, err
}

func (p *put) readFile(ctx context.Context, keepers *errgroup.Group, name string, f *file) ([]*piece, error) {
	in, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var pieces []*piece
	emit := func(hole int64, data []byte) error {
		f.size += hole + int64(len(data))
		pc := &piece{hole: hole}
		pieces = append(pieces, pc)
		if hole == 0 {
			keepers.Go(func() error {
				defer func() { p.bufs <- data }()
				return p.keep(pc, data)
			})
		}
		return ctx.Err()
	}
	c := cutter{get: p.buffer, emit: emit}
	err = c.cut(in)
	return pieces, err
}

// buffer waits until fewer chunks are on their way.
func (p *put) buffer() []byte {
	if b := <-p.bufs; b != nil {
		return b[:0]
	}
	return make([]byte, 0, maxChunk)
}

// keep finds the chunk of data, or appends a new one to the pack.
func (p *put) keep(pc *piece, data []byte) error {
	of := sha256.Sum256(data)
	p.mu.Lock()
	c, ok := p.chunks[of]
	if !ok {
		if c = p.store.pin(of); c != nil {
			ok = true
			p.pinned = append(p.pinned, c)
		} else {
			c = &chunk{place: place{sum: of, raw: int64(len(data))}, pack: p.pack}
		}
		p.chunks[of] = c
	}
	p.mu.Unlock()
	pc.chunk = c
	if ok {
		return nil
	}
	packed := compressor().EncodeAll(data, make([]byte, 0, len(data)))
	p.mu.Lock()
	defer p.mu.Unlock()
	c.off, c.stored = p.size, int64(len(packed))
	return p.write(packed)
}

// write appends to the pack. p.mu must be held.
//
// +checklocks:p.mu
func (p *put) write(b []byte) error {
	if p.out == nil {
		var err error
		p.out, err = os.OpenFile(p.store.pack(p.pack.id), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		p.w = bufio.NewWriterSize(p.out, 1<<20)
	}
	p.size += int64(len(b))
	_, err := p.w.Write(b)
	return err
}

// flush brings the pack to the disk.
func (p *put) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out == nil {
		return nil
	}
	if err := errors.Join(p.w.Flush(), p.out.Sync(), p.out.Close()); err != nil {
		return err
	}
	return dirs.Sync(p.store.path(packsDir))
}

// resolve fills in chunks, packs and extents from the pieces of every file.
func (x *index) resolve(pieces [][]*piece) {
	chunks, packs := map[*chunk]int{}, map[packID]int{}
	for i, of := range pieces {
		f := &x.files[i]
		for _, pc := range of {
			if pc.hole > 0 {
				f.extents = append(f.extents, extent{hole: pc.hole})
				continue
			}
			n, ok := chunks[pc.chunk]
			if !ok {
				n = len(x.chunks)
				chunks[pc.chunk] = n
				x.chunks = append(x.chunks, indexed{pc.chunk.place, x.packNumber(packs, pc.chunk.pack.id)})
			}
			f.extents = append(f.extents, extent{chunk: n})
		}
	}
}

func (x *index) packNumber(packs map[packID]int, id packID) int {
	n, ok := packs[id]
	if !ok {
		n = len(x.packs)
		packs[id] = n
		x.packs = append(x.packs, id)
	}
	return n
}

// commit writes the index, and makes it that of dst when it and all it names are
// sure to stay.
func (p *put) commit(x *index, dst string, madeDst bool) error {
	s := p.store
	b := x.encode()
	x.size = int64(len(b))
	if x.size > maxIndex {
		return fault.Newf(fault.TooLarge, "", "", "its index would take %d bytes, over %d", x.size, maxIndex)
	}
	ref := s.ref(x.id)
	if err := writeSynced(ref, b); err != nil {
		return err
	}
	if err := dirs.Sync(s.path(refsDir)); err != nil {
		return err
	}
	link := filepath.Join(dst, indexName)
	if err := os.Link(ref, link); err != nil {
		if errors.Is(err, fs.ErrExist) {
			err = kept(dst)
		}
		return err
	}
	err := dirs.Sync(dst)
	if err == nil && madeDst {
		err = dirs.Sync(filepath.Dir(dst))
	}
	if err != nil {
		return errors.Join(err, os.Remove(link))
	}
	p.publish(x)
	return nil
}

func writeSynced(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// publish makes the new chunks known and the pinned ones the snapshot's.
func (p *put) publish(x *index) {
	s := p.store
	p.mu.Lock()
	defer p.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	sn := &snap{index: x.size, chunks: p.pinned}
	for of, c := range p.chunks {
		if c.pack != p.pack {
			continue
		}
		c.refs = 1
		p.pack.chunks[c.off] = c
		sn.chunks = append(sn.chunks, c)
		if s.known[of] == nil { // or a Put at the same time was faster
			s.known[of] = c
		}
	}
	p.pack.open = false
	if len(p.pack.chunks) == 0 {
		delete(s.packs, p.pack.id)
	}
	s.snaps[x.id] = sn
}

// abandon takes back a Put that failed. What cannot be removed now, GC will.
func (p *put) abandon() {
	if p.pack == nil {
		return
	}
	s := p.store
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil {
		p.out.Close()
	}
	os.Remove(s.ref(p.pack.id))
	err := os.Remove(s.pack(p.pack.id))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(p.pinned)
	p.pack.open, p.pack.holes = false, true
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		delete(s.packs, p.pack.id)
	}
}
