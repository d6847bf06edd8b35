package guest_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/guest"
	"glasshouse/observe/kernel"
	"glasshouse/observe/observetest"
)

func TestMain(m *testing.M) { observetest.Main(m) }

// A machine is a jail on the host with the recorder of a virtual machine.
type machine struct {
	*observetest.FakeJail
	t        *testing.T
	recorder *guest.Recorder
	dir      string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	source := kernel.New(kernel.Config{})
	r, err := guest.NewRecorder(source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { source.Close() })
	m := &machine{FakeJail: observetest.NewFakeJail(t), t: t, recorder: r, dir: t.TempDir()}
	r.SetTarget(m.FakeJail.Target(event.Selection{}))
	return m
}

func (m *machine) Target(s event.Selection) observe.Target {
	return observe.Target{Jail: m.FakeJail.Target(s).Jail, Dir: m.dir, Guest: true, Selection: s, Events: m.events}
}

func (m *machine) events(ctx context.Context, request []byte, _ bool) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest/events", bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	m.recorder.ServeHTTP(w, r)
	return w.Result().Body, ctx.Err()
}

func TestContract(t *testing.T) {
	observetest.Run(t, observetest.Suite{
		Open:   func(*testing.T) observe.Source { return guest.New(guest.Config{}) },
		Jail:   func(t *testing.T) observetest.Jail { return newMachine(t) },
		Pinned: true, // by the recorder
		Differs: map[string]string{
			"WhatGlasshouseDoesIsMarked": "a checkpoint of a machine executes nothing in its processes",
		},
	})
}
