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

// bindDatabase refuses a database that keeps the records of another data
// directory. A daemon believes of jails without a record that they were half
// made, and of records without a jail that the jail is gone: with the wrong
// database it would do away with both.
func (d *Daemon) bindDatabase(ctx context.Context) error {
	file := filepath.Join(d.Config.Data, "house")
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ours := strings.TrimSpace(string(data))
	theirs, err := d.store.House(ctx, "")
	if err != nil {
		return err
	}
	switch {
	case ours != "" && ours == theirs:
		return nil
	case theirs != "":
		return d.wrongDatabase(fmt.Errorf("the database keeps the records of another data directory: its house is %s", theirs),
			fmt.Sprintf("give the same --data and --db as before; only if no other directory uses this database, write %s to %s", theirs, file))
	case ours != "" && d.hasJails():
		return d.wrongDatabase(errors.New("the records of this data directory's jails are in another database"),
			fmt.Sprintf("give the same --db as before, or remove %s with the jails in it", filepath.Join(d.Config.Data, "jails")))
	case ours == "":
		// The directory first: half done, it is done again.
		ours = strings.ToLower(rand.Text())
		if err := atomicfile.Write(file, []byte(ours+"\n"), 0o600); err != nil {
			return err
		}
	}
	_, err = d.store.House(ctx, ours)
	return err
}

func (d *Daemon) wrongDatabase(err error, remedy string) error {
	return &fault.Error{Op: "daemon.Open", On: d.Config.Data, Kind: fault.Conflict, Err: err, Remedy: remedy}
}

func (d *Daemon) hasJails() bool {
	jails, err := os.ReadDir(filepath.Join(d.Config.Data, "jails"))
	return err == nil && len(jails) > 0
}
