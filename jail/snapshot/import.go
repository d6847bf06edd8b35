package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/id"
	"glasshouse/jail/snapshot/images"
)

// ImportOptions configure an import.
type ImportOptions struct {
	FilesOnly bool // without the processes
	Force     bool // with the processes, even if they may not run on this host

	// Move keeps the id and the reason of the snapshot, because it was lost on the host that it
	// comes from. Import returns fault.Conflict if this host has it.
	Move bool

	// Copy keeps the id, because the snapshot stays on the host that it comes from. The copy is
	// not listed. If this host has the snapshot, Import returns fault.Conflict. A copy can be used
	// before it is durable; if the daemon ends until then, the next one does not have it.
	Copy bool

	// Sources are the directories and files of this host for mounts, by target. Other mounts
	// keep their sources.
	Sources map[string]string

	// Trusted reports that the caller has access to all directories of this host anyway, as in
	// jail.Spec.
	Trusted bool
}

// importLimits bound the contents of an archive. Disk usage is bounded by the disk.
var importLimits = images.Limits{
	Names: []string{layerFile, processesFile, memoryDir + "/*"}, Files: 20_000, Bytes: 1 << 40, Meta: 4 << 20,
}

// Import stores a snapshot that Export wrote on this or another host, by default under a new id.
// Its root filesystem must exist on this host. The author of the archive must be as trusted as
// the images of this host: the kernel mounts its layer, and CRIU reads its images, as root.
//
// Import returns fault.Invalid if r is not a valid archive, fault.NotFound if the root
// filesystem is missing, and fault.Unsupported if the processes cannot run on this host.
func (ss *snapshots) Import(ctx context.Context, r io.Reader, o ImportOptions) (Snapshot, error) {
	if len(ss.cfg.Layers) == 0 || ss.cfg.LowerLayers == nil {
		return Snapshot{}, fault.Cannot("snapshot.Import", "this daemon does not support snapshots", "run the daemon as root")
	}
	i := &importing{snapshots: ss, o: o, sid: id.NewSnapshot()}
	ss.filesMu.RLock()
	i.at = filepath.Join(ss.cfg.Dir, "import-"+string(i.sid)+".part")
	made := ss.protect(i.at)
	ss.filesMu.RUnlock()
	defer made()
	s, err := i.run(ctx, r)
	if i.later != nil {
		done := ss.protect(i.at)
		ss.wg.Go(func() {
			defer done()
			select { // the jail for which it was copied first gets the CPUs
			case <-time.After(copyDelay):
			case <-ss.ctx.Done():
			}
			i.later()
		})
		return s, nil
	}
	err = errors.Join(err, os.RemoveAll(i.at))
	if err != nil && i.dir != "" {
		err = errors.Join(err, ss.sweep(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("import a snapshot: %w", err)
	}
	return s, nil
}

// copyDelay is the time after which a copy that is in use is made durable.
const copyDelay = 2 * time.Second

// importing is the state of an import.
type importing struct {
	*snapshots
	o   ImportOptions
	sid id.Snapshot
	at  string // directory where the archive is unpacked
	dir string // final directory; "" until it exists

	later func() // makes a copy durable, and removes at; nil: it is durable, or was not imported
}

func (i *importing) run(ctx context.Context, r io.Reader) (Snapshot, error) {
	meta, err := images.Import(&ctxReader{ctx, r}, i.at, importLimits)
	if err != nil {
		return Snapshot{}, err
	}
	s, err := i.read(meta)
	if err != nil {
		return Snapshot{}, err
	}
	if _, err := i.Get(ctx, s.ID); err == nil { // only with Move and Copy: other ids are new
		return Snapshot{}, fault.Newf(fault.Conflict, "snapshot.Import", string(s.ID), "this host has the snapshot")
	}
	if err := i.validate(ctx, &s); err != nil {
		return Snapshot{}, err
	}
	if i.reserveName(s.Name) != nil { // a snapshot of this daemon has the name
		s.Name = ""
	}
	defer i.releaseName(s.Name)
	return s, i.commit(ctx, &s)
}

// read decodes and validates the record of the archive.
func (i *importing) read(meta []byte) (Snapshot, error) {
	invalid := func(format string, args ...any) (Snapshot, error) {
		return Snapshot{}, fault.Newf(fault.Invalid, "snapshot.Import", "", format, args...)
	}
	var p archiveRecord
	dec := json.NewDecoder(bytes.NewReader(meta))
	if err := dec.Decode(&p); err != nil {
		return invalid("invalid record: %w", err)
	}
	s := portable(p.Snapshot)
	if p.Format != archiveFormat {
		return invalid("archive format %d, but this daemon supports %d: use the same version of Glasshouse", p.Format, archiveFormat)
	}
	if !id.Valid('s', string(s.ID)) || !id.Valid('j', string(s.Jail.ID)) {
		return invalid("the record does not name a snapshot of a jail")
	}
	if _, err := os.Lstat(filepath.Join(i.at, layerFile)); err != nil {
		return invalid("the layer is missing")
	}
	if _, err := os.Lstat(filepath.Join(i.at, memoryDir)); s.Memory && err != nil {
		return invalid("the memory images are missing")
	}
	if exists(filepath.Join(i.at, processesFile)) {
		if _, err := readProcesses(i.at); err != nil {
			return invalid("invalid process list: %w", err)
		}
	}
	switch {
	case i.o.Copy:
		s.Name, s.Reason = "", Copied
	case !i.o.Move:
		s.ID, s.Reason, s.Trigger, s.Created = i.sid, Imported, "from "+string(s.ID), time.Now()
	}
	s.Memory = s.Memory && !i.o.FilesOnly
	s.Jail.Spec.Trusted, s.Jail.Spec.Start = i.o.Trusted, false
	for n, m := range s.Jail.Spec.Mounts {
		if source := i.o.Sources[m.Target]; source != "" {
			s.Jail.Spec.Mounts[n].Source = source
			s.Jail.Spec.GrantedMounts = append(s.Jail.Spec.GrantedMounts, source)
		}
	}
	return s, nil
}

// validate checks that the snapshot can be used on this host.
func (i *importing) validate(ctx context.Context, s *Snapshot) error {
	if err := checkHost(s.Host, host(), s.Memory, i.o.Force); err != nil {
		return err
	}
	spec, err := i.cfg.Jails.Check(s.Jail.Spec)
	if err != nil {
		return err
	}
	spec.Trusted = false
	s.Jail.Spec = spec
	s.Jail.Lower, err = i.cfg.LowerLayers(ctx, spec.Rootfs, s.Jail.Digest)
	if err != nil {
		return err
	}
	layers := i.cfg.Layers[spec.Backend]
	if layers == nil {
		return fault.Cannot("snapshot.Import", "snapshots of the backend "+spec.Backend+" cannot be imported", "import a snapshot of a jail with the backend oci")
	}
	if err := layers.Seal(filepath.Join(i.at, layerFile)); err != nil {
		return fmt.Errorf("seal the layer: %w", err)
	}
	return nil
}

// commit makes the snapshot durable.
func (i *importing) commit(ctx context.Context, s *Snapshot) error {
	ss := i.snapshots
	ss.filesMu.RLock()
	defer ss.filesMu.RUnlock()
	i.dir = ss.dir(s.Jail.ID, s.ID)
	if err := os.MkdirAll(i.dir, 0o700); err != nil {
		return err
	}
	layer := filepath.Join(i.dir, layerFile)
	if err := os.Rename(filepath.Join(i.at, layerFile), layer); err != nil {
		return fmt.Errorf("move the layer: %w", err)
	}
	if list := filepath.Join(i.at, processesFile); s.Memory && exists(list) {
		if err := os.Rename(list, filepath.Join(i.dir, processesFile)); err != nil {
			return fmt.Errorf("move the process list: %w", err)
		}
	}
	s.Jail.Sealed, s.Digest = []string{layer}, ""
	cached := (i.o.Copy || i.o.Move) && s.Memory && i.cacheMemory(ctx, s.ID) // it is used at once
	if cached && i.o.Copy {
		if err := syncLayer(layer); err != nil { // jails use it as long as they exist
			return errors.Join(err, i.cache.put(s.ID), i.cache.drop(s.ID))
		}
		i.keep(*s)
		i.later = func() { i.finish(*s) }
		return nil
	}
	err := i.store(ctx, s)
	if cached {
		err = errors.Join(err, i.cache.put(s.ID))
		if err != nil {
			err = errors.Join(err, i.cache.drop(s.ID))
		}
	}
	return err
}

// cacheMemory copies the memory images to the cache, with one user, so that they can be used before
// they are stored. It reports false if they do not fit.
func (i *importing) cacheMemory(ctx context.Context, sid id.Snapshot) bool {
	from, to := filepath.Join(i.at, memoryDir), i.cache.path(sid)
	if err := i.cache.make(sid, sizeOf(from)); err != nil {
		return false
	}
	_, err := overlay.CopyLayer(ctx, from, to, overlay.CopyLimit{})
	if err == nil {
		err = readable(to)
	}
	if err != nil {
		i.cfg.Log.Warn("cannot copy memory images to the cache", "snapshot", sid, "err", err)
		err = errors.Join(i.cache.drop(sid), i.cache.put(sid))
		if err != nil {
			i.cfg.Log.Warn("cannot remove memory images from the cache", "snapshot", sid, "err", err)
		}
		return false
	}
	return true
}

// readable lets restored processes read the files of a directory with their own user IDs.
func readable(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err, os.Chmod(dir, 0o755)}
	for _, e := range entries {
		errs = append(errs, os.Chmod(filepath.Join(dir, e.Name()), 0o644))
	}
	return errors.Join(errs...)
}

// keep makes a snapshot available.
func (i *importing) keep(s Snapshot) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all[s.ID] = &s
}

