package jailinit

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// secretsDir is the mount point of the jail's secrets, a filesystem with the source
	// secretsSource. The host mounts it. Init only hides it from file requests.
	secretsDir    = "/run/secrets"
	secretsSource = "glasshouse-secrets"
)

// secretMounts identifies the filesystems with secrets by their device.
type secretMounts struct {
	mu sync.Mutex
	// +checklocks:mu
	device uint64 // the device at secretsDir when known was created
	// +checklocks:mu
	known map[uint64]bool
}

// contains reports whether a device has secrets. The list of mounts is read again when another
// filesystem is mounted at secretsDir, because the jail may have renamed the directory above
// an earlier mount.
func (h *secretMounts) contains(dev uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	var st unix.Stat_t
	if unix.Lstat(secretsDir, &st) != nil {
		st.Dev = 0
	}
	if st.Dev != h.device || h.known == nil {
		h.device, h.known = st.Dev, map[uint64]bool{}
	}
	hidden, ok := h.known[dev]
	if !ok {
		hidden = holdsSecrets(dev)
		h.known[dev] = hidden
	}
	return hidden
}

// reset is called when the jail may have been restored with other device numbers.
func (h *secretMounts) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known = nil
}

// holdsSecrets searches a device in the list of mounts. It returns true if the list cannot be
// read.
func holdsSecrets(dev uint64) bool {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return true
	}
	defer f.Close()
	number := fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		mount, of := strings.Fields(before), strings.Fields(after)
		if len(mount) > 2 && mount[2] == number && len(of) > 1 && of[0] == "tmpfs" && of[1] == secretsSource {
			return true
		}
	}
	return lines.Err() != nil
}
