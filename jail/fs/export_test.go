package jailfs

// WithoutOpenat2 makes r resolve paths as on a kernel without openat2.
func WithoutOpenat2(r *Root) { r.openat2 = false }
