// Package e2btest sends requests to handlers of the E2B protocol in tests.
package e2btest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Do sends a request to a handler and returns the response. A status other than want is
// an error of the test.
func Do(t testing.TB, h http.Handler, want int, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != want {
		t.Errorf("%s %s: got %d %.500s, want %d", r.Method, r.URL, w.Code, w.Body, want)
	}
	return w
}

// Read decodes the body of a response. A body that is not JSON ends the test.
func Read[T any](t testing.TB, w *httptest.ResponseRecorder) (v T) {
	t.Helper()
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("the response is %s: %v", w.Body, err)
	}
	return v
}
