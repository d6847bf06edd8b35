package cli

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
)

// TestExecEndsWhenSignalCannotBeForwarded uses a daemon whose jail does not respond when a
// SIGTERM is forwarded.
func TestExecEndsWhenSignalCannotBeForwarded(t *testing.T) {
	const jail, exec = "j-aaaaaaaaaaaa", "x-aaaaaaaaaaaa"
	started := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /jails/{id}/exec", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Write([]byte("event: " + wire.EventStart + "\ndata: {\"id\":\"" + exec + "\",\"argv\":[\"sleep\"]}\n\n"))
		w.(http.Flusher).Flush()
		close(started)
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /jails/{id}/execs/{exec}/signal", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusGatewayTimeout)
		w.Write([]byte(`{"type":"about:blank","title":"Timeout","status":504,"detail":"the jail's init did not answer"}`))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	var stdout, stderr strings.Builder
	c := &command{env: Env{Stdout: &stdout, Stderr: &stderr, Getenv: os.Getenv}}
	cl, err := client.New(client.Options{Addr: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.stream(ctx, cl, id.Jail(jail), wire.ExecRequest{Argv: []string{"sleep"}}) }()
	<-started
	// exec listens for signals shortly after the stream has started. Until then, this channel
	// receives them, so that they do not end the test. It also receives a signal that the kernel
	// delivers after exec has ended, because it stays registered.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGTERM)
	for waiting := true; waiting; {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case err = <-done:
			waiting = false
		case <-time.After(100 * time.Millisecond):
		}
	}
	if code, ok := errors.AsType[exitCode](err); !ok || code != exitDaemon {
		t.Errorf("exec ended with %v, want exit code %d", err, exitDaemon)
	}
	if ctx.Err() != nil {
		t.Error("exec continued although the signal was not forwarded")
	}
	for _, want := range []string{"SIGTERM did not reach the command", "glasshouse jail stop " + jail} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("stderr = %q, want it to contain %q", stderr.String(), want)
		}
	}
}
