package bwrap

import (
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

// hostTree reports whether the jail's root filesystem is the host's own tree:
// its programs, read-only, and as much of /etc as they need. Nothing else of the
// host is there, no home directory, no /var.
func hostTree(p jail.Plan) bool { return len(p.Lower) == 0 }

// hostEtc are the parts of the host's /etc that programs need to work. Nothing
// on the list is secret; nobody's password, key or right to anything is in it.
var hostEtc = []string{
	"alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "environment.d",
	"ethertypes", "fonts", "gai.conf", "host.conf", "inputrc", "issue", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime",
	"login.defs", "lsb-release", "magic", "magic.mime", "mime.types", "networks", "nsswitch.conf", "openssl", "os-release", "perl", "pki/ca-trust", "pki/tls/certs", "pki/tls/cert.pem",
	"profile", "protocols", "python3", "rpc", "services", "shells", "skel", "ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "static", "terminfo", "timezone", "xattr.conf",
}

// makeHostTree fills dir with a layer for the host's own tree: the links of its
// root directory, places for its programs, and a copy of what of its /etc a jail
// may see. It is a copy because a layer's files can be changed by the jail, in
// its own layer, only where they are root's there.
func makeHostTree(dir string) error {
	if err := emptyDir(dir); err != nil {
		return err
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		link, err := os.Readlink("/" + name)
		if err != nil {
			continue // a directory, which is shown, or not there
		}
		if err := os.Symlink(link, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"etc", "home", "opt", "srv", "var", "var/tmp", "var/lib", "var/cache", "mnt"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(dir, "var/tmp"), 0o777|fs.ModeSticky); err != nil {
		return err
	}
	for _, name := range hostEtc {
		if err := copyTree("/etc/"+name, filepath.Join(dir, "etc", name)); err != nil {
			return fmt.Errorf("copy /etc/%s: %w", name, err)
		}
	}
	return writeUsers(filepath.Join(dir, "etc"))
}

// writeUsers makes up the users of a jail: root, nobody, and the one who runs
// the daemon, whose name programs may look for.
func writeUsers(etc string) error {
	passwd := "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
	group := "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"
	if u, err := user.Current(); err == nil && u.Uid != "0" && plainName(u.Username) {
		passwd += fmt.Sprintf("%s:x:%s:%s::/home/%s:/bin/sh\n", u.Username, u.Uid, u.Gid, u.Username)
		group += fmt.Sprintf("%s:x:%s:\n", u.Username, u.Gid)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(etc, "passwd"), []byte(passwd), 0o644),
		os.WriteFile(filepath.Join(etc, "group"), []byte(group), 0o644))
}

func plainName(s string) bool {
	_, err := strconv.Atoi(s)
	return s != "" && err != nil && !strings.ContainsAny(s, ":/\n")
}

// Bounds of what is copied: nothing in the list above comes near them.
const (
	maxHostFile  = 16 << 20
	maxHostFiles = 5000
)

// copyTree copies the files, directories and links of src that everybody on the
// host may read. What is missing, and what only some may read, is left out.
func copyTree(src, dst string) error {
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	n := 0
	return filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return skipUnreadable(err)
		}
		if n++; n > maxHostFiles {
			return fmt.Errorf("more than %d files", maxHostFiles)
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, rel)
		info, err := d.Info()
		if err != nil {
			return skipUnreadable(err)
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			return copyLink(path, to)
		case info.Mode().Perm()&0o004 == 0:
			if info.IsDir() {
				return fs.SkipDir
			}
			return nil
		case info.IsDir():
			return os.MkdirAll(to, 0o755)
		case info.Mode().IsRegular() && info.Size() <= maxHostFile:
			return skipUnreadable(copyFile(path, to, 0o644|info.Mode()&0o111))
		}
		return nil
	})
}

func copyLink(path, to string) error {
	link, err := os.Readlink(path)
	if err != nil {
		return skipUnreadable(err)
	}
	return os.Symlink(link, to)
}

func skipUnreadable(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// copyFile copies a regular file to a new one.
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
