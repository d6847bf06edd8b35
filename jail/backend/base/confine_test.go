package base

import "testing"

func TestCapabilitiesHaveReasons(t *testing.T) {
	for _, c := range capabilities {
		if c.why == "" {
			t.Errorf("%s has no reason", c.name)
		}
	}
}
