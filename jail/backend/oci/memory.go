package oci

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// memoryFile contains the files of a jail's tmpfs mounts.
const memoryFile = "memory.tar"

// packMemory archives the content of /dev/shm of a frozen jail and the files that it added to
// /dev. Usually there are none, and no archive is created.
func packMemory(pid int, ids jail.IDRange, dir string) (err error) {
	p := &packer{ids: ids, file: filepath.Join(dir, memoryFile), seen: map[inode]string{}}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, at := range []string{"dev", "dev/shm"} {
		// Names and links in these directories are the jail's. Through os.Root they cannot lead to
		// files of the host.
		root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root/%s", pid, at))
		if err != nil {
			return err
		}
		err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
			switch {
			case err != nil || name == ".":
				return err
			case at == "dev" && ours(name):
				if e.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			return p.add(root, name, path.Join(at, name))
		})
		if err := errors.Join(err, root.Close()); err != nil {
			return fmt.Errorf("archive /%s: %w", at, err)
		}
	}
	return nil
}

// ours reports whether a name in /dev exists in every jail.
func ours(name string) bool {
	for _, d := range base.Devices {
		if d.Name == name {
			return true
		}
	}
	for _, link := range base.DeviceLinks {
		if link[0] == name {
			return true
		}
	}
	return slices.Contains(base.DeviceDirs, name)
}

// An inode identifies a file. The directories are on several file systems, which number inodes
// independently.
type inode struct{ dev, ino uint64 }

type packer struct {
	ids  jail.IDRange
	file string
	out  *os.File // nil until the first file is added
	tar  *tar.Writer
	seen map[inode]string // the first name of each file, for hard links
}

func (p *packer) add(root *os.Root, name, as string) error {
	fi, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if fi.Mode().Type()&(fs.ModeSocket|fs.ModeDevice) != 0 {
		return nil // CRIU restores sockets; a jail cannot create devices
	}
	if p.out == nil {
		if p.out, err = os.OpenFile(p.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return fmt.Errorf("create the archive: %w", err)
		}
		p.tar = tar.NewWriter(p.out)
	}
	link := ""
	if fi.Mode().Type() == fs.ModeSymlink {
		if link, err = root.Readlink(name); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(fi, link)
	if err != nil {
		return fmt.Errorf("make the header of %s: %w", as, err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	h.Name, h.Uname, h.Gname, h.Format = as, "", "", tar.FormatPAX
	h.Uid, h.Gid = int(st.Uid-p.ids.First), int(st.Gid-p.ids.First)
	id := inode{st.Dev, st.Ino}
	first, again := p.seen[id]
	if regular := fi.Mode().IsRegular(); regular && st.Nlink > 1 && again {
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		return p.tar.WriteHeader(h)
	} else if regular {
		p.seen[id] = as
	}
	if err := p.tar.WriteHeader(h); err != nil || !fi.Mode().IsRegular() {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(p.tar, f, h.Size)
	return err
}

func (p *packer) close() error {
	if p.out == nil {
		return nil
	}
	return errors.Join(p.tar.Close(), p.out.Close())
}

// unpackMemory restores the tmpfs content of a jail.
func unpackMemory(dir string, ids jail.IDRange, l layout) error {
	f, err := os.Open(filepath.Join(dir, memoryFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	defer f.Close()
	// /dev/shm is not yet mounted below /dev.
	dev, err := os.OpenRoot(l.dev())
	if err != nil {
		return err
	}
	defer dev.Close()
	shm, err := os.OpenRoot(l.shm())
	if err != nil {
		return err
	}
	defer shm.Close()
	var times []func() error // functions that set the times of directories, which change when entries are created
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return setTimes(times)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", memoryFile, err)
		}
		root, name := dev, ""
		if name, err = filepath.Rel("dev/shm", h.Name); err == nil && filepath.IsLocal(name) {
			root = shm
		} else {
			name, err = filepath.Rel("dev", h.Name)
		}
		if err == nil {
			err = unpack(root, name, h, r, ids)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", memoryFile, h.Name, err)
		}
		if h.Typeflag == tar.TypeDir {
			times = append(times, func() error { return root.Chtimes(name, time.Time{}, h.ModTime) })
		}
	}
}

func setTimes(times []func() error) error {
	for _, set := range times {
		if err := set(); err != nil {
			return fmt.Errorf("%s: %w", memoryFile, err)
		}
	}
	return nil
}

func unpack(root *os.Root, name string, h *tar.Header, content io.Reader, ids jail.IDRange) error {
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = root.Mkdir(name, 0o700)
	case tar.TypeReg:
		var f *os.File
		if f, err = root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_, err = io.Copy(f, content)
			err = errors.Join(err, f.Close())
		}
	case tar.TypeLink:
		first, relErr := filepath.Rel("dev/shm", h.Linkname)
		if relErr != nil || !filepath.IsLocal(first) {
			first, relErr = filepath.Rel("dev", h.Linkname)
		}
		return errors.Join(relErr, root.Link(first, name))
	case tar.TypeSymlink:
		err = root.Symlink(h.Linkname, name)
	case tar.TypeFifo:
		err = within0(root, name, func(dir int, base string) error { return unix.Mkfifoat(dir, base, 0o600) })
	}
	if err != nil {
		return fmt.Errorf("create the file: %w", err)
	}
	if err := root.Lchown(name, h.Uid+int(ids.First), h.Gid+int(ids.First)); err != nil {
		return fmt.Errorf("set the owner: %w", err)
	}
	if h.Typeflag == tar.TypeSymlink {
		return nil
	}
	// The mode is set after the owner, because chown(2) clears the set-user-ID bit.
	mode := h.FileInfo().Mode()
	return errors.Join(root.Chmod(name, mode), root.Chtimes(name, time.Time{}, h.ModTime))
}

// within0 runs f on the directory of name below root.
func within0(root *os.Root, name string, f func(dir int, base string) error) error {
	dir, err := root.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(int(dir.Fd()), filepath.Base(name))
}
