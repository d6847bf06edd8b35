package oci

import "time"

// Trace has b tell f of each step of Create, at its end, from the goroutine that
// took it.
func (b *Backend) Trace(f func(step string, took time.Duration)) { b.trace = f }
