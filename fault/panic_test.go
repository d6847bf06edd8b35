package fault_test

import (
	"errors"
	"strings"
	"testing"

	"glasshouse/fault"
)

type record struct{ n int }

func dereference(r *record) int { return r.n }

func TestCatchReturnsPanicsAsErrors(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		name string
		f    func() error
		want string // part of the panic's text; "" is no panic
		err  error
	}{
		{"success", func() error { return nil }, "", nil},
		{"error", func() error { return broken }, "", broken},
		{"panic", func() error { panic("no such thing") }, "no such thing", nil},
		{"nil pointer", func() error { dereference(nil); return nil }, "dereference (panic_test.go:", nil},
		{"panic after an error", func() error { defer panic("later"); return broken }, "later", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := fault.Catch(tt.f)()
			var p *fault.Panic
			if got, want := errors.As(err, &p), tt.want != ""; got != want {
				t.Fatalf("error %v: is a panic = %v, want %v", err, got, want)
			}
			if p == nil {
				if !errors.Is(err, tt.err) {
					t.Errorf("error = %v, want %v", err, tt.err)
				}
				return
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %q, want one that contains %q", err, tt.want)
			}
			if !strings.Contains(string(p.Stack), "panic_test.go") {
				t.Errorf("the stack does not name this file:\n%s", p.Stack)
			}
			if kind := fault.KindOf(err); kind != "" {
				t.Errorf("kind = %q, want none: a panic is an internal error", kind)
			}
		})
	}
}

func TestRecoverRunsBeforeEarlierDefers(t *testing.T) {
	cleaned := errors.New("cleaned up")
	f := func() (err error) {
		defer func() { err = errors.Join(err, cleaned) }()
		defer fault.Recover(&err)
		panic("x")
	}
	err := f()
	var p *fault.Panic
	if !errors.As(err, &p) || !errors.Is(err, cleaned) {
		t.Errorf("error = %v, want the panic and %q", err, cleaned)
	}
}
