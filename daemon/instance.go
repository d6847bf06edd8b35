package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
)

// bindDatabase rejects a database that belongs to another data directory. The daemon deletes
// jails without a record and records without a jail, so a wrong database would lose both.
func (d *Daemon) bindDatabase(ctx context.Context) error {
	ours, err := readInstanceID(d.Config.Data)
	if err != nil {
		return err
	}
	theirs, err := d.store.InstanceID(ctx, "")
	if err != nil {
		return fmt.Errorf("read the instance ID of the database: %w", err)
	}
	switch {
	case ours != "" && ours == theirs:
		return nil
	case theirs != "":
		return wrongDatabase(d.Config.Data, fmt.Errorf("the database belongs to another data directory: its id is %s", theirs),
			fmt.Sprintf("use the same --data and --db as before; only if no other directory uses this database, write %s to %s", theirs, instanceFile(d.Config.Data)))
	case ours != "" && hasJails(d.Config.Data):
		return wrongDatabase(d.Config.Data, errors.New("the records of this data directory's jails are in another database"),
			fmt.Sprintf("use the same --db as before, or remove %s with the jails in it", filepath.Join(d.Config.Data, "jails")))
	case ours == "":
		// The file is written first, so that an interrupted first start is repeated.
		ours, err = createInstanceID(d.Config.Data)
		if err != nil {
			return err
		}
	}
	_, err = d.store.InstanceID(ctx, ours)
	return err
}

func instanceFile(data string) string { return filepath.Join(data, "house") }

// readInstanceID returns the instance ID of a data directory, or "".
func readInstanceID(data string) (string, error) {
	text, err := os.ReadFile(instanceFile(data))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the instance ID of the data directory: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func createInstanceID(data string) (string, error) {
	id := strings.ToLower(rand.Text())
	if err := atomicfile.Write(instanceFile(data), []byte(id+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write the instance ID of the data directory: %w", err)
	}
	return id, nil
}

func wrongDatabase(dir string, err error, remedy string) error {
	return &fault.Error{Op: "daemon.Open", On: dir, Kind: fault.Conflict, Err: err, Remedy: remedy}
}

func hasJails(dir string) bool {
	jails, err := os.ReadDir(filepath.Join(dir, "jails"))
	return err == nil && len(jails) > 0
}
