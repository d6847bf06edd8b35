package rootfs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"glasshouse/fault"
)

// baseDirs are the mount points every jail needs, whatever its tree.
var baseDirs = []struct {
	name string
	mode fs.FileMode
}{
	{"proc", 0o555}, {"sys", 0o555}, {"dev", 0o755}, {"run", 0o755}, {"run/secrets", 0o755}, {"etc", 0o755},
	{"root", 0o700}, {"tmp", 0o777 | fs.ModeSticky}, {"var", 0o755}, {"var/tmp", 0o777 | fs.ModeSticky},
	{".glasshouse", 0o755},
}

// Base fills dir with the mount points that every jail needs, to be the lowest
// of its layers, so that any tree will do and none is written to. It may be
// called again; what is there is left alone.
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

// hostName is a host name by RFC 1123, so that nothing else gets into files.
var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$`)

// Identity fills dir with what tells one jail from another, to be the topmost of
// its read-only layers: its name, and resolv as its resolv.conf. What was there
// from an earlier start is replaced.
func Identity(dir, hostname, resolv string) error {
	if !hostName.MatchString(hostname) {
		return fault.Fieldf("rootfs.Identity", "hostname", "%q is not a host name: letters, digits, hyphens and dots, 64 at most", hostname)
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

// writeFile writes a file that everybody in the jail may read, whatever the umask.
func writeFile(file, text string) error {
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Chmod(file, 0o644)
}
