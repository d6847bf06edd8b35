package rootfs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"glasshouse/fault"
)

// baseDirs are the mount points that every jail needs.
var baseDirs = []struct {
	name string
	mode fs.FileMode
}{
	{"proc", 0o555}, {"sys", 0o555}, {"dev", 0o755}, {"run", 0o755}, {"run/secrets", 0o755}, {"etc", 0o755},
	{"root", 0o700}, {"tmp", 0o777 | fs.ModeSticky}, {"var", 0o755}, {"var/tmp", 0o777 | fs.ModeSticky},
	{".glasshouse", 0o755},
}

// Base creates the mount points that every jail needs in dir, which becomes the lowest layer of
// the jail. Therefore trees need not contain them and are not modified. Base keeps existing
// directories.
func Base(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make base layer: %w", err)
	}
	for _, d := range baseDirs {
		if err := makeDir(filepath.Join(dir, d.name), d.mode); err != nil {
			return fmt.Errorf("make base layer: %w", err)
		}
	}
	return nil
}

// hostName matches host names (RFC 1123, section 2.1). Other text must not get into files.
var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$`)

// Identity writes the files that are specific to a jail to dir, which becomes the topmost
// read-only layer of the jail: its host name, and resolv as its resolv.conf. It replaces files
// of an earlier start.
func Identity(dir, hostname, resolv string) error {
	if !hostName.MatchString(hostname) {
		return fault.Fieldf("rootfs.Identity", "hostname", "%q is not a host name: want at most 64 letters, digits, hyphens and dots", hostname)
	}
	etc := filepath.Join(dir, "etc")
	for _, d := range []string{dir, etc, filepath.Join(dir, ".glasshouse")} {
		if err := makeDir(d, 0o755); err != nil {
			return fmt.Errorf("make identity layer: %w", err)
		}
	}
	for _, f := range []struct{ name, text string }{
		{"hostname", hostname + "\n"},
		{"hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + hostname + "\n"},
		{"resolv.conf", resolv},
	} {
		if err := writeFile(filepath.Join(etc, f.name), f.text); err != nil {
			return fmt.Errorf("make identity layer: %w", err)
		}
	}
	return nil
}

// writeFile writes a file that all users can read, independently of the umask.
func writeFile(file, text string) error {
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Chmod(file, 0o644)
}
