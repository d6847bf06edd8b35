package e2b

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// info returns the description of a sandbox for programs in it. Commands get it as environment variables.
// Programs that are not started as commands read it from files.
func (b *Sandbox) info() map[string]string {
	return map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": b.ID, "E2B_TEMPLATE_ID": b.Template}
}

// infoDir is the directory of these files.
const infoDir = "run/e2b"

// writeInfo writes the files. The files in a fork or a snapshot describe another sandbox.
func (s *Sandboxes) writeInfo(ctx context.Context, b Sandbox) (err error) {
	var archive bytes.Buffer
	w, now := tar.NewWriter(&archive), time.Now()
	for name, value := range b.info() {
		h := tar.Header{Typeflag: tar.TypeReg, Name: infoDir + "/." + name, Size: int64(len(value)), Mode: 0o644, ModTime: now}
		if err := w.WriteHeader(&h); err != nil {
			return fmt.Errorf("add the header of %s to the archive: %w", h.Name, err)
		}
		if _, err := w.Write([]byte(value)); err != nil {
			return fmt.Errorf("add %s to the archive: %w", h.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("complete the archive: %w", err)
	}
	f, err := s.cfg.Jails.Files(ctx, b.Jail)
	if err != nil {
		return fmt.Errorf("open the files of jail %s: %w", b.Jail, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Untar(ctx, "/", &archive)
}
