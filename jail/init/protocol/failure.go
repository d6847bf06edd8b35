package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// Failure is the wire format of an error.
type Failure struct {
	Kind    fault.Kind `json:"kind,omitempty"`
	Op      string     `json:"op,omitempty"`
	On      string     `json:"on,omitempty"`
	Field   string     `json:"field,omitempty"`
	Remedy  string     `json:"remedy,omitempty"`
	Message string     `json:"message,omitempty"`
}

// maxText bounds each text of a Failure, because it is shown in logs and terminals.
const maxText = 4096

// NewFailure converts err to its wire format.
func NewFailure(err error) Failure {
	f := Failure{Kind: fault.KindOf(err), Field: fault.FieldOf(err), Remedy: fault.RemedyOf(err), Message: err.Error()}
	e, ok := err.(*fault.Error)
	if !ok {
		f.Message = fault.Detail(err)
		return f
	}
	f.Op, f.On, f.Message = e.Op, e.On, ""
	if e.Err != nil {
		f.Message = e.Err.Error()
	}
	return f
}

// Err returns the error that f describes.
func (f Failure) Err() error {
	e := &fault.Error{Op: plain(f.Op), On: plain(f.On), Kind: known(f.Kind), Field: plain(f.Field), Remedy: plain(f.Remedy)}
	if f.Message != "" {
		e.Err = errors.New(plain(f.Message))
	}
	return e
}

func decodeFailure(payload []byte) error {
	var f Failure
	if err := json.Unmarshal(payload, &f); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return f.Err()
}

// known returns k if it is a known kind, otherwise "".
func known(k fault.Kind) fault.Kind {
	switch k {
	case fault.Invalid, fault.Unauthenticated, fault.Denied, fault.NotFound, fault.Conflict, fault.TooLarge,
		fault.Mismatch, fault.Exhausted, fault.NoSpace, fault.Unsupported, fault.Unavailable, fault.Timeout:
		return k
	}
	return ""
}

// plain truncates untrusted text and replaces characters that could control a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if text.Hidden(r) {
			return ' '
		}
		return r
	}, text.Clip(s, maxText))
}
