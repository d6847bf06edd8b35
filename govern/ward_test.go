package govern

import (
	"testing"
	"time"

	"glasshouse/egress"
)

// Who ends a jail waits for what its proxy carries, and that for a verdict.
func TestAJailThatIsBeingLetGoIsStillAnswered(t *testing.T) {
	h := newHouse(t)
	w := h.find(h.jail(`{"*": "allow"}`))
	w.mu.Lock() // as letGo has it
	defer w.mu.Unlock()
	answered := make(chan error, 1)
	go func() {
		_, err := authority{h.Kernel, w}.Judge(t.Context(), egress.Request{Kind: egress.KindConnect, Host: "api.example.com", Port: 443})
		answered <- err
	}()
	select {
	case err := <-answered:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for who waits for it")
	}
}
