// Package id defines the typed identifiers of Glasshouse.
package id

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
)

type (
	Jail string // "j-…": a jail
	Exec string // "x-…": a command run in a jail

	Snapshot string // "s-…": a snapshot of a jail

	Approval string // "a-…": an approval request

	Token string // "t-…": a bearer token; not its secret

	Login   string // "b-…": a browser login
	Browser string // "u-…": a browser that receives push notifications

	Grant string // "g-…": a grant of a secret

	Call string // "k-…": one call of a capability

	CA string // "c-…": a certificate authority for TLS interception

	Run        string // "r-…": a run in a session
	Checkpoint string // "p-…": a checkpoint of a run
	Schedule   string // "h-…": a schedule of runs
	Message    string // "m-…": a message of a session
	Request    string // "q-…": a request from one sibling to another
	LLMCall    string // "l-…": one call of a language model
)

// NewJail and the similar functions return new identifiers with 60 random bits. They consist of
// lower-case characters that are safe in file names, host names and cgroup names.
func NewJail() Jail         { return Jail("j-" + random()) }
func NewExec() Exec         { return Exec("x-" + random()) }
func NewSnapshot() Snapshot { return Snapshot("s-" + random()) }
func NewApproval() Approval { return Approval("a-" + random()) }
func NewToken() Token       { return Token("t-" + random()) }
func NewLogin() Login       { return Login("b-" + random()) }
func NewBrowser() Browser   { return Browser("u-" + random()) }
func NewGrant() Grant       { return Grant("g-" + random()) }
func NewCall() Call         { return Call("k-" + random()) }
func NewCA() CA             { return CA("c-" + random()) }

func NewRun() Run               { return Run("r-" + random()) }
func NewCheckpoint() Checkpoint { return Checkpoint("p-" + random()) }
func NewSchedule() Schedule     { return Schedule("h-" + random()) }
func NewMessage() Message       { return Message("m-" + random()) }
func NewRequest() Request       { return Request("q-" + random()) }
func NewLLMCall() LLMCall       { return LLMCall("l-" + random()) }

// NewSession returns the name of a session for which the caller gave none.
func NewSession() string { return "sess-" + random() }

// ValidSession reports whether s is a valid session name.
func ValidSession(s string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-"
	return s != "" && len(s) <= 128 && strings.Trim(s, letters) == ""
}

var encoding = base32.NewEncoding("abcdefghijkmnpqrstuvwxyz23456789").WithPadding(base32.NoPadding)

func random() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return encoding.EncodeToString(b[:])[:12]
}

// Valid reports whether s has the format of an identifier with the given one-letter prefix. Check
// untrusted strings with it before using them as file names.
func Valid(prefix byte, s string) bool {
	if len(s) != 14 || s[0] != prefix || s[1] != '-' {
		return false
	}
	return strings.Trim(s[2:], "abcdefghijkmnpqrstuvwxyz23456789") == ""
}
