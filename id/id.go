// Package id holds the typed identifiers of Glasshouse.
package id

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
)

type (
	Jail string // "j-…": a jail
	Exec string // "x-…": a command run in a jail

	Snapshot string // "s-…": a jail as it was at one moment

	Approval string // "a-…": a question that a person is to answer

	Token string // "t-…": a bearer token's name in lists; not its secret

	Grant string // "g-…": leave to use one secret

	Call string // "k-…": one call of a capability

	CA string // "c-…": a certificate authority that jails trust
)

// NewJail and its like return fresh identifiers: 60 random bits, lower case,
// safe as file names, host names and cgroup names.
func NewJail() Jail         { return Jail("j-" + random()) }
func NewExec() Exec         { return Exec("x-" + random()) }
func NewSnapshot() Snapshot { return Snapshot("s-" + random()) }
func NewApproval() Approval { return Approval("a-" + random()) }
func NewToken() Token       { return Token("t-" + random()) }
func NewGrant() Grant       { return Grant("g-" + random()) }
func NewCall() Call         { return Call("k-" + random()) }
func NewCA() CA             { return CA("c-" + random()) }

var encoding = base32.NewEncoding("abcdefghijkmnpqrstuvwxyz23456789").WithPadding(base32.NoPadding)

func random() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return encoding.EncodeToString(b[:])[:12]
}

// Valid reports whether s has the shape of an identifier with the given
// one-letter prefix, so that strangers' strings never become file names.
func Valid(prefix byte, s string) bool {
	if len(s) != 14 || s[0] != prefix || s[1] != '-' {
		return false
	}
	return strings.Trim(s[2:], "abcdefghijkmnpqrstuvwxyz23456789") == ""
}
