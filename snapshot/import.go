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
	"glasshouse/id"
	"glasshouse/snapshot/images"
)

// ImportOptions say what of an exported snapshot is taken.
type ImportOptions struct {
	FilesOnly bool // without its processes
	Force     bool // with them, though they may not run on this host

	// Trusted says that the caller could read any directory of this host anyway,
	// as in jail.Spec.
	Trusted bool
}

// importLimits are what an archive may hold. What it takes is bounded by the
// disk.
var importLimits = images.Limits{
	Names: []string{layerFile, processesFile, memoryDir + "/*"}, Files: 20_000, Bytes: 1 << 40, Meta: 4 << 20,
}

// Import keeps a snapshot that Export wrote, here or on another host, under a new
// id. The root filesystem it stands on must be here. Whoever made the archive is
// believed as whoever made the images of this host: the kernel mounts what is in
// it, and CRIU reads it, as root.
//
// It returns fault.Invalid if r is no such archive, fault.NotFound if the root
// filesystem is not here, and fault.Unsupported if its processes cannot run here.
func (k *Keeper) Import(ctx context.Context, r io.Reader, o ImportOptions) (Snapshot, error) {
	if k.cfg.Layers == nil || k.cfg.Lower == nil {
		return Snapshot{}, fault.Cannot("snapshot.Import", "this daemon cannot keep snapshots", "run the daemon as root")
	}
	i := &importing{k: k, o: o, sid: id.NewSnapshot()}
	k.tidying.RLock()
	i.at = filepath.Join(k.cfg.Dir, "import-"+string(i.sid)+".part")
	made := k.making(i.at)
	k.tidying.RUnlock()
	defer made()
	s, err := i.run(ctx, r)
	err = errors.Join(err, os.RemoveAll(i.at))
	if err != nil && i.dir != "" {
		err = errors.Join(err, k.sweep(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("import a snapshot: %w", err)
	}
	return s, nil
}

// importing is a snapshot on its way in.
type importing struct {
	k   *Keeper
	o   ImportOptions
	sid id.Snapshot
	at  string // where it is unpacked
	dir string // where it will be; "" until something is there
}

func (i *importing) run(ctx context.Context, r io.Reader) (Snapshot, error) {
	meta, err := images.Import(&interruptibleReader{ctx, r}, i.at, importLimits)
	if err != nil {
		return Snapshot{}, err
	}
	s, err := i.read(meta)
	if err != nil {
		return Snapshot{}, err
	}
	if err := i.judge(ctx, &s); err != nil {
		return Snapshot{}, err
	}
	return s, i.keep(ctx, &s)
}

// read returns the snapshot that an archive says it is, if that could be.
func (i *importing) read(meta []byte) (Snapshot, error) {
	invalid := func(format string, args ...any) (Snapshot, error) {
		return Snapshot{}, fault.Newf(fault.Invalid, "snapshot.Import", "", format, args...)
	}
	var p parcel
	dec := json.NewDecoder(bytes.NewReader(meta))
	if err := dec.Decode(&p); err != nil {
		return invalid("its record: %w", err)
	}
	s := traveller(p.Snapshot)
	if p.Format != parcelFormat {
		return invalid("it is of format %d, and this daemon knows %d: use the same version of Glasshouse", p.Format, parcelFormat)
	}
	if !id.Valid('s', string(s.ID)) || !id.Valid('j', string(s.Jail.ID)) {
		return invalid("its record names no snapshot of a jail")
	}
	if _, err := os.Lstat(filepath.Join(i.at, layerFile)); err != nil {
		return invalid("it has no layer")
	}
	if _, err := os.Lstat(filepath.Join(i.at, memoryDir)); s.Memory && err != nil {
		return invalid("the images of its processes are missing")
	}
	if exists(filepath.Join(i.at, processesFile)) {
		if _, err := readProcesses(i.at); err != nil {
			return invalid("what it says of its processes: %w", err)
		}
	}
	s.ID, s.Reason, s.Trigger, s.Created = i.sid, Imported, "from "+string(s.ID), time.Now()
	s.Memory = s.Memory && !i.o.FilesOnly
	s.Jail.Spec.Trusted, s.Jail.Spec.Start = i.o.Trusted, false
	return s, nil
}

// judge finds out whether a snapshot can be used on this host.
func (i *importing) judge(ctx context.Context, s *Snapshot) error {
	if err := fits(s.Host, host(), s.Memory, i.o.Force); err != nil {
		return err
	}
	spec, err := i.k.cfg.Jails.Check(s.Jail.Spec)
	if err != nil {
		return err
	}
	spec.Trusted = false
	s.Jail.Spec = spec
	if s.Jail.Lower, err = i.k.cfg.Lower(ctx, spec.Rootfs, s.Jail.Digest); err != nil {
		return err
	}
	return i.k.cfg.Layers.Seal(filepath.Join(i.at, layerFile))
}

// keep makes the snapshot last.
func (i *importing) keep(ctx context.Context, s *Snapshot) error {
	k := i.k
	k.tidying.RLock()
	defer k.tidying.RUnlock()
	i.dir = k.dir(s.Jail.ID, s.ID)
	if err := os.MkdirAll(i.dir, 0o700); err != nil {
		return err
	}
	layer := filepath.Join(i.dir, layerFile)
	if err := os.Rename(filepath.Join(i.at, layerFile), layer); err != nil {
		return err
	}
	if told := filepath.Join(i.at, processesFile); s.Memory && exists(told) {
		if err := os.Rename(told, filepath.Join(i.dir, processesFile)); err != nil {
			return err
		}
	}
	s.Jail.Sealed, s.Digest = []string{layer}, ""
	steps, stepCtx := errgroup.WithContext(ctx)
	steps.Go(func() error { return settle(layer) })
	if s.Memory {
		steps.Go(func() error {
			sum, err := k.images.Put(stepCtx, filepath.Join(i.at, memoryDir), filepath.Join(i.dir, imagesDir))
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
	if err := k.cfg.Store.Put(ctx, *s); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := *s
	k.all[s.ID] = &kept
	return nil
}

// interruptibleReader is a Reader that fails when the context ends.
type interruptibleReader struct {
	ctx context.Context
	r   io.Reader
}

func (i *interruptibleReader) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(p)
}
