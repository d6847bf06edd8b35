// Package nix holds the Nix flake that makes root filesystems for jails.
//
// It follows one release of nixpkgs and has no lock file: nix writes one into
// the copy it builds from, so two hosts may get different patch releases. What
// a jail stands on is named by the digest of the tree, not by the flake.
package nix

import "embed"

// Flake is the flake's directory.
//
//go:embed flake.nix
var Flake embed.FS
