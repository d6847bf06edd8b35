package daemon

import (
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
	"glasshouse/internal/atomicfile"
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

// takeCgroups makes that cgroup, holds it against daemons on copies of this data
// directory, which the directory's own lock knows nothing of, and removes it at the
// end if no jail is left in it.
func (d *Daemon) takeCgroups() error {
	tree, err := cgroup.New(d.cgroups)
	if errors.Is(err, fault.Unsupported) {
		return nil // nor can there be one to hold a jail
	}
	if err != nil {
		return err
	}
	held, err := tree.Hold()
	if errors.Is(err, fault.Conflict) {
		return &fault.Error{Op: "daemon.Open", On: d.Config.Data, Kind: fault.Conflict,
			Err:    fmt.Errorf("another daemon on this host holds the cgroup %s, by a copy of this data directory or one at its path in another container: each would take the other's jails for its own", d.cgroups),
			Remedy: fmt.Sprintf("stop it; or, if no jail of this directory runs, write another name, such as %s, into %s", drawCgroups(), filepath.Join(d.Config.Data, "cgroup"))}
	}
	if err != nil {
		return err
	}
	d.onClose(func() error {
		err := tree.Remove()
		if errors.Is(err, fault.Conflict) {
			err = nil
		}
		return errors.Join(err, held.Close())
	})
	return nil
}
