// Package nix contains the Nix flake that builds root filesystems for jails.
//
// The flake follows a release of nixpkgs and has no lock file, so two hosts may get different
// patch releases. A root filesystem is identified by the digest of its tree, not by the flake.
package nix

import "embed"

// Flake is the flake's directory.
//
//go:embed flake.nix
var Flake embed.FS
