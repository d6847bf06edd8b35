package fault_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"glasshouse/fault"
)

func TestKindIsFoundAtAnyDepth(t *testing.T) {
	err := fault.New(fault.NotFound, "jail.Get", "j-1", fs.ErrNotExist)
	err = fmt.Errorf("serve: %w", err)

	if !errors.Is(err, fault.NotFound) {
		t.Errorf("errors.Is(%v, NotFound) = false", err)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("errors.Is(%v, fs.ErrNotExist) = false", err)
	}
	if got, want := err.Error(), "serve: jail.Get: j-1: not found: file does not exist"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if got := fault.KindOf(err); got != fault.NotFound {
		t.Errorf("KindOf = %q, want not found", got)
	}
}

func TestUnknownErrorsAreInternal(t *testing.T) {
	if got := fault.KindOf(errors.New("boom")); got != "" {
		t.Errorf("KindOf(plain error) = %q, want none", got)
	}
}

func TestFieldAndRemedyComeFromTheOutermost(t *testing.T) {
	inner := fault.Cannot("probe", "no CRIU", "run make up")
	err := fmt.Errorf("a: %w", errors.Join(errors.New("other"), inner))
	if got, want := fault.RemedyOf(err), "run make up"; got != want {
		t.Errorf("RemedyOf = %q, want %q", got, want)
	}
	err = fault.Fieldf("jail.Create", "limits.memory_mb", "9000 exceeds the maximum of 8192")
	if got, want := fault.FieldOf(err), "limits.memory_mb"; got != want {
		t.Errorf("FieldOf = %q, want %q", got, want)
	}
	if got := fault.FieldOf(errors.New("x")) + fault.RemedyOf(nil); got != "" {
		t.Errorf("FieldOf, RemedyOf of nothing = %q, want empty", got)
	}
}

func TestEachKindHasItsOwnStatus(t *testing.T) {
	seen := map[int]fault.Kind{fault.Kind("").Status(): "the empty kind"}
	for _, k := range []fault.Kind{
		fault.Invalid, fault.Unauthenticated, fault.Denied, fault.NotFound, fault.Conflict, fault.TooLarge,
		fault.Mismatch, fault.Exhausted, fault.Unsupported, fault.Unavailable, fault.Timeout, fault.NoSpace,
	} {
		if other, taken := seen[k.Status()]; taken {
			t.Errorf("%s and %s have the status %d", k, other, k.Status())
		}
		seen[k.Status()] = k
	}
	if got := fault.Kind("").Status(); got != 500 {
		t.Errorf("the empty kind has the status %d, want 500", got)
	}
}

func TestDetailOmitsWhatUsersGetSeparately(t *testing.T) {
	cause := errors.New("it runs")
	f := fault.New(fault.Conflict, "jail.Start", "j-1", cause)
	for want, err := range map[string]error{
		"it runs":                      cause,
		"j-1: it runs":                 f,
		"resume the run: j-1: it runs": fmt.Errorf("resume the run: %w", f),
		"a: b: j-1: it runs":           fmt.Errorf("a: %w", fault.New(fault.Unavailable, "run.Resume", "", fmt.Errorf("b: %w", f))),
		"first\nj-1: it runs":          errors.Join(errors.New("first"), f),
		"api.Get: not found":           &fault.Error{Op: "api.Get", Kind: fault.NotFound},
		"jail.Start: j-1: conflict: it runs, and more": fmt.Errorf("%w, and more", f),
	} {
		if got := fault.Detail(err); got != want {
			t.Errorf("Detail(%v) = %q, want %q", err, got, want)
		}
	}
}
