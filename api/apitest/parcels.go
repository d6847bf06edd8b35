package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/snapshot"
)

// Export implements api.Snapshots. An archive consists of the record and padding.
func (k *Snapshots) Export(ctx context.Context, sid id.Snapshot, w io.Writer) error {
	s, err := k.Get(ctx, sid)
	if err == nil {
		err = k.fail("export")
	}
	if err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(s); err != nil {
		return err
	}
	if _, err := w.Write(bytes.Repeat([]byte("\n"), 256<<10)); err != nil {
		return err
	}
	return k.fail("end of export")
}

// Import implements api.Snapshots.
func (k *Snapshots) Import(_ context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Snapshot, error) {
	var s snapshot.Snapshot
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return s, fault.New(fault.Invalid, "snapshot.Import", "", err)
	}
	if s.Host.CPU != "one" && s.Memory && !o.Force && !o.FilesOnly {
		return s, fault.Cannot("snapshot.Import", "its processes ran on a different CPU", "import only the files with --files-only")
	}
	s.ID, s.Reason, s.Created = id.NewSnapshot(), snapshot.Imported, time.Now()
	s.Memory = s.Memory && !o.FilesOnly
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, s)
	return s, nil
}
