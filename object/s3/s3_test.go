package s3_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"glasshouse/fault"
	"glasshouse/object"
	"glasshouse/object/objecttest"
	"glasshouse/object/s3"
)

// service starts an S3 service with an empty bucket, and returns the URL of the store. around,
// if it is not nil, wraps its handler.
func service(t *testing.T, around func(http.Handler) http.Handler) string {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "me")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	h := gofakes3.New(backend).Server()
	if around != nil {
		h = around(h)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return "s3://bucket/pre/fix?region=r&endpoint=" + url.QueryEscape(server.URL)
}

func open(t *testing.T, at string) *s3.Store {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	s, err := s3.Open(u)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestContract(t *testing.T) {
	objecttest.Run(t, func(t *testing.T) object.Store { return open(t, service(t, nil)) })
}

func TestInvalidURLs(t *testing.T) {
	for at, want := range map[string]string{
		"s3://b":                "bucket",
		"s3://":                 "bucket",
		"s3://me:secret@bucket": "credentials",
		"s3://bucket?endpoint=http://me:secret@h":      "credentials",
		"s3://bucket?endpoint=h":                       "http or https",
		"s3://bucket?endpoint=ftp://h":                 "http or https",
		"s3://bucket/a/../b":                           "prefix",
		"s3://bucket?key=secret":                       "unknown parameter",
		"s3://bucket?endpoint=" + url.QueryEscape(":"): "endpoint",
	} {
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s3.Open(u)
		if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "me:secret") {
			t.Errorf("Open(%s) = %v, want an invalid URL: %s", at, err, want)
		}
	}
}

// TestUnreliableService fails requests in three ways: with 503 before they have an effect, by
// closing the connection after a PUT, and with half of an object. An operation may fail, but
// never return wrong data.
func TestUnreliableService(t *testing.T) {
	var requests, failed atomic.Int64
	s := open(t, service(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			switch n := rand.IntN(6); {
			case n < 2:
				failed.Add(1)
				w.WriteHeader(http.StatusServiceUnavailable)
			case n == 2 && r.Method == http.MethodPut:
				failed.Add(1)
				h.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			case n == 2 && r.Method == http.MethodGet:
				failed.Add(1)
				all := httptest.NewRecorder()
				h.ServeHTTP(all, r)
				for name, v := range all.Header() {
					w.Header()[name] = v
				}
				w.WriteHeader(all.Code)
				w.Write(all.Body.Bytes()[:all.Body.Len()/2])
				panic(http.ErrAbortHandler)
			default:
				h.ServeHTTP(w, r)
			}
		})
	}))
	puts, gets := 0, 0
	for n := range 12 {
		want := bytes.Repeat([]byte{byte(n)}, 10_000+n)
		if s.Put(t.Context(), "a", bytes.NewReader(want)) != nil {
			continue
		}
		puts++
		r, err := s.Get(t.Context(), "a")
		if err != nil {
			continue
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			continue
		}
		gets++
		if !bytes.Equal(got, want) {
			t.Errorf("read %d bytes of %q…, want what was stored", len(got), got[:min(len(got), 4)])
		}
	}
	t.Logf("%d of %d requests failed; 12 objects: %d stored, %d read", failed.Load(), requests.Load(), puts, gets)
	if puts < 3 || gets < 3 {
		t.Errorf("of 12 objects %d were stored and %d read: too few to tell", puts, gets)
	}
}

func TestErrorsNameTheRemedy(t *testing.T) {
	for status, want := range map[int]fault.Kind{http.StatusForbidden: fault.Denied, http.StatusNotFound: fault.NotFound, http.StatusBadRequest: fault.Unavailable} {
		s := open(t, service(t, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		}))
		if _, err := s.Head(t.Context(), "a"); fault.KindOf(err) != want {
			t.Errorf("Head with status %d = %v, want %s", status, err, want)
		}
	}
}

// TestContractOfVersityGateway builds and starts another implementation of the service.
func TestContractOfVersityGateway(t *testing.T) {
	if os.Getenv("GLASSHOUSE_TEST") != "all" {
		t.Skip("downloads and builds Versity S3 Gateway: runs with GLASSHOUSE_TEST=all")
	}
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "install", "github.com/versity/versitygw/cmd/versitygw@v1.8.0")
	build.Env = append(os.Environ(), "GOBIN="+bin, "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	objecttest.Run(t, func(t *testing.T) object.Store {
		t.Setenv("AWS_ACCESS_KEY_ID", "me")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := l.Addr().String()
		l.Close()
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "bucket"), 0o755); err != nil {
			t.Fatal(err)
		}
		server := exec.CommandContext(t.Context(), filepath.Join(bin, "versitygw"), "--port", at, "--access", "me", "--secret", "secret", "posix", root)
		var log bytes.Buffer
		server.Stdout, server.Stderr = &log, &log
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			server.Process.Kill()
			server.Wait()
			if t.Failed() {
				t.Logf("Versity S3 Gateway said:\n%.4000s", log.Bytes())
			}
		})
		s := open(t, "s3://bucket?region=us-east-1&endpoint=http://"+at)
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if _, err := s.Head(t.Context(), "none"); errors.Is(err, fault.NotFound) {
				return s
			} else if time.Now().After(end) {
				t.Fatalf("the service did not start: %v", err)
			}
		}
	})
}
