package overlay

import (
	"context"
	"fmt"

	"glasshouse/fault"
)

// Flatten writes the upper layers, topmost first, to dst, an empty directory, as
// one layer that shows the same over whatever lies below them. What a layer
// deletes stays deleted: it may be below. If Flatten fails dst holds a part, and
// is the caller's to remove.
//
// The layers must not be in use. Their files may be hostile, as in CopyLayer.
func Flatten(ctx context.Context, layers []string, dst string) error {
	if len(layers) == 0 {
		return fault.Newf(fault.Invalid, "overlay.Flatten", dst, "there are no layers")
	}
	m, err := newMerger(ctx, layers, dst)
	if err != nil {
		return fmt.Errorf("flatten layers: %w", err)
	}
	defer m.close()
	if err := m.run(); err != nil {
		return fmt.Errorf("flatten layers into %s: %w", dst, err)
	}
	return nil
}
