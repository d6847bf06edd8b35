package govern

import (
	"net/http"
	"testing"

	"glasshouse/fault"
	"glasshouse/id"
)

func TestFetchWithoutProxyIsDenied(t *testing.T) {
	h := newHarness(t)
	jid := h.jail(`"allow"`)
	for _, tt := range []struct {
		jid  id.Jail
		url  string
		kind fault.Kind
	}{
		{jid, "https://a.example.com/", fault.Denied},
		{id.NewJail(), "https://a.example.com/", fault.NotFound},
		{jid, "file:///etc/passwd", fault.Invalid},
	} {
		r, err := http.NewRequest(http.MethodGet, tt.url, nil)
		must(t, err)
		if _, err := h.Fetch(t.Context(), tt.jid, r); fault.KindOf(err) != tt.kind {
			t.Errorf("Fetch of %s = %v, want kind %q", tt.url, err, tt.kind)
		}
	}
}
