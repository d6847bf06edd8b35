package govern

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/id"
)

// Sweep removes certificate authorities that no jail and no snapshot uses. used returns the
// Specs of all jails and snapshots. Sweep lists the files before it calls used, so an
// authority created in the meantime is kept.
func (k *Engine) Sweep(ctx context.Context, used func(context.Context) ([]json.RawMessage, error)) error {
	files, err := os.ReadDir(k.cfg.Dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(files) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	specs, err := used(ctx)
	if err != nil {
		return fmt.Errorf("list the policies in use: %w", err)
	}
	kept := map[id.CA]bool{}
	for _, raw := range specs {
		s, err := parse(raw)
		if err != nil {
			return err // its authority is unknown, so nothing is removed
		}
		kept[s.CA] = true
	}
	var errs []error
	for _, f := range files {
		name, isKey := strings.CutSuffix(f.Name(), ".pem")
		if isKey && id.Valid('c', name) && !kept[id.CA(name)] {
			errs = append(errs, os.Remove(filepath.Join(k.cfg.Dir, f.Name())))
		}
	}
	return errors.Join(errs...)
}
