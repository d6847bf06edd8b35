package secret

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// A Value is a plaintext secret. Printing, logging or encoding it, also as part of another
// value, shows only its name. Copies of a Value share its bytes. The receiver of a Value calls
// Zero when done.
type Value struct {
	name string
	// This is a function because fmt prints unexported fields without calling their Format method,
	// and follows pointers for unknown verbs.
	bytes func() *[]byte
}

// NewValue returns a Value that owns b. Zero overwrites b.
func NewValue(name string, b []byte) Value {
	return Value{name, func() *[]byte { return &b }}
}

// Name returns the name of the secret.
func (v Value) Name() string { return v.name }

// Bytes returns the plaintext, or nil after Zero.
func (v Value) Bytes() []byte {
	if v.bytes == nil {
		return nil
	}
	return *v.bytes()
}

// Zero overwrites the value. It is idempotent.
func (v Value) Zero() {
	if v.bytes != nil {
		b := v.bytes()
		clear(*b)
		*b = nil
	}
}

func (v Value) String() string               { return "[secret " + v.name + "]" }
func (v Value) GoString() string             { return v.String() }
func (v Value) Format(f fmt.State, _ rune)   { io.WriteString(f, v.String()) }
func (v Value) MarshalJSON() ([]byte, error) { return []byte(`"` + v.String() + `"`), nil }
func (v Value) MarshalText() ([]byte, error) { return []byte(v.String()), nil }
func (v Value) LogValue() slog.Value         { return slog.StringValue(v.String()) }

// MarshalBinary returns an error: a placeholder would be decoded as the value.
func (v Value) MarshalBinary() ([]byte, error) {
	return nil, errors.New("secret " + v.name + " cannot be encoded")
}
