package autonomy

import (
	"log/slog"

	"glasshouse/policy"
)

// positiveOr returns v if it is positive, and the default otherwise.
func positiveOr[T ~int | ~int64](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

func logOrDiscard(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// validLevel returns l if it is valid, and the lowest level otherwise.
func validLevel(l policy.Level) policy.Level {
	if !l.Valid() {
		return policy.Guided
	}
	return l
}
