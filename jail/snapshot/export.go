package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/snapshot/images"
)

// An archiveRecord is the metadata.json of an exported snapshot.
type archiveRecord struct {
	Format   int      `json:"format"`
	Snapshot Snapshot `json:"snapshot"` // without host-specific fields
}

// archiveFormat is increased with each incompatible change of the format.
const archiveFormat = 1

// memoryDir is the directory of the memory images in an archive.
const memoryDir = "memory"

// Export writes a snapshot to w, for Import on this or another host: its record, its layers
// merged into one, and its memory images. The root filesystem is not included. After an error,
// Import rejects the data written so far.
func (ss *snapshots) Export(ctx context.Context, sid id.Snapshot, w io.Writer) error {
	s, done, err := ss.acquire(sid)
	if err != nil {
		return err
	}
	defer done()
	layer, drop, err := ss.oneLayer(ctx, s)
	if err != nil {
		return err
	}
	defer drop()
	files := []images.File{{Name: layerFile, Path: layer}}
	if s.Memory {
		at, cool, err := ss.warm(ctx, s)
		if err != nil {
			return fmt.Errorf("load the memory of snapshot %s: %w", sid, err)
		}
		defer cool()
		entries, err := os.ReadDir(at)
		if err != nil {
			return fmt.Errorf("list the memory images of snapshot %s: %w", sid, err)
		}
		for _, e := range entries {
			files = append(files, images.File{Name: memoryDir + "/" + e.Name(), Path: filepath.Join(at, e.Name())})
		}
		if list := filepath.Join(ss.dir(s.Jail.ID, sid), processesFile); exists(list) {
			files = append(files, images.File{Name: processesFile, Path: list})
		}
	}
	meta, err := json.MarshalIndent(archiveRecord{archiveFormat, portable(*s)}, "", "\t")
	if err != nil {
		return fmt.Errorf("encode the record of snapshot %s: %w", sid, err)
	}
	return images.Export(&ctxWriter{ctx, w}, meta, files)
}

// A backgroundUse is a use of a snapshot that does not prevent its deletion, which waits for its end.
type backgroundUse struct {
	cancel context.CancelCauseFunc // called by the deletion
	ended  chan struct{}
}

// useInBackground adds a use of a snapshot.
func (ss *snapshots) useInBackground(sid id.Snapshot, cancel context.CancelCauseFunc) *backgroundUse {
	x := &backgroundUse{cancel, make(chan struct{})}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.background[sid] = append(ss.background[sid], x)
	return x
}

// endUse removes a use that has ended.
func (ss *snapshots) endUse(sid id.Snapshot, x *backgroundUse) {
	defer close(x.ended)
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.background[sid] = slices.DeleteFunc(ss.background[sid], func(other *backgroundUse) bool { return other == x })
	if len(ss.background[sid]) == 0 {
		delete(ss.background, sid)
	}
}

// ExportInBackground is like Export, but does not prevent the deletion of the snapshot, which ends
// it with fault.NotFound.
func (ss *snapshots) ExportInBackground(ctx context.Context, sid id.Snapshot, w io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x := ss.useInBackground(sid, cancel)
	// A deletion does not wait for w, which may be slow.
	in, out := io.Pipe()
	defer context.AfterFunc(ctx, func() { in.CloseWithError(context.Cause(ctx)) })()
	go func() {
		defer ss.endUse(sid, x)
		out.CloseWithError(ss.Export(ctx, sid, out))
	}()
	_, err := io.Copy(w, in)
	if err != nil {
		err = cmp.Or(context.Cause(ctx), err)
		in.CloseWithError(err)
	}
	<-x.ended
	return err
}

// endBackground ends the uses of a snapshot in the background.
func (ss *snapshots) endBackground(ctx context.Context, sid id.Snapshot) error {
	ss.mu.Lock()
	list := slices.Clone(ss.background[sid])
	ss.mu.Unlock()
	for _, x := range list {
		x.cancel(fault.Newf(fault.NotFound, "snapshot.Export", string(sid), "the snapshot is being deleted"))
		select {
		case <-x.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// portable returns s without host-specific fields.
func portable(s Snapshot) Snapshot {
	s.Parent, s.Flattened = "", nil
	s.Jail.Lower, s.Jail.Sealed, s.Jail.InstanceID, s.Jail.Boot = nil, nil, "", ""
	return s
}

// oneLayer returns a single layer with the contents of all layers of a snapshot above its root
// filesystem. The layer exists until drop is called.
func (ss *snapshots) oneLayer(ctx context.Context, s *Snapshot) (layer string, drop func(), err error) {
	if full, err := isDense(s.Jail.Sealed); full || err != nil {
		return s.Jail.Sealed[0], func() {}, err
	}
	layers := ss.cfg.Layers[s.Jail.Spec.Backend]
	if layers == nil {
		return "", nil, fault.Cannot("snapshot.Export", "snapshots cannot be exported on this host", "run the daemon as root, with a backend that can snapshot")
	}
	at, done, err := ss.tempDir(ss.dir(s.Jail.ID, s.ID), "export")
	if err != nil {
		return "", nil, err
	}
	drop = func() {
		os.RemoveAll(at)
		done()
	}
	layer = filepath.Join(at, layerFile)
	if err := layers.Flatten(ctx, s.Jail.Sealed, layer); err != nil {
		drop()
		return "", nil, err
	}
	return layer, drop, nil
}

// isDense reports whether layers is a single layer that does not consist mainly of holes.
// Reading holes would take longer than copying the data between them.
func isDense(layers []string) (bool, error) {
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

// ctxWriter is a Writer that fails when the context ends.
type ctxWriter struct {
	ctx context.Context
	w   io.Writer
}

func (i *ctxWriter) Write(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, errors.Join(err, context.Cause(i.ctx))
	}
	return i.w.Write(p)
}
