package criu

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	remap_file_path "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"google.golang.org/protobuf/proto"
)

// links returns the paths in the jail of the temporary hard links that CRIU created for open
// files that were unlinked but have other names (link-remap). They exist until the end of the
// dump. The caller of a restore must create them again.
func links(dir string) ([]string, error) {
	remapped := map[uint32]bool{}
	err := eachRecord(filepath.Join(dir, "remap-fpath.img"), func(b []byte) error {
		var r remap_file_path.RemapFilePathEntry
		if err := proto.Unmarshal(b, &r); err != nil {
			return err
		}
		if r.GetRemapType() == remap_file_path.RemapType_LINKED {
			remapped[r.GetRemapId()] = true
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(remapped) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	return names, eachRecord(filepath.Join(dir, "files.img"), func(b []byte) error {
		var f fdinfo.FileEntry
		if err := proto.Unmarshal(b, &f); err != nil {
			return err
		}
		if reg := f.GetReg(); reg != nil && remapped[reg.GetId()] {
			names = append(names, filepath.Join("/", reg.GetName()))
		}
		return nil
	})
}
