package objecttest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// Service starts an S3 service with an empty bucket, and returns the URL of the store. around,
// if it is not nil, wraps its handler.
func Service(t *testing.T, around func(http.Handler) http.Handler) string {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	h := withoutChecksumOfParts(gofakes3.New(backend).Server())
	if around != nil {
		h = around(h)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return "s3://bucket/pre/fix?region=r&endpoint=" + url.QueryEscape(server.URL)
}

// withoutChecksumOfParts gives objects of parts a checksum of checksums, because gofakes3 stores the
// client's value without computing it.
func withoutChecksumOfParts(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("uploads") {
			r.Header.Set("X-Amz-Checksum-Crc32c", "AAAAAA==-1")
		}
		h.ServeHTTP(w, r)
	})
}

// Faults are ways in which a service fails.
var Faults = map[string]func(http.Handler) http.Handler{
	"Unavailable": func(http.Handler) http.Handler { return Answer(http.StatusServiceUnavailable, "SlowDown") },
	"LostRequest": func(http.Handler) http.Handler { return http.HandlerFunc(hangUp) },
	"LostAnswer": func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(httptest.NewRecorder(), r)
			hangUp(w, r)
		})
	},
	"TruncatedDownload": changedDownload(func(b []byte) []byte { return b[:len(b)/2] }),
	"CorruptDownload":   changedDownload(func(b []byte) []byte { return append([]byte{b[0] ^ 1}, b[1:]...) }),
}

func Answer(status int, code string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>injected</Message></Error>", code)
	})
}

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// changedDownload changes data, but not the length and the checksum in the header.
func changedDownload(change func([]byte) []byte) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				h.ServeHTTP(w, r)
				return
			}
			whole := httptest.NewRecorder()
			h.ServeHTTP(whole, r)
			maps.Copy(w.Header(), whole.Header())
			w.WriteHeader(whole.Code)
			data := whole.Body.Bytes()
			if whole.Code == http.StatusOK && len(data) > 1 {
				data = change(data)
			}
			w.Write(data)
		})
	}
}

// FailHalf lets about half of all requests fail in one of the given ways, and counts them.
func FailHalf(failed *atomic.Int64, faults ...func(http.Handler) http.Handler) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		var bad []http.Handler
		for _, fault := range faults {
			bad = append(bad, fault(h))
		}
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(1, 1)) // guarded by mu
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			n := random.IntN(2 * len(bad))
			mu.Unlock()
			if n < len(bad) {
				failed.Add(1)
				bad[n].ServeHTTP(w, r)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}
