package jailinit

import "time"

// A pausableTimer calls a function once after a time that can be paused. It is not safe for
// concurrent use.
type pausableTimer struct {
	call      func()
	timer     *time.Timer
	at        time.Time
	remaining time.Duration // while paused
	paused    bool
}

// set starts the timer, in place of an earlier call.
func (a *pausableTimer) set(after time.Duration, call func()) {
	a.stop()
	a.call, a.remaining = call, after
	if !a.paused {
		a.run()
	}
}

func (a *pausableTimer) run() {
	a.at = time.Now().Add(a.remaining)
	a.timer = time.AfterFunc(a.remaining, a.call)
}

func (a *pausableTimer) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.call, a.timer = nil, nil
}

// pause stops the time.
func (a *pausableTimer) pause() {
	if a.paused {
		return
	}
	a.paused = true
	if a.timer == nil {
		return
	}
	if !a.timer.Stop() { // the call has begun
		a.call = nil
	}
	a.remaining, a.timer = max(time.Until(a.at), 0), nil
}

// resume continues the time.
func (a *pausableTimer) resume() {
	a.paused = false
	if a.call != nil {
		a.run()
	}
}
