package linger_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"glasshouse/internal/linger"
)

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	srv := httptest.NewServer(linger.Handler(h))
	t.Cleanup(srv.Close)
	return srv
}

func refuse(w http.ResponseWriter, r *http.Request) {
	io.CopyN(io.Discard, r.Body, 10) // the rest is not read
	http.Error(w, "not this", http.StatusForbidden)
}

// The client writes its whole body before it reads the response, which is the hardest case.
func TestClientReadsResponseAfterBody(t *testing.T) {
	srv := serve(t, refuse)
	body := bytes.Repeat([]byte("x"), 16<<20)
	for name, head := range map[string]string{"known": fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)), "chunked": "Transfer-Encoding: chunked\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(30 * time.Second))
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\n%s", head)
			for part := body; len(part) > 0; part = part[1<<20:] {
				if name == "chunked" {
					fmt.Fprintf(c, "%x\r\n", 1<<20)
				}
				if _, err := c.Write(part[:1<<20]); err != nil {
					t.Fatalf("with %d bytes to write: %v", len(part), err)
				}
				if name == "chunked" {
					c.Write([]byte("\r\n"))
				}
			}
			if name == "chunked" {
				c.Write([]byte("0\r\n\r\n"))
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 403 || !strings.Contains(string(text), "not this") || !resp.Close {
				t.Errorf("%d %q, close %v", resp.StatusCode, text, resp.Close)
			}
		})
	}
}

func TestStalledClientIsNotWaitedFor(t *testing.T) {
	srv := serve(t, refuse)
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second)) // fails the test if there is no response
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n0123456789", 16<<20)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != 403 {
		t.Fatalf("%v, %v", resp, err)
	}
}

func TestGoClientReadsResponse(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"403": refuse,
		"200": func(w http.ResponseWriter, r *http.Request) { io.CopyN(io.Discard, r.Body, 10) },
	} {
		srv := serve(t, h)
		for range 50 {
			resp, err := http.Post(srv.URL, "text/plain", strings.NewReader(strings.Repeat("x", 300<<10)))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			resp.Body.Close()
			if fmt.Sprint(resp.StatusCode) != name {
				t.Errorf("%d, want %s", resp.StatusCode, name)
			}
		}
	}
}
