package gvisor_test

import (
	"testing"

	"glasshouse/event"
)

func TestAShellThatWritesAFileIsSeen(t *testing.T) {
	h := newHouse(t)
	g := h.guest(t)
	w, k := h.watch(t, g, event.Selection{})
	out, code := g.run(t, "/bin/bash", "-c", "cd /tmp; echo 'hello there' > note; cat note; exit 7")
	t.Log(out, code)
	drain(t, w)
	t.Log(lines(k.all(func(e *event.Event) bool { return e.Type != event.Syscall })))
	t.Log(w.Status())
	t.Log(lines(k.all(func(e *event.Event) bool { return true }))[:6000])
}
