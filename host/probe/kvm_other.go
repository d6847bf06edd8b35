//go:build !amd64

package probe

import (
	"errors"
	"time"
)

// bootGuest is not implemented on this architecture.
func bootGuest(int, time.Duration) error { return errors.ErrUnsupported }
