package overlay

import (
	"context"
	"fmt"

	"glasshouse/fault"
)

// Flatten merges the upper layers, topmost first, into dst, an empty directory, as one
// equivalent layer. It keeps whiteouts, because deleted files may exist below. If Flatten
// fails the caller must remove the partial content of dst.
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
