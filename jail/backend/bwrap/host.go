package bwrap

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"glasshouse/jail"
)

// hostTree reports whether the jail's root filesystem is the host tree: the programs of the
// host, read-only, and the necessary parts of /etc. It contains no home directories and no
// /var.
func hostTree(p jail.Plan) bool { return len(p.Lower) == 0 }

// hostEtc lists the parts of the host's /etc that programs need. None of them is secret: they
// contain no passwords, keys or credentials.
var hostEtc = []string{
	"alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "environment.d",
	"ethertypes", "fonts", "gai.conf", "host.conf", "inputrc", "issue", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime",
	"login.defs", "lsb-release", "magic", "magic.mime", "mime.types", "networks", "nsswitch.conf", "openssl", "os-release", "perl", "pki/ca-trust", "pki/tls/certs", "pki/tls/cert.pem",
	"profile", "protocols", "python3", "rpc", "services", "shells", "skel", "ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "static", "terminfo", "timezone", "xattr.conf",
}

// hostRoot lists the root directories of a host tree in addition to those that rootfs.Base
// creates.
var hostRoot = []string{"home", "opt", "srv", "var", "var/tmp", "var/lib", "var/cache", "mnt"}

// A hostFile is a file, directory or symbolic link of the host that is copied.
type hostFile struct {
	path string // on the host, and in the jail
	link string // target of a symbolic link
	info fs.FileInfo
}

// makeHostTree returns a layer with the host tree: the links of its root directory, mount
// points for its programs, and a copy of the readable parts of /etc. The layer is created once
// and shared. The directory name contains a digest of its content, so that jails keep their
// layer when the host changes.
func makeHostTree(prefix string) (string, error) {
	files, err := hostFiles()
	if err != nil {
		return "", fmt.Errorf("create host tree: %w", err)
	}
	passwd, group := hostUsers()
	dir := prefix + "-" + digest(files, passwd, group)
	if exists(dir) {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(filepath.Dir(prefix), ".host-")
	if err != nil {
		return "", fmt.Errorf("create host tree: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := fillHostTree(tmp, files, passwd, group); err != nil {
		return "", fmt.Errorf("create host tree: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil && !exists(dir) { // otherwise another process has created it
		return "", fmt.Errorf("create host tree: %w", err)
	}
	return dir, nil
}

// hostFiles lists the files to copy.
func hostFiles() ([]hostFile, error) {
	var files []hostFile
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if link, err := os.Readlink("/" + name); err == nil { // otherwise a directory, which is bind-mounted, or missing
			files = append(files, hostFile{path: "/" + name, link: link})
		}
	}
	for _, name := range hostEtc {
		more, err := readable("/etc/" + name)
		if err != nil {
			return nil, fmt.Errorf("list the files of /etc/%s: %w", name, err)
		}
		files = append(files, more...)
	}
	return files, nil
}

// Limits of the copy, far above the needs of the list above.
const (
	maxHostFile  = 16 << 20
	maxHostFiles = 5000
)

// readable lists the world-readable files, directories and links at and below root.
func readable(root string) ([]hostFile, error) {
	var files []hostFile
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return skipUnreadable(err)
		}
		info, err := d.Info()
		if err != nil {
			return skipUnreadable(err)
		}
		f := hostFile{path: path, info: info}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if f.link, err = os.Readlink(path); err != nil {
				return skipUnreadable(err)
			}
		case info.IsDir() && info.Mode().Perm()&0o005 != 0o005:
			return fs.SkipDir
		case info.IsDir():
		case !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 || info.Size() > maxHostFile:
			return nil
		}
		files = append(files, f)
		if len(files) > maxHostFiles {
			return fmt.Errorf("%s contains more than %d files", root, maxHostFiles)
		}
		return nil
	})
	return files, err
}

func skipUnreadable(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// digest returns a digest of the content of a tree.
func digest(files []hostFile, more ...string) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %q", f.path, f.link)
		if f.info != nil {
			fmt.Fprintf(h, " %v %d %d", f.info.Mode(), f.info.Size(), f.info.ModTime().UnixNano())
		}
	}
	fmt.Fprintf(h, "%q", more)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func fillHostTree(dir string, files []hostFile, passwd, group string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for _, name := range hostRoot {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(dir, "var/tmp"), 0o777|fs.ModeSticky); err != nil {
		return err
	}
	for _, f := range files {
		if err := f.copy(filepath.Join(dir, f.path)); err != nil {
			return err
		}
	}
	etc := filepath.Join(dir, "etc")
	return errors.Join(
		os.MkdirAll(etc, 0o755),
		os.WriteFile(filepath.Join(etc, "passwd"), []byte(passwd), 0o644),
		os.WriteFile(filepath.Join(etc, "group"), []byte(group), 0o644))
}

func (f hostFile) copy(to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	switch {
	case f.link != "":
		return os.Symlink(f.link, to)
	case f.info.IsDir():
		return os.MkdirAll(to, 0o755)
	}
	return skipUnreadable(copyFile(f.path, to, 0o644|f.info.Mode().Perm()&0o111))
}

// hostUsers returns the passwd and group files of a jail: root, nobody, and the user that runs
// the daemon, whose name programs may look up.
func hostUsers() (passwd, group string) {
	passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
	group = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"
	if u, err := user.Current(); err == nil && u.Uid != "0" && plainName(u.Username) {
		passwd += fmt.Sprintf("%s:x:%s:%s::/home/%s:/bin/sh\n", u.Username, u.Uid, u.Gid, u.Username)
		group += fmt.Sprintf("%s:x:%s:\n", u.Username, u.Gid)
	}
	return passwd, group
}

func plainName(s string) bool {
	_, err := strconv.Atoi(s)
	return s != "" && err != nil && !strings.ContainsAny(s, ":/\n")
}

// copyFile copies a regular file to a new file.
func copyFile(src, dst string, mode fs.FileMode) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return errors.Join(out.Chmod(mode.Perm()), out.Close())
}
