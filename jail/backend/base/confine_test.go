package base

import "testing"

func TestCapabilitiesHaveReasons(t *testing.T) {
	for _, c := range append(capabilities, initial...) {
		if c.why == "" {
			t.Errorf("%s has no reason", c.name)
		}
	}
}
