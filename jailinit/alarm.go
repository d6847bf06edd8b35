package jailinit

import "time"

// An alarm calls a function once, later. Its time can be made to stand still.
// It is not safe for concurrent use.
type alarm struct {
	call  func()
	timer *time.Timer
	at    time.Time
	left  time.Duration // while held
	held  bool
}

// set replaces what was set before.
func (a *alarm) set(in time.Duration, call func()) {
	a.stop()
	a.call, a.left = call, in
	if !a.held {
		a.run()
	}
}

func (a *alarm) run() {
	a.at = time.Now().Add(a.left)
	a.timer = time.AfterFunc(a.left, a.call)
}

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.call, a.timer = nil, nil
}

// hold stops the alarm's time.
func (a *alarm) hold() {
	if a.held {
		return
	}
	a.held = true
	if a.timer == nil {
		return
	}
	if !a.timer.Stop() { // it rings already
		a.call = nil
	}
	a.left, a.timer = max(time.Until(a.at), 0), nil
}

// goOn lets time run again.
func (a *alarm) goOn() {
	if a.held = false; a.call != nil {
		a.run()
	}
}
