package rootfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail"
)

const (
	opUser = "rootfs.user"
	userID = 1000
)

// userName matches the user names that useradd(8) accepts.
var userName = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,30}$`)

// user returns a tree with an additional user. The user has the id 1000 and precedes other users
// with that id in /etc/passwd. The unchanged files are hard links to those of the base tree, so
// they need no disk space and share the host's page cache.
func (p *Provider) user(ctx context.Context, r jail.Rootfs) (Layer, error) {
	name := r.User
	r.User = ""
	if !userName.MatchString(name) {
		return Layer{}, fault.Fieldf(opUser, "rootfs.user", "%.40q is not a valid user name", name)
	}
	base, err := p.Resolve(ctx, r)
	if err != nil {
		return Layer{}, err
	}
	there, err := hasUser(base.Dir, name)
	if err != nil {
		return Layer{}, fmt.Errorf("look up the user %s: %w", name, err)
	}
	if there {
		return base, nil
	}
	if !strings.HasPrefix(base.Digest, "sha256:") {
		return Layer{}, fault.Fieldf(opUser, "rootfs.user", "cannot add a user: %s is a host directory", base.Source)
	}
	key := "user:" + name + ":" + base.Digest
	digest, err := p.once(ctx, key, func() (string, error) {
		return p.build(ctx, func(tree, _ string) (Image, error) {
			if err := linkTree(base.Dir, tree); err != nil {
				return Image{}, fmt.Errorf("copy %s: %w", base.Source, err)
			}
			if err := addUser(tree, name); err != nil {
				return Image{}, fmt.Errorf("add the user %s: %w", name, err)
			}
			sum := sha256.Sum256([]byte(key))
			img, err := p.image(base.Digest)
			img.Digest = "sha256:" + hex.EncodeToString(sum[:])
			img.Sources, img.Keys = []string{base.Source + ", with the user " + name}, []string{key}
			return img, err
		})
	})
	if err != nil {
		return Layer{}, err
	}
	return p.layer(digest)
}

// hasUser reports whether a tree has a user with that name.
func hasUser(tree, name string) (bool, error) {
	if tree == "" {
		return false, nil // the host's own tree
	}
	root, err := os.OpenRoot(tree)
	if err != nil {
		return false, err
	}
	defer root.Close()
	known, err := root.ReadFile("etc/passwd")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return bytes.HasPrefix(known, []byte(name+":")) || bytes.Contains(known, []byte("\n"+name+":")), err
}

func (p *Provider) image(digest string) (Image, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	img, ok := p.images[digest]
	if !ok {
		return Image{}, fault.Newf(fault.Unavailable, opUser, digest, "the image was pruned concurrently")
	}
	return img, nil
}

// linkTree copies a tree to an empty directory: it creates the directories, and hard links to the
// files. The files of both trees must not be modified in place.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		if !d.IsDir() {
			if err := unix.Linkat(unix.AT_FDCWD, path, unix.AT_FDCWD, at, 0); err != nil { // does not follow a symlink
				return &os.LinkError{Op: "link", Old: path, New: at, Err: err}
			}
			return nil
		}
		if rel != "." {
			if err := os.Mkdir(at, 0o700); err != nil {
				return err
			}
		}
		return sameDir(path, at)
	})
}

// sameDir copies the owner, mode and times of a directory.
func sameDir(from, to string) error {
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return fmt.Errorf("stat %s: %w", from, err)
	}
	if err := os.Lchown(to, int(st.Uid), int(st.Gid)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
		return fmt.Errorf("set the mode of %s: %w", to, err)
	}
	return nil
}

// addUser adds a user to the tree's user database and creates the user's home. Symlinks in the
// tree cannot lead out of it (os.Root).
func addUser(tree, name string) error {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer root.Close()
	shell := "/bin/sh"
	if _, err := root.Stat("bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	home := "home/" + name
	for _, f := range []struct {
		name, line string
		mode       fs.FileMode
	}{
		{"etc/passwd", fmt.Sprintf("%s:x:%d:%d::/%s:%s", name, userID, userID, home, shell), 0o644},
		{"etc/group", fmt.Sprintf("%s:x:%d:", name, userID), 0o644},
		{"etc/shadow", name + ":!:19000:0:99999:7:::", 0o640},
	} {
		if err := addLine(root, f.name, name, f.line, f.mode); err != nil {
			return err
		}
	}
	if err := root.MkdirAll(home, 0o755); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil // an ordinary user's tree: owners are not set
	}
	return root.Lchown(home, userID, userID)
}

// addLine inserts a line before the first line with the same id, because the first entry with an id
// determines its name, and removes lines with the same name. It creates a new file: the old
// one is a hard link to a file of the base tree, which must not change.
func addLine(root *os.Root, file, name, line string, mode fs.FileMode) error {
	old, err := root.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var b bytes.Buffer
	written := false
	for l := range bytes.Lines(old) {
		of, rest, _ := strings.Cut(strings.TrimRight(string(l), "\n"), ":")
		if of == name {
			continue
		}
		_, rest, _ = strings.Cut(rest, ":")
		if number, _, _ := strings.Cut(rest, ":"); !written && number == fmt.Sprint(userID) {
			b.WriteString(line + "\n")
			written = true
		}
		b.Write(l)
	}
	if !written {
		b.WriteString(line + "\n")
	}
	owner, err := root.Lstat(file)
	if err == nil {
		mode = owner.Mode().Perm()
		if err := root.Remove(file); err != nil {
			return err
		}
	} else if err := root.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := root.WriteFile(file, b.Bytes(), mode); err != nil {
		return err
	}
	if err := root.Chmod(file, mode); err != nil { // independently of the umask
		return err
	}
	if owner == nil || os.Geteuid() != 0 {
		return nil
	}
	st, ok := owner.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return root.Lchown(file, int(st.Uid), int(st.Gid))
}
