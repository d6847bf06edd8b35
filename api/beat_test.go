package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
)

// An idle stream sends comments as heartbeats, and later events still arrive.
func TestIdleEventStreamSendsHeartbeats(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := eventlog.New(eventlog.Config{Dir: filepath.Join(dir, "events"), Jail: "j-aaaaaaaaaaaa"})
		if err := l.Open(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := httptest.NewRecorder()
		done := make(chan error)
		go func() {
			done <- (&recordWriter{w: w, rc: http.NewResponseController(w)}).follow(ctx, l, eventlog.Query{})
		}()
		for range 2 {
			time.Sleep(3*heartbeat + time.Second)
			l.Append(&event.Event{Type: event.File, TS: time.Now().UnixMilli(), PID: 1, Op: event.OpDelete, Path: "/x", FD: -1})
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Errorf("follow: %v", err)
		}
		got := strings.Split(w.Body.String(), "\n\n")
		var kinds []string
		for _, f := range got {
			name, _, _ := strings.Cut(f, "\n")
			kinds = append(kinds, name)
		}
		// The first comment confirms that the stream is open.
		want := ": : : : id: 1 : : : id: 2 event: end "
		if text := strings.Join(kinds, " "); text != want {
			t.Errorf("got stream %q, want %q", text, want)
		}
	})
}
