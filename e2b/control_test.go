package e2b

import (
	"net/http"
	"testing"
)

// TestLegacySandboxIDs uses ids of SDKs before 2.0, which append a client id.
func TestLegacySandboxIDs(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base"}`)
	at := "/sandboxes/" + box.SandboxID + "-" + box.ClientID
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", "", "", 200}, {"POST", "/timeout", `{"timeout":60}`, 204}, {"POST", "/refreshes", `{"duration":60}`, 204},
		{"GET", "/metrics", "", 200}, {"GET", "/logs", "", 200}, {"POST", "/pause", "", 204}, {"POST", "/resume", `{"timeout":60}`, 201},
		{"POST", "/connect", `{"timeout":60}`, 200}, {"POST", "/snapshots", "", 201}, {"POST", "/fork", `{"count":1}`, 201},
		{"PUT", "/network", "{}", 204}, {"DELETE", "", "", 204}, {"DELETE", "", "", 404},
	} {
		d.api(c.want, c.method, at+c.path, c.body)
	}
	d.api(http.StatusNotFound, "GET", "/sandboxes/"+box.ClientID+"-"+box.SandboxID, "")
}
