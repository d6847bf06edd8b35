package control

import "time"

// HurryBack shortens how long a client stays away from an init that was parked
// by somebody else.
func HurryBack() { awayAtFirst = time.Millisecond }
