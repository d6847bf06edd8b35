package overlay

import "testing"

// ByString makes Mount behave as on kernels before 6.8 until the test ends.
func ByString(t *testing.T) {
	kept := addsLayers
	addsLayers = func() bool { return false }
	t.Cleanup(func() { addsLayers = kept })
}
