package control

import "time"

// HurryBack shortens how long a client stays away from an init that was parked
// by somebody else.
func HurryBack() { awayAtFirst = time.Millisecond }

// HurryAnswers shortens how long an init may say nothing, until undo is called.
func HurryAnswers(d time.Duration) (undo func()) {
	answer, park := answerWithin, parkWithin
	answerWithin, parkWithin = d, d
	return func() { answerWithin, parkWithin = answer, park }
}
