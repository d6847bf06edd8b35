// Package envd implements the in-sandbox API of the E2B protocol: commands, files and ports
// of sandboxes.
//
// Boxes maps a sandbox to its jail, its state and its credentials. All operations in a jail
// go through the jail's init, so that the observers record them and the policy applies to
// them. The package keeps no state except for the watchers that clients poll. It finds
// running commands through init.
package envd

// Version is the version of E2B's envd that the package is compatible with.
const Version = "0.6.4"

// Port is the port of the envd API. Requests to other ports are proxied to servers in the
// jail.
const Port = 49983
