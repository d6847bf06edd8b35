package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/seccomp"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/userns"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/utsns"
	"google.golang.org/protobuf/proto"
)

// An Identity distinguishes processes from others that were restored from the same images.
type Identity struct {
	FirstID  uint32 // the host's user id of root in the jail
	Hostname string
}

// CopyImages creates the directory to with the images in from and replaces the parts that contain
// the identity. Other images become hard links, so both directories must be on one filesystem.
func CopyImages(from, to string, who Identity) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("list the images: %w", err)
	}
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the directory of the copy: %w", err)
	}
	for _, e := range entries {
		name, src, dst := e.Name(), filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		switch {
		case !e.Type().IsRegular() || name == logName:
			// CRIU truncates an existing log (log_init in criu/log.c). Through a hard link it
			// would destroy the log in from.
			continue
		case strings.HasPrefix(name, "userns-"):
			err = edit(src, dst, &userns.UsernsEntry{}, func(m *userns.UsernsEntry) error { return who.setIDs(m) })
		case strings.HasPrefix(name, "utsns-"):
			err = edit(src, dst, &utsns.UtsnsEntry{}, func(m *utsns.UtsnsEntry) error {
				m.Nodename = &who.Hostname
				return nil
			})
		case strings.HasPrefix(name, "seccomp"):
			err = edit(src, dst, &seccomp.SeccompEntry{}, clearNotifyFilters)
		default:
			err = os.Link(src, dst)
		}
		if err != nil {
			return fmt.Errorf("read the images in %s: %w", from, err)
		}
	}
	return nil
}

// setIDs sets the host ids of a user namespace map, which must have one block.
func (who Identity) setIDs(m *userns.UsernsEntry) error {
	if len(m.UidMap) != 1 || len(m.GidMap) != 1 {
		return fmt.Errorf("user namespace has %d uid and %d gid blocks, want one each", len(m.UidMap), len(m.GidMap))
	}
	m.UidMap[0].LowerFirst, m.GidMap[0].LowerFirst = &who.FirstID, &who.FirstID
	return nil
}

// header is the size of the two magic numbers at the start of an image.
const header = 8

// edit copies an image of one record and applies change to the record.
func edit[M proto.Message](src, dst string, m M, change func(M) error) error {
	b, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	if err := record(b, m); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(src), err)
	}
	if err := change(m); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(src), err)
	}
	payload, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(src), err)
	}
	out := append([]byte(nil), b[:header]...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(payload)))
	return os.WriteFile(dst, append(out, payload...), 0o644)
}

// record reads the only record of an image.
func record(b []byte, m proto.Message) error {
	if len(b) < header+4 {
		return errors.New("truncated image")
	}
	n := binary.LittleEndian.Uint32(b[header:])
	if uint64(n) != uint64(len(b)-header-4) {
		return errors.New("image does not contain exactly one record")
	}
	return proto.Unmarshal(b[header+4:], m)
}
