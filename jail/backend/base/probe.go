package base

import (
	"errors"
	"sync"

	"glasshouse/fault"
)

// A ProbeResult caches the result of a probe: success or fault.Unsupported. Other errors are
// not cached, so the probe runs again.
type ProbeResult struct {
	mu sync.Mutex
	// +checklocks:mu
	known bool
	// +checklocks:mu
	err error
}

// Of returns the result of probe, which it calls if that is not known.
func (v *ProbeResult) Of(probe func() error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known {
		return v.err
	}
	err := probe()
	if err == nil || errors.Is(err, fault.Unsupported) {
		v.known, v.err = true, err
	}
	return err
}
