package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/dirs"
)

// Delete deletes the snapshot stored as dst, and the directory dst if it is then empty. It
// returns nil if there is no snapshot. Reads in progress continue. The next GC frees the
// space.
func (s *Store) Delete(dst string) error {
	if err := s.delete(dst); err != nil {
		return wrapError("images.Delete", filepath.Base(dst), err)
	}
	return nil
}

func (s *Store) delete(dst string) error {
	link := filepath.Join(dst, indexName)
	x, err := readIndex(link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var ref string
	if err == nil && s.isRef(link, x.id) {
		ref = s.ref(x.id)
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := dirs.Sync(dst); err != nil {
		return err
	}
	_ = os.Remove(dst) // it may contain other files
	if ref == "" {
		return nil // damaged, or a copy: GC removes its index
	}
	if err := os.Remove(ref); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.forget(x.id)
	return nil
}

// isRef reports whether link is a link to a snapshot's index and not a copy.
func (s *Store) isRef(link string, id packID) bool {
	a, err := os.Lstat(link)
	if err != nil {
		return false
	}
	b, err := os.Lstat(s.ref(id))
	return err == nil && (s.linkless || os.SameFile(a, b))
}

// forget releases the chunks of a snapshot whose index was removed, after its last reader is
// done.
func (s *Store) forget(id packID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sn := s.snaps[id]; sn != nil {
		sn.deleted = true
		s.drop(id, sn)
	}
}

// GC frees the space of deleted snapshots and of Puts that did not finish, and returns the
// number of freed bytes on disk. If the file system cannot punch holes, a pack is removed only
// when none of its chunks is in use.
//
// GC returns fault.Conflict and frees nothing if an index is damaged, because the chunks that
// it needs are then unknown.
func (s *Store) GC(ctx context.Context) (freed int64, err error) {
	s.collecting.Lock()
	defer s.collecting.Unlock()
	if err := s.sweepRefs(ctx); err != nil {
		return 0, wrapError("images.GC", "", err)
	}
	waste := s.waste()
	if len(waste) == 0 {
		return 0, nil
	}
	// The removal of indexes must be durable before their chunks are freed.
	if err := syncfs(s.dir); err != nil {
		s.requeueWaste(waste)
		return 0, wrapError("images.GC", "", err)
	}
	for i, w := range waste {
		if ended := ctx.Err(); ended != nil {
			s.requeueWaste(waste[i:])
			err = errors.Join(err, ended)
			break
		}
		n, failed := s.collect(w)
		freed += n
		if failed != nil {
			s.requeueWaste(waste[i : i+1])
			err = errors.Join(err, failed)
		}
	}
	return freed, wrapError("images.GC", "", err)
}

// sweepRefs removes the indexes that are not linked from a snapshot's directory.
func (s *Store) sweepRefs(ctx context.Context) error {
	entries, err := os.ReadDir(s.path(refsDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		id, ok := parsePackID(e.Name())
		if !ok {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.sweepRef(id); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s *Store) sweepRef(id packID) error {
	s.mu.Lock()
	pk, sn := s.packs[id], s.snaps[id]
	busy := pk != nil && pk.open
	s.mu.Unlock()
	if busy {
		return nil // Put has not linked it yet
	}
	live, err := s.linked(id)
	if err != nil {
		return err
	}
	if live && sn == nil { // Open could not read it
		return &fault.Error{Kind: fault.Conflict, Err: fmt.Errorf("%s: %w", s.ref(id), errDamaged),
			Remedy: "delete the snapshot whose " + indexName + " this file is"}
	}
	if live {
		return nil
	}
	if err := os.Remove(s.ref(id)); err != nil {
		return err
	}
	s.forget(id)
	return nil
}

// A waste is a pack with unused parts.
type waste struct {
	pack *pack
	used []span // ascending; empty if the pack can be removed
}

type span struct{ from, to int64 }

// waste returns the packs with unused parts. New snapshots cannot use these parts.
func (s *Store) waste() []waste {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []waste
	for _, pk := range s.packs {
		if pk.open || !pk.holes {
			continue
		}
		pk.holes = false
		w := waste{pack: pk}
		for _, c := range pk.chunks {
			w.used = append(w.used, span{c.off, c.off + c.stored})
		}
		slices.SortFunc(w.used, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		all = append(all, w)
	}
	return all
}

// requeueWaste leaves the remaining packs to the next GC.
func (s *Store) requeueWaste(left []waste) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range left {
		w.pack.holes = true
	}
}

// collect removes a pack or punches holes for its unused parts.
func (s *Store) collect(w waste) (freed int64, err error) {
	name := s.pack(w.pack.id)
	before, err := blocks(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return 0, err
	}
	if len(w.used) == 0 {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		s.mu.Lock()
		delete(s.packs, w.pack.id)
		s.mu.Unlock()
		return before, nil
	}
	if before == 0 {
		return 0, nil // the file of the pack is missing or empty
	}
	if err := punch(name, w.used); err != nil {
		return 0, err
	}
	after, err := blocks(name)
	return before - after, err
}

// punch frees the parts of a file between and after the used ones (fallocate(2)).
func punch(name string, used []span) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	at := int64(0)
	for _, u := range append(used, span{st.Size(), st.Size()}) {
		if u.from > at {
			err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, u.from-at)
			if errors.Is(err, unix.EOPNOTSUPP) {
				return nil
			}
			if err != nil {
				return &fs.PathError{Op: "punch", Path: name, Err: err}
			}
		}
		at = max(at, u.to)
	}
	return nil
}

// blocks returns the disk usage of a file.
func blocks(name string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return 0, &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	return st.Blocks * 512, nil
}

func syncfs(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(d.Fd())))
}

// Usage is the disk usage of a snapshot's memory images.
type Usage struct {
	Own    int64 // bytes that only it uses; GC frees whole blocks, so somewhat less
	Shared int64 // bytes that other snapshots use as well
	Raw    int64 // size of the files, including holes
}

// Size returns the disk usage of the snapshot stored as dst.
func (s *Store) Size(dst string) (Usage, error) {
	x, done, err := s.index(dst)
	if err != nil {
		return Usage{}, wrapError("images.Size", filepath.Base(dst), err)
	}
	defer done()
	u := Usage{Own: x.size, Raw: x.sum().Raw}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.snaps[x.id].chunks {
		if c.refs > 1 {
			u.Shared += c.stored
		} else {
			u.Own += c.stored
		}
	}
	return u, nil
}
