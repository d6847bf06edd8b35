// Package clients holds the libraries with which programs in a sandbox call other
// capabilities: one file for each language, nothing but its standard library.
package clients

import "embed"

// Files are the libraries. In a sandbox they lie in Dir, without the directories.
//
//go:embed python/glasshouse_call.py node/glasshouse-call.mjs go/glasshousecall.go
var Files embed.FS

// Paths in a sandbox of the client libraries and of the socket for calls.
const (
	Dir    = "/usr/share/glasshouse"
	Socket = "/run/glasshouse/call.sock"
)
