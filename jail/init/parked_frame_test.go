package jailinit

import (
	"testing"
	"time"

	"glasshouse/jail/init/protocol"
)

// On a busy host, init may need longer than any timeout for a Parked frame, although the socket has
// room for it. Without the frame, the client would report a lost connection.
func TestParkedFrameIsSentOnBusyHost(t *testing.T) {
	defer func(d time.Duration) { parkedFrameTimeout = d }(parkedFrameTimeout)
	parkedFrameTimeout = -time.Second
	ours, theirs := socketPair(t)
	c := newConn(ours)
	c.net.SetWriteDeadline(past) // as requestPark may have
	c.sendParked(protocol.Parked{Acknowledged: 7})
	ours.Close()
	kind, payload, err := protocol.NewReader(theirs).Next()
	var got protocol.Parked
	if err == nil {
		err = protocol.Decode(kind, payload, protocol.FrameParked, &got)
	}
	if err != nil || got.Acknowledged != 7 {
		t.Errorf("the client got %+v, %v, want a Parked frame with 7 acknowledged bytes", got, err)
	}
}

// A client that does not read does not delay a park.
func TestParkedFrameDoesNotWaitForClient(t *testing.T) {
	ours, _ := socketPair(t)
	c := newConn(ours)
	for piece := make([]byte, 64<<10); writeBuffered(ours, piece) > 0; {
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.sendParked(protocol.Parked{})
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("the frame waits for a client that does not read")
	}
}
