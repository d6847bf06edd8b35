package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/host/enter"
)

// enteredHost is the hidden flag of serve for a daemon that comes from a container.
const enteredHost = "entered-host"

// hostPrograms are the programs that a daemon executes, except mmdebstrap, which needs the rest of
// Debian.
var hostPrograms = []string{
	"runc", "crun", "runsc", "bwrap", "criu", "nft", "ip", "tar", "mkfs.ext4", "e2fsck",
	"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore",
}

// enterHost executes serve with the arguments of this process on the host of this container, in the
// namespaces of a process.
func enterHost(pid int, data, config string) error {
	for field, path := range map[string]string{"data": data, "config": config} {
		if path != "" && !filepath.IsAbs(path) {
			return fault.Fieldf("serve", field, "with --host, %q must be an absolute path", path)
		}
	}
	settings := ""
	if config != "" {
		settings = filepath.Dir(config)
	}
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool { return a == "--host" || strings.HasPrefix(a, "--host=") })
	return enter.Host(enter.Config{PID: pid, Data: data, Settings: settings, Args: append(args, "--"+enteredHost), Env: os.Environ(), Programs: hostPrograms})
}

// leaveContainer makes this process independent of the container that it comes from.
func leaveContainer(data string) error {
	sum := sha256.Sum256([]byte(data))
	return enter.Leave(hex.EncodeToString(sum[:6]))
}
