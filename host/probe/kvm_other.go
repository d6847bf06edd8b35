//go:build !amd64

package probe

import (
	"errors"
	"time"
)

// bootGuest starts no guest, because its code is for amd64 only.
func bootGuest(int, time.Duration) error { return errors.ErrUnsupported }
