// Package fault is the error vocabulary of Glasshouse: a kind that tells the caller how to react,
// and an error that names the failed operation, its object and the cause.
package fault

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// A Kind answers "what can the caller do?". It is an error itself, so that
// errors.Is(err, fault.NotFound) works at any depth of wrapping.
type Kind string

const (
	Invalid         Kind = "invalid"         // the caller must change the request
	Unauthenticated Kind = "unauthenticated" // the caller must authenticate
	Denied          Kind = "denied"          // who you are may not do this
	NotFound        Kind = "not found"
	Conflict        Kind = "conflict"    // wrong state for this operation
	TooLarge        Kind = "too large"   // send less
	Mismatch        Kind = "mismatch"    // an idempotency key was used again with a different body
	Exhausted       Kind = "exhausted"   // a limit is reached; wait or free something
	Unsupported     Kind = "unsupported" // this host or backend cannot
	Unavailable     Kind = "unavailable" // try again later
	Timeout         Kind = "timeout"     // it took too long and was ended
	NoSpace         Kind = "no space"    // a disk is full; free space on it
)

// statuses has the HTTP status of each kind (RFC 9110; for 507, RFC 4918). All servers use it.
// They are numbers because init, which runs in jails, links this package and not net/http.
var statuses = map[Kind]int{
	Invalid:         400,
	Unauthenticated: 401,
	Denied:          403,
	NotFound:        404,
	Conflict:        409,
	TooLarge:        413,
	Mismatch:        422,
	Exhausted:       429,
	Unsupported:     501,
	Unavailable:     503,
	Timeout:         504,
	NoSpace:         507,
}

// Status returns the HTTP status of k. It is 500 for the empty kind, which is internal.
func (k Kind) Status() int {
	status, ok := statuses[k]
	if !ok {
		return 500
	}
	return status
}

func (k Kind) Error() string { return string(k) }

// Error names the operation that failed, its object, and the cause.
type Error struct {
	Op     string // "jail.Start"
	On     string // "j-3f2a…"
	Kind   Kind   // empty means internal: log it, never show it
	Field  string // the request field at fault, if one is: "limits.memory_mb"
	Remedy string // what the caller can do about it, if more is known than Kind says
	Err    error
}

func (e *Error) Error() string {
	var parts []string
	for _, s := range []string{e.Op, e.On, e.Field, string(e.Kind)} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

func (e *Error) Unwrap() []error {
	var errs []error
	if e.Kind != "" {
		errs = append(errs, e.Kind)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// New returns an error of the given kind that wraps err.
func New(kind Kind, op, on string, err error) error {
	return &Error{Op: op, On: on, Kind: kind, Err: err}
}

// Newf is like New, but formats a message.
func Newf(kind Kind, op, on, format string, args ...any) error {
	return &Error{Op: op, On: on, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Fieldf returns an Invalid error that names the request field at fault.
func Fieldf(op, field, format string, args ...any) error {
	return &Error{Op: op, Kind: Invalid, Field: field, Err: fmt.Errorf(format, args...)}
}

// Cannot returns an Unsupported error with its reason and remedy.
func Cannot(op, reason, remedy string) error {
	return &Error{Op: op, Kind: Unsupported, Remedy: remedy, Err: errors.New(reason)}
}

// KindOf returns the outermost kind in err's tree, or "" if err has none and
// is therefore internal.
func KindOf(err error) Kind {
	if k, ok := errors.AsType[Kind](err); ok {
		return k
	}
	return ""
}

// DiskFull reports whether err, or the message of a program or a database in it, says
// that a disk is full.
func DiskFull(err error) bool {
	if err == nil || errors.Is(err, NoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return err != nil
	}
	// Container runtimes, CRIU and mkfs.ext4 quote strerror(ENOSPC); SQLite quotes
	// sqlite3_errstr(SQLITE_FULL).
	message := strings.ToLower(err.Error())
	return strings.Contains(message, "no space left on device") || strings.Contains(message, "database or disk is full")
}

// Detail returns the text of err without the operation, kind and field of the last Error in it, for
// users, who get these separately or do not need them.
func Detail(err error) string {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Err == nil {
		return err.Error()
	}
	before, found := strings.CutSuffix(err.Error(), e.Error())
	if !found {
		return err.Error()
	}
	if e.On != "" {
		before += e.On + ": "
	}
	return before + Detail(e.Err)
}

// RemedyOf returns the outermost remedy in err's tree, or "".
func RemedyOf(err error) string {
	return first(err, func(e *Error) string { return e.Remedy })
}

// FieldOf returns the outermost request field named in err's tree, or "".
func FieldOf(err error) string {
	return first(err, func(e *Error) string { return e.Field })
}

// first walks err's tree depth first and returns the first non-empty get.
func first(err error, get func(*Error) string) string {
	if err == nil {
		return ""
	}
	if e, ok := err.(*Error); ok {
		if s := get(e); s != "" {
			return s
		}
	}
	switch u := err.(type) {
	case interface{ Unwrap() error }:
		return first(u.Unwrap(), get)
	case interface{ Unwrap() []error }:
		for _, e := range u.Unwrap() {
			if s := first(e, get); s != "" {
				return s
			}
		}
	}
	return ""
}
