package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/api/replay"
)

// answers stores one response in memory. It fails after the deadline of its context.
type answers struct {
	kept      *replay.Response
	abandoned bool
}

func (a *answers) Begin(context.Context, replay.Key, string) (*replay.Response, error) {
	return a.kept, nil
}

func (a *answers) Finish(ctx context.Context, _ replay.Key, answer replay.Response) error {
	if ctx.Err() == nil {
		a.kept = &answer
	}
	return ctx.Err()
}

func (a *answers) Abandon(ctx context.Context, _ replay.Key) error {
	a.abandoned = ctx.Err() == nil
	return ctx.Err()
}

// The first jail of a host waits for its root filesystem.
func TestResponseOfSlowRequestIsStored(t *testing.T) {
	for _, tt := range []struct {
		name     string
		hours    time.Duration
		fails    bool
		hangUp   bool
		kept     bool
		released bool
	}{
		{name: "at once", kept: true},
		{name: "after hours", hours: 2, kept: true},
		{name: "after the caller has hung up", hours: 2, hangUp: true, kept: true},
		{name: "failed after hours", hours: 2, fails: true, released: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &answers{}
				replays := &replayer{store: store, log: slog.New(slog.DiscardHandler)}
				ctx, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				r := httptest.NewRequestWithContext(ctx, "POST", "/jails", nil)
				r.Header.Set(keyHeader, "k")
				err := replays.answer(httptest.NewRecorder(), r, nil, func() (replay.Response, error) {
					time.Sleep(tt.hours * time.Hour)
					if tt.hangUp {
						hangUp()
					}
					if tt.fails {
						return replay.Response{}, context.DeadlineExceeded
					}
					return replay.Response{Status: http.StatusCreated}, nil
				})
				if (err != nil) != tt.fails || (store.kept != nil) != tt.kept || store.abandoned != tt.released {
					t.Errorf("answered with %v, kept %v, released %t", err, store.kept, store.abandoned)
				}
			})
		})
	}
}
