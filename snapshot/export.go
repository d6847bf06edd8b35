package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/snapshot/images"
)

// A parcel is the metadata.json of a snapshot that travels.
type parcel struct {
	Format   int      `json:"format"`
	Snapshot Snapshot `json:"snapshot"` // without what is only true of one host
}

// parcelFormat counts what an older Glasshouse could not read.
const parcelFormat = 1

// memoryDir is where memory images are in a parcel.
const memoryDir = "memory"

// Export writes a snapshot to w, for Import on this host or another: its record,
// its layers as one, and the images of its processes. The root filesystem below
// is not part of it. If it fails, what it has written is nothing that Import
// takes.
func (k *Keeper) Export(ctx context.Context, sid id.Snapshot, w io.Writer) error {
	s, done, err := k.use(sid)
	if err != nil {
		return err
	}
	defer done()
	layer, drop, err := k.oneLayer(ctx, s)
	if err != nil {
		return err
	}
	defer drop()
	files := []images.File{{Name: layerFile, Path: layer}}
	if s.Memory {
		at, cool, err := k.warm(ctx, s)
		if err != nil {
			return err
		}
		defer cool()
		entries, err := os.ReadDir(at)
		if err != nil {
			return err
		}
		for _, e := range entries {
			files = append(files, images.File{Name: memoryDir + "/" + e.Name(), Path: filepath.Join(at, e.Name())})
		}
		if told := filepath.Join(k.dir(s.Jail.ID, sid), processesFile); exists(told) {
			files = append(files, images.File{Name: processesFile, Path: told})
		}
	}
	meta, err := json.MarshalIndent(parcel{parcelFormat, traveller(*s)}, "", "\t")
	if err != nil {
		return err
	}
	return images.Export(&interruptible{ctx, w}, meta, files)
}

// traveller is a snapshot without what is only true of this host.
func traveller(s Snapshot) Snapshot {
	s.Parent, s.Flattened = "", nil
	s.Jail.Lower, s.Jail.Sealed, s.Jail.Body, s.Jail.Boot = nil, nil, "", ""
	return s
}

// oneLayer returns a layer that shows all that a snapshot stands on above its root
// filesystem, until drop is called.
func (k *Keeper) oneLayer(ctx context.Context, s *Snapshot) (layer string, drop func(), err error) {
	if full, err := mostlyFull(s.Jail.Sealed); full || err != nil {
		return s.Jail.Sealed[0], func() {}, err
	}
	if k.cfg.Layers == nil {
		return "", nil, fault.Cannot("snapshot.Export", "snapshots cannot be exported here", "run the daemon as root, with a backend that can snapshot")
	}
	at, done, err := k.scratch(k.dir(s.Jail.ID, s.ID), "export")
	if err != nil {
		return "", nil, err
	}
	drop = func() {
		os.RemoveAll(at)
		done()
	}
	layer = filepath.Join(at, layerFile)
	if err := k.cfg.Layers.Flatten(ctx, s.Jail.Sealed, layer); err != nil {
		drop()
		return "", nil, err
	}
	return layer, drop, nil
}

// mostlyFull reports whether layers are one that is not mainly holes, which would
// take longer to read than to copy what is between them.
func mostlyFull(layers []string) (bool, error) {
	if len(layers) != 1 {
		return false, nil
	}
	fi, err := os.Stat(layers[0])
	if err != nil {
		return false, err
	}
	n, err := blocks(layers[0])
	return n > fi.Size()/4, err
}

// interruptible is a Writer that fails when the context ends.
type interruptible struct {
	ctx context.Context
	w   io.Writer
}

func (i *interruptible) Write(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, errors.Join(err, context.Cause(i.ctx))
	}
	return i.w.Write(p)
}