// finish makes a copy durable that can be used already. If that fails, the copy is removed.
func (i *importing) finish(s Snapshot) {
	ss := i.snapshots
	// A deletion waits for it: there is no user who could try again after a conflict.
	defer ss.endUse(s.ID, ss.useInBackground(s.ID, func(error) {}))
	defer ss.cache.put(s.ID)
	defer os.RemoveAll(i.at)
	_, done, err := ss.acquire(s.ID)
	if err != nil {
		return // it was deleted
	}
	ss.filesMu.RLock()
	err = i.store(ss.ctx, &s)
	ss.filesMu.RUnlock()
	done()
	if err == nil {
		return
	}
	if ss.ctx.Err() == nil {
		ss.cfg.Log.Warn("cannot store the copy of a snapshot of another node; it is copied again when it is needed", "snapshot", s.ID, "err", err)
	}
	ss.mu.Lock()
	delete(ss.all, s.ID)
	ss.mu.Unlock()
	ss.cache.drop(s.ID)
	if err := ss.sweep(context.WithoutCancel(ss.ctx)); err != nil {
		ss.cfg.Log.Error("cannot remove leftover snapshot files", "err", err)
	}
}

// store makes the snapshot durable. The caller holds filesMu.
func (i *importing) store(ctx context.Context, s *Snapshot) error {
	ss := i.snapshots
	layer := s.Jail.Sealed[0]
	steps, stepCtx := errgroup.WithContext(ctx)
	steps.Go(func() error { return syncLayer(layer) })
	if s.Memory {
		steps.Go(func() error {
			sum, err := ss.images.Put(stepCtx, filepath.Join(i.at, memoryDir), filepath.Join(i.dir, imagesDir))
			s.Digest = sum.Digest
			return err
		})
	}
	if err := steps.Wait(); err != nil {
		return err
	}
	if err := writeMeta(i.dir, *s); err != nil {
		return err
	}
	if err := ss.cfg.Store.Put(ctx, *s); err != nil {
		return fmt.Errorf("record the snapshot: %w", err)
	}
	i.keep(*s)
	return nil
}

// ctxReader is a Reader that fails when the context ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (i *ctxReader) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(p)
}
