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
	// secretsDir is where the host shows a jail its secrets, on a filesystem of
	// the name secretsSource. Init has no part in it but to leave it out of what
	// it tells of files.
	secretsDir    = "/run/secrets"
	secretsSource = "glasshouse-secrets"
)

// hiding knows which filesystems are those of secrets, by their device.
type hiding struct {
	mu sync.Mutex
	// +checklocks:mu
	at uint64 // the device at secretsDir when known was begun
	// +checklocks:mu
	known map[uint64]bool
}

// on reports whether a device is one. The list of mounts is read anew when another
// is mounted at secretsDir; the jail may have moved the directory above one that
// was there before.
func (h *hiding) on(dev uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	var st unix.Stat_t
	if unix.Lstat(secretsDir, &st) != nil {
		st.Dev = 0
	}
	if st.Dev != h.at || h.known == nil {
		h.at, h.known = st.Dev, map[uint64]bool{}
	}
	hidden, ok := h.known[dev]
	if !ok {
		hidden = holdsSecrets(dev)
		h.known[dev] = hidden
	}
	return hidden
}

// forget is called when the jail may be another, whose devices have other numbers.
func (h *hiding) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known = nil
}

// holdsSecrets looks for a device in the list of mounts. If there is no telling, it
// is taken to hold some.
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
