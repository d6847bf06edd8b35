package base

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"glasshouse/fault"
	"glasshouse/host/secretfs"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"
	"glasshouse/jail"
)

// CheckPaths validates the names from which all paths on the host are derived, because files are
// removed at those paths.
func CheckPaths(p jail.Plan, op string) error {
	if !id.Valid('j', string(p.ID)) {
		return fault.Newf(fault.Invalid, op, string(p.ID), "invalid jail id")
	}
	if !filepath.IsAbs(p.Dir) || filepath.Clean(p.Dir) != p.Dir || p.Dir == "/" {
		return fault.Newf(fault.Invalid, op, string(p.ID), "%q is not a valid jail directory", p.Dir)
	}
	return nil
}

// CheckIDs validates the range of ids of a jail.
func CheckIDs(p jail.Plan, op string) error {
	if p.IDs.First == 0 || p.IDs.Count < 2 || p.IDs.First+p.IDs.Count < p.IDs.First {
		return fault.Newf(fault.Invalid, op, string(p.ID), "invalid range of ids: %+v", p.IDs)
	}
	return nil
}

// RemoveSealedVolume removes the writable volume of a jail if it has become the topmost sealed layer,
// and a crash prevented its removal.
func RemoveSealedVolume(p jail.Plan, volume string) error {
	if len(p.Sealed) == 0 {
		return nil
	}
	own, err := os.Stat(volume)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	top, err := os.Stat(p.Sealed[0])
	if err != nil || !os.SameFile(own, top) {
		return err
	}
	return os.Remove(volume)
}

// WriteRecord writes the record of a jail's init for a later daemon.
func WriteRecord(name string, record any) error {
	b, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode the record %s: %w", name, err)
	}
	return atomicfile.Write(name, b, 0o600)
}

// ReadRecord reads what WriteRecord wrote.
func ReadRecord(name string, record any) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, record); err != nil {
		return fmt.Errorf("%s is corrupt: %w", name, err)
	}
	return nil
}

// SealControl takes ownership of the directory of init's socket from the jail. Otherwise the jail
// could replace the socket, for example by a link to a socket of the host, fill the disk of the
// host, or connect to its init. Its processes can still receive a descriptor.
func SealControl(socket, op string) error {
	if err := os.Lchown(filepath.Dir(socket), 0, 0); err != nil {
		return fmt.Errorf("take ownership of the directory of init's socket: %w", err)
	}
	st, err := os.Lstat(socket)
	if err != nil {
		return fmt.Errorf("take ownership of init's socket: %w", err)
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fault.Newf(fault.Denied, op, socket, "init did not create a socket")
	}
	return errors.Join(os.Lchown(socket, 0, 0), os.Chmod(socket, 0o600))
}

// HostFiles returns secret files with their owners on the host.
func (i *Init) HostFiles(op string, files []jail.SecretFile) ([]secretfs.File, error) {
	shown := make([]secretfs.File, len(files))
	for n, f := range files {
		uid, gid, err := f.Host(i.plan.IDs)
		if err != nil {
			return nil, fault.New(fault.Invalid, op, f.Name(), err)
		}
		shown[n] = secretfs.File{Name: f.Name(), Data: f.Bytes(), UID: uid, GID: gid}
	}
	return shown, nil
}

// Secrets calls do with the mount namespace of the jail, in which the host mounts its secrets. No
// process of the jail may mount, not even init. The memory of init is part of snapshots and never
// contains a secret.
func (i *Init) Secrets(do func(secretfs.Namespace) error) error {
	conn, err := i.pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("use the pidfd of init: %w", err)
	}
	first := i.plan.IDs.First
	controlErr := conn.Control(func(fd uintptr) {
		err = do(secretfs.Namespace{PID: i.pid, PIDFD: int(fd), UID: first, GID: first})
	})
	if controlErr != nil {
		return controlErr
	}
	return err
}
