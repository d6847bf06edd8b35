// Package nix holds the Nix flake that makes root filesystems for jails.
package nix

import "embed"

// Flake is the flake's directory.
//
//go:embed flake.nix
var Flake embed.FS
