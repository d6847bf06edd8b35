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

// userName is what the tools that make users take for a name.
var userName = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,30}$`)

// user is a tree with one user more, whose id is 1000 and who comes before others of
// that id. The files that they have in common are the same files, so that it takes
// little room and is in the host's page cache once.
func (p *Provider) user(ctx context.Context, r jail.Rootfs) (Layer, error) {
	name := r.User
	r.User = ""
	if !userName.MatchString(name) {
		return Layer{}, fault.Fieldf(opUser, "rootfs.user", "%.40q is not the name of a user", name)
	}
	base, err := p.Resolve(ctx, r)
	if err != nil {
		return Layer{}, err
	}
	if there, err := hasUser(base.Dir, name); there || err != nil {
		return base, err
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

// hasUser reports whether a tree has a user of that name.
func hasUser(tree, name string) (bool, error) {
	if tree == "" {
		return false, nil // the host's
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
		return Image{}, fault.Newf(fault.Unavailable, opUser, digest, "the image was pruned meanwhile")
	}
	return img, nil
}

// linkTree makes the directories of one tree in another, which is empty, and gives its
// files second names there. Nobody writes to the files of either.
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
			return unix.Linkat(unix.AT_FDCWD, path, unix.AT_FDCWD, at, 0) // of a link it is the link
		}
		if rel != "." {
			if err := os.Mkdir(at, 0o700); err != nil {
				return err
			}
		}
		return sameDir(path, at)
	})
}

// sameDir gives one directory the owner, mode and times of another.
func sameDir(from, to string) error {
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return err
	}
	if err := os.Lchown(to, int(st.Uid), int(st.Gid)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return unix.Chmod(to, st.Mode&0o7777)
}

// addUser writes the user into the files that know of users, and makes a home. All is
// done within the tree, wherever its own links lead.
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
		return nil // the tree's ids are those of who reads it
	}
	return root.Lchown(home, userID, userID)
}

// addLine puts a line before all whose id is as large and in place of one of the same
// name: of two users with one id the first gives it its name. The file becomes another
// one, and the tree's that it was linked from stays.
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
	if err := root.Chmod(file, mode); err != nil { // whatever the umask
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
