package e2b

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"time"
)

// told is what programs in a sandbox find about it in their environment and, as they may
// be started by others than its commands, in files.
func (b *Sandbox) told() map[string]string {
	return map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": b.ID, "E2B_TEMPLATE_ID": b.Template}
}

// toldDir is where those files are.
const toldDir = "run/e2b"

// tell writes the files. What a fork or a snapshot brings along tells of another sandbox.
func (s *Sandboxes) tell(ctx context.Context, b Sandbox) (err error) {
	var archive bytes.Buffer
	w, now := tar.NewWriter(&archive), time.Now()
	for name, value := range b.told() {
		h := tar.Header{Typeflag: tar.TypeReg, Name: toldDir + "/." + name, Size: int64(len(value)), Mode: 0o644, ModTime: now}
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := w.Write([]byte(value)); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	f, err := s.cfg.Jails.Files(ctx, b.Jail)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Untar(ctx, "/", &archive)
}
