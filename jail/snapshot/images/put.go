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

// Put stores the image directory src as dst. It creates dst if necessary; its parent must
// exist. When Put returns, the snapshot is durable. After an error there is no snapshot, and
// GC removes leftover files.
//
// Put returns fault.Conflict if dst already contains images, fault.Invalid if src contains
// anything but regular files, fault.TooLarge if they have hundreds of gigabytes, and
// fault.NoSpace if the disk is full. src must not change meanwhile.
func (s *Store) Put(ctx context.Context, src, dst string) (Sum, error) {
	p := &put{store: s, chunks: map[sum]*chunk{}, bufs: make(chan []byte, 2*workers())}
	sum, err := p.run(ctx, src, dst)
	if err != nil {
		p.rollback()
		return Sum{}, wrapError("images.Put", filepath.Base(dst), err)
	}
	return sum, nil
}

// A put is the state of storing one image directory.
type put struct {
	store *Store
	pack  *pack
	bufs  chan []byte // buffers of chunks; their number bounds the chunks in progress

	mu sync.Mutex // before Store.mu
	// +checklocks:mu
	chunks map[sum]*chunk // all chunks of the directory
	// +checklocks:mu
	pinned []*chunk // the chunks that the store already had
	// +checklocks:mu
	out *os.File // nil until the first new chunk
	// +checklocks:mu
	w *bufio.Writer
	// +checklocks:mu
	size int64 // size of the pack
}

// A piece is an extent whose chunk is not yet determined.
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

// prepare creates dst, or checks that it contains no images.
func prepare(dst string) (made bool, err error) {
	err = os.Mkdir(dst, 0o700)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return err == nil, err
	}
	_, err = os.Lstat(filepath.Join(dst, indexName))
	if err == nil {
		return false, errExists(dst)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return false, err
}

func errExists(dst string) error {
	return fault.Newf(fault.Conflict, "", "", "%s already contains images", dst)
}

func (s *Store) newPack() *pack {
	s.mu.Lock()
	defer s.mu.Unlock()
	pk := &pack{id: newPackID(), chunks: map[int64]*chunk{}, open: true}
	s.packs[pk.id] = pk
	return pk
}

// read splits the files of src and stores their chunks concurrently.
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
			err = fault.Newf(fault.Invalid, "", "", "%q is not a regular file", e.Name())
			break
		}
		f := file{name: e.Name()}
		var of []*piece
		of, err = p.readFile(ctx, keepers, filepath.Join(src, e.Name()), &f)
		if err != nil {
			break
		}
		x.files = append(x.files, f)
		pieces = append(pieces, of)
	}
	// An error of a worker is the cause if both failed.
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
				return p.addChunk(pc, data)
			})
		}
		return ctx.Err()
	}
	c := cutter{get: p.buffer, emit: emit}
	err = c.cut(in)
	return pieces, err
}

// buffer returns a free buffer. It blocks while too many chunks are in progress.
func (p *put) buffer() []byte {
	if b := <-p.bufs; b != nil {
		return b[:0]
	}
	return make([]byte, 0, maxChunk)
}

// addChunk finds the chunk of data, or appends a new one to the pack.
func (p *put) addChunk(pc *piece, data []byte) error {
	of := sha256.Sum256(data)
	p.mu.Lock()
	c, ok := p.chunks[of]
	if !ok {
		c = p.store.pin(of)
		if c != nil {
			ok = true
			p.pinned = append(p.pinned, c)
		} else {
			c = &chunk{location: location{sum: of, raw: int64(len(data))}, pack: p.pack}
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

// flush makes the pack durable.
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

// resolve sets the chunks, packs and extents from the pieces of all files.
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
				x.chunks = append(x.chunks, indexed{pc.chunk.location, x.packNumber(packs, pc.chunk.pack.id)})
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

// commit writes the index and links it to dst after the index and all data that it refers to
// are durable.
func (p *put) commit(x *index, dst string, madeDst bool) error {
	s := p.store
	b := x.encode()
	x.size = int64(len(b))
	if x.size > maxIndex {
		return fault.Newf(fault.TooLarge, "", "", "the index has %d bytes, more than the maximum of %d", x.size, maxIndex)
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
			err = errExists(dst)
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

// publish adds the snapshot with its new and pinned chunks to the store.
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
		if s.bySum[of] == nil { // a concurrent Put may have added the same content
			s.bySum[of] = c
		}
	}
	p.pack.open = false
	if len(p.pack.chunks) == 0 {
		delete(s.packs, p.pack.id)
	}
	s.snaps[x.id] = sn
}

// rollback undoes a failed Put. GC removes what cannot be removed now.
func (p *put) rollback() {
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
