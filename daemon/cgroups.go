package daemon

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/host/claims"
	"glasshouse/internal/atomicfile"
	"glasshouse/jail"
)

var cgroupName = regexp.MustCompile(`^glasshouse-[0-9a-z]{4,32}$`)

// nameCgroups returns the name of the parent cgroup of this data directory's jails. The name
// is stored in the directory. It is random and not derived from the path: two containers on
// one host may use the same path, and each daemon kills jails in its cgroup that it has no
// record of. A directory from an older version keeps the derived name.
func (d *Daemon) nameCgroups() (string, error) {
	file := filepath.Join(d.Config.Data, "cgroup")
	data, err := os.ReadFile(file)
	if err == nil {
		name := strings.TrimSpace(string(data))
		if !cgroupName.MatchString(name) {
			return "", &fault.Error{Op: "daemon.Open", On: file, Kind: fault.Invalid, Err: errors.New("the file does not contain a valid cgroup name"),
				Remedy: "stop this directory's jails, remove the file, and start again"}
		}
		return name, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the name of the parent cgroup: %w", err)
	}
	name := drawCgroups()
	if _, err := os.Stat(filepath.Join(d.Config.Data, "house")); err == nil {
		sum := sha256.Sum256([]byte(d.Config.Data))
		name = "glasshouse-" + hex.EncodeToString(sum[:4])
	}
	return name, atomicfile.Write(file, []byte(name+"\n"), 0o600)
}

func drawCgroups() string { return "glasshouse-" + strings.ToLower(rand.Text()[:12]) }

// claimHost creates the cgroup and locks it against daemons on copies of this data directory,
// which the directory's own lock does not cover. The record of the cgroup holds the daemon's
// claims on host-wide IDs. On close, the cgroup is removed if it has no jails.
func (d *Daemon) claimHost(ctx context.Context) error {
	tree, err := cgroup.New(d.cgroups)
	if errors.Is(err, fault.Unsupported) {
		return nil // jails have no cgroups on this host, so no other daemon can conflict
	}
	if err != nil {
		return fmt.Errorf("create the parent cgroup %s: %w", d.cgroups, err)
	}
	d.claims, err = claims.Open(ctx, claims.Config{
		Tree: tree, Name: d.cgroups, Data: d.Config.Data,
		FirstID: d.Config.FirstID, Transit: d.Config.Network.transit,
	})
	conflict, ok := errors.AsType[*fault.Error](err)
	if ok && conflict.Kind == fault.Conflict && conflict.Remedy == "" {
		return &fault.Error{Op: "daemon.Open", On: d.Config.Data, Kind: fault.Conflict,
			Err:    fmt.Errorf("another daemon on this host uses a copy of this data directory, and each would manage the other's jails: %w", conflict.Err),
			Remedy: fmt.Sprintf("stop the other daemon; or, if no jail of this directory runs, write another name, such as %s, to %s", drawCgroups(), filepath.Join(d.Config.Data, "cgroup"))}
	}
	if err != nil {
		return fmt.Errorf("lock the cgroup and its claims on the host: %w", err)
	}
	d.onClose(d.claims.Close)
	return nil
}

// hostIDs adapts the daemon's claims to jail.HostIDs.
type hostIDs struct{ *claims.Claims }

func (h hostIDs) Keep(ctx context.Context, used []jail.IDRange) ([]jail.IDRange, error) {
	ranges := make([]claims.Range, len(used))
	for i, r := range used {
		ranges[i] = claims.Range(r)
	}
	got, err := h.Claims.Keep(ctx, ranges)
	kept := make([]jail.IDRange, len(got))
	for i, r := range got {
		kept[i] = jail.IDRange(r)
	}
	return kept, err
}

func (h hostIDs) More(ctx context.Context) (jail.IDRange, error) {
	r, err := h.Claims.More(ctx)
	return jail.IDRange(r), err
}
