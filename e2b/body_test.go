package e2b

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"glasshouse/fault"
)

func TestReadBody(t *testing.T) {
	type body struct {
		Name string `json:"name"`
	}
	for _, c := range []struct {
		text string
		want string
		kind fault.Kind // kind of the error; "" means none
	}{
		{``, "before", ""},
		{`  `, "before", ""},
		{`{}`, "before", ""},
		{`null`, "before", ""},
		{`{"name":"a","unknown":[1]}`, "a", ""},
		{`{"name":"` + strings.Repeat("x", 89) + `"}`, strings.Repeat("x", 89), ""},
		{`{"name":"` + strings.Repeat("x", 90) + `"}`, "", fault.TooLarge},
		{strings.Repeat(" ", 101), "", fault.TooLarge},
		{`{"name":"a"`, "", fault.Invalid},
		{`{"name":5}`, "", fault.Invalid},
		{`[]`, "", fault.Invalid},
		{"\xff", "", fault.Invalid},
	} {
		v := body{"before"}
		err := ReadBody(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(c.text)), &v, 100)
		if c.kind != "" {
			if !errors.Is(err, c.kind) {
				t.Errorf("ReadBody(%.20q, %d bytes) = %v, want %s", c.text, len(c.text), err, c.kind)
			}
			continue
		}
		if err != nil || v.Name != c.want {
			t.Errorf("ReadBody(%.20q) = %q, %v; want %q", c.text, v.Name, err, c.want)
		}
	}
	// A broken connection is not a missing body.
	r := httptest.NewRequest("POST", "/", broken{})
	if err := ReadBody(httptest.NewRecorder(), r, &body{}, 100); !errors.Is(err, fault.Invalid) {
		t.Errorf("ReadBody of a connection that breaks = %v, want invalid", err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func TestPanicEndsOnlyItsRequest(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base"}`)
	d.panics["Regovern"] = errors.New("a bug")
	w := d.api(500, "PUT", "/sandboxes/"+box.SandboxID+"/network", `{}`)
	if strings.Contains(w.Body.String(), "a bug") {
		t.Errorf("the response is %s, want it without the panic value", w.Body)
	}
	if got := d.log.String(); !strings.Contains(got, "a bug") || !strings.Contains(got, "fakes_test.go") {
		t.Errorf("the log is %s, want the panic and its stack", got)
	}
	clear(d.panics)
	d.api(204, "PUT", "/sandboxes/"+box.SandboxID+"/network", `{}`) // its lock has been released
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("a panic of http.ErrAbortHandler became %v, want it unchanged", p)
		}
	}()
	d.panics["Regovern"] = http.ErrAbortHandler
	d.do("PUT", "/sandboxes/"+box.SandboxID+"/network", `{}`, "X-API-Key", "key-mine")
}
