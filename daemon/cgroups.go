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

// nameCgroups returns the name of the cgroup for this data directory's jails, which is
// kept in the directory. It is drawn, not made from the path: in two containers of one
// host two daemons have the same path, and each would end what it finds under its name
// and has no record of. A directory from before has the name its jails were made under.
func (d *Daemon) nameCgroups() (string, error) {
	file := filepath.Join(d.Config.Data, "cgroup")
	data, err := os.ReadFile(file)
	if err == nil {
		name := strings.TrimSpace(string(data))
		if !cgroupName.MatchString(name) {
			return "", &fault.Error{Op: "daemon.Open", On: file, Kind: fault.Invalid, Err: errors.New("it has not the name of a cgroup in it"),
				Remedy: "stop this directory's jails, remove the file, and start again"}
		}
		return name, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	name := drawCgroups()
	if _, err := os.Stat(filepath.Join(d.Config.Data, "house")); err == nil {
		sum := sha256.Sum256([]byte(d.Config.Data))
		name = "glasshouse-" + hex.EncodeToString(sum[:4])
	}
	return name, atomicfile.Write(file, []byte(name+"\n"), 0o600)
}

func drawCgroups() string { return "glasshouse-" + strings.ToLower(rand.Text()[:12]) }

// claimHost makes that cgroup and holds it, which keeps daemons on copies of this data
// directory away; the directory's own lock does not. What is unique on the host is
// claimed in the cgroup's record. At the end the cgroup is removed if no jail is left.
func (d *Daemon) claimHost(ctx context.Context) error {
	tree, err := cgroup.New(d.cgroups)
	if errors.Is(err, fault.Unsupported) {
		return nil // no jail can have a cgroup here, and no other daemon can
	}
	if err != nil {
		return err
	}
	d.claims, err = claims.Open(ctx, claims.Config{
		Tree: tree, Name: d.cgroups, Data: d.Config.Data,
		FirstID: d.Config.FirstID, Transit: d.Config.Network.transit,
	})
	conflict, ok := errors.AsType[*fault.Error](err)
	if ok && conflict.Kind == fault.Conflict && conflict.Remedy == "" {
		return &fault.Error{Op: "daemon.Open", On: d.Config.Data, Kind: fault.Conflict,
			Err:    fmt.Errorf("another daemon on this host runs on a copy of this data directory, and each would take the other's jails for its own: %w", conflict.Err),
			Remedy: fmt.Sprintf("stop it; or, if no jail of this directory runs, write another name, such as %s, into %s", drawCgroups(), filepath.Join(d.Config.Data, "cgroup"))}
	}
	if err != nil {
		return err
	}
	d.onClose(d.claims.Close)
	return nil
}

// hostIDs are the daemon's claims as the jails want them.
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
