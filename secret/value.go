package secret

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// A Value is a secret in the clear. However it is printed, logged or encoded,
// also as a part of something else, only its name is told. Copies of a Value
// share its bytes. Whoever is given one zeroes it when done.
type Value struct {
	name string
	// A function, because fmt prints the fields of a stranger's struct without
	// asking them, and follows a pointer that it has no verb for.
	bytes func() *[]byte
}

// NewValue returns a Value that owns b: it is zeroed with it.
func NewValue(name string, b []byte) Value {
	return Value{name, func() *[]byte { return &b }}
}

// Name returns what the secret is called.
func (v Value) Name() string { return v.name }

// Bytes returns the value itself, until Zero.
func (v Value) Bytes() []byte {
	if v.bytes == nil {
		return nil
	}
	return *v.bytes()
}

// Zero overwrites the value. It may be called again.
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

// MarshalBinary refuses: what is encoded that way is meant to be decoded.
func (v Value) MarshalBinary() ([]byte, error) {
	return nil, errors.New("secret " + v.name + " is not to be encoded")
}
