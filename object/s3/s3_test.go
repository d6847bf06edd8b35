package s3_test

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/object"
	"glasshouse/object/objecttest"
	"glasshouse/object/s3"
)

func TestMain(m *testing.M) {
	os.Setenv("AWS_ACCESS_KEY_ID", "me")
	os.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	os.Exit(m.Run())
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
	objecttest.Run(t, func(t *testing.T) object.Store { return open(t, objecttest.Service(t, nil)) })
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

// TestUnreliableService fails half of all requests in some way. An operation may fail, but never
// return data that were not stored.
func TestUnreliableService(t *testing.T) {
	for name, fail := range objecttest.Faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			var failed atomic.Int64
			s := open(t, objecttest.Service(t, objecttest.FailHalf(&failed, fail)))
			possible, puts, gets := [][]byte{}, 0, 0
			for n := range 6 {
				size := 10_000 + n
				if n%4 == 3 && name != "CorruptDownload" { // the service does not know the checksum of an object of parts
					size = 33 << 20
				}
				data := bytes.Repeat([]byte{byte('a' + n)}, size)
				if err := s.Put(t.Context(), "a", bytes.NewReader(data)); err == nil {
					possible, puts = [][]byte{data}, puts+1
				} else {
					possible = append(possible, data)
				}
				got, err := objecttest.Get(t.Context(), s, "a")
				switch {
				case err != nil && !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.NotFound):
					t.Errorf("Get = %v, want unavailable", err)
				case err == nil && !slices.ContainsFunc(possible, func(p []byte) bool { return bytes.Equal(p, got) }):
					t.Errorf("read %d bytes of %q…, want what was stored", len(got), got[:min(len(got), 4)])
				case err == nil:
					gets++
				}
			}
			t.Logf("%d requests failed; 6 objects: %d stored, %d read", failed.Load(), puts, gets)
			if failed.Load() == 0 || puts == 0 || gets == 0 {
				t.Errorf("%d requests failed, %d objects were stored and %d read: too few to tell", failed.Load(), puts, gets)
			}
		})
	}
}

func TestErrorsNameTheRemedy(t *testing.T) {
	for code, want := range map[string]struct {
		status int
		kind   fault.Kind
		remedy string
	}{
		"AccessDenied":                 {403, fault.Unavailable, "credentials"},
		"InvalidAccessKeyId":           {403, fault.Unavailable, "credentials"},
		"NoSuchBucket":                 {404, fault.Unavailable, "create the bucket"},
		"NoSuchKey":                    {404, fault.NotFound, ""},
		"QuotaExceeded":                {409, fault.NoSpace, ""},
		"XMinioStorageFull":            {507, fault.NoSpace, ""},
		"AuthorizationHeaderMalformed": {400, fault.Unavailable, "region"},
		"NotImplemented":               {501, fault.Unavailable, ""},
	} {
		var requests atomic.Int64
		s := open(t, objecttest.Service(t, func(http.Handler) http.Handler {
			h := objecttest.Answer(want.status, code)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				h.ServeHTTP(w, r)
			})
		}))
		_, err := s.Get(t.Context(), "a")
		if fault.KindOf(err) != want.kind || !strings.Contains(fault.RemedyOf(err), want.remedy) || requests.Load() != 1 {
			t.Errorf("Get with the answer %s = %v (%s) after %d requests, want %s and a remedy with %q after one", code, err, fault.RemedyOf(err), requests.Load(), want.kind, want.remedy)
		}
	}
}

func TestRequestsWithoutCredentialsAreNotSent(t *testing.T) {
	s := open(t, objecttest.Service(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	}))
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/") // instead of the service of a virtual machine
	err := s.Put(t.Context(), "a", strings.NewReader("x"))
	if !errors.Is(err, fault.Unavailable) || !strings.Contains(fault.RemedyOf(err), "AWS_ACCESS_KEY_ID") {
		t.Errorf("Put without credentials = %v (%s), want a remedy that names them", err, fault.RemedyOf(err))
	}
}

func TestCredentialsFile(t *testing.T) {
	var authorization atomic.Value
	s := open(t, objecttest.Service(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			authorization.Store(r.Header.Get("Authorization"))
			h.ServeHTTP(w, r)
		})
	}))
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = from-file\naws_secret_access_key = secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	if err := s.Put(t.Context(), "a", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if got := authorization.Load().(string); !strings.Contains(got, "Credential=from-file/") {
		t.Errorf("Authorization = %q, want the access key of the file", got)
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
