package autonomy

import (
	"log/slog"

	"glasshouse/policy"
)

// or is v, or the default if v is nothing or less.
func or[T ~int | ~int64](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

func logOr(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// levelOr is a level that there is: what is none is the lowest.
func levelOr(l policy.Level) policy.Level {
	if !l.Valid() {
		return policy.Guided
	}
	return l
}
