// Package envd serves the inside of sandboxes to clients of the E2B protocol: their
// commands, files and ports.
//
// What a sandbox is, whether it runs and who may have it are for Boxes to say; what is
// done in its jail goes through the jail's own init, like everything else, and is
// watched and governed like everything else. Nothing is kept here but the watchers that
// clients ask for what has changed: commands are found again by what init knows of them.
package envd

// Version is the version of the protocol that is served.
const Version = "0.6.4"

// Port is the port of a sandbox at which its commands and files are served. All others
// are ports of servers in the jail.
const Port = 49983
