// Program is a capability that does what its input asks for: the probe of
// capability/engine/enginetest, and more. With PORT it is a server, and else a script.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	glasshousecall "glasshouse/capability/clients/go"
)

type input struct {
	Do    string          `json:"do"`
	N     int             `json:"n"`
	Text  string          `json:"text"`
	Paths []string        `json:"paths"`
	Call  string          `json:"call"`
	Input json.RawMessage `json:"input"`
}

type answer map[string]any

var served atomic.Int64

func main() {
	switch strings.Join(os.Args[1:], " ") {
	case "exit":
		fmt.Fprintln(os.Stderr, "I have no wish to serve")
		os.Exit(3)
	case "eat":
		eat()
	}
	port := os.Getenv("PORT")
	if port == "" {
		script()
		return
	}
	http.HandleFunc("GET /ping", func(w http.ResponseWriter, r *http.Request) {
		if len(os.Args) > 1 && os.Args[1] == "sick" {
			http.Error(w, "not well", http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("POST /", serve)
	fmt.Fprintln(os.Stderr, http.ListenAndServe("127.0.0.1:"+port, nil))
}

func script() {
	body, err := io.ReadAll(os.Stdin)
	if err != nil {
		exit(err)
	}
	var in input
	if err := json.Unmarshal(body, &in); err != nil {
		exit(err)
	}
	switch in.Do {
	case "garble":
		fmt.Print("{{{ this is no JSON")
		return
	case "flood":
		flood(os.Stdout)
	case "die":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	out, err := do(context.Background(), in, body)
	if err != nil {
		exit(err)
	}
	json.NewEncoder(os.Stdout).Encode(out)
}

func exit(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var in input
	if err := json.Unmarshal(body, &in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch in.Do {
	case "garble":
		io.WriteString(w, "<html>hello</html>")
		return
	case "no-http":
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			io.WriteString(conn, "what is this HTTP of which you speak?\r\n\r\n")
			conn.Close()
		}
		return
	case "die":
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, `{"half": `)
		w.(http.Flusher).Flush()
		os.Exit(7)
	case "flood":
		flood(w)
		return
	}
	out, err := do(r.Context(), in, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	if in.Do == "headers" {
		headers := answer{"path": r.URL.Path}
		for _, h := range []string{"Content-Type", "Glasshouse-Call", "Idempotency-Key", "Glasshouse-Deadline"} {
			headers[h] = r.Header.Get(h)
		}
		out = headers
	}
	json.NewEncoder(w).Encode(out)
}

func flood(w io.Writer) {
	for {
		if _, err := io.WriteString(w, strings.Repeat("more and more ", 1000)); err != nil {
			return
		}
	}
}

// data is where files stay, if any do.
func data(name string) string {
	dir := os.Getenv("GLASSHOUSE_DATA")
	if dir == "" {
		dir = "/tmp"
	}
	return filepath.Join(dir, name)
}

func do(ctx context.Context, in input, body []byte) (any, error) {
	count := served.Add(1)
	fmt.Fprintln(os.Stderr, "asked to", in.Do)
	switch in.Do {
	case "echo":
		return json.RawMessage(body), nil
	case "fail":
		return nil, errors.New("on purpose")
	case "spin":
		for end := time.Now().Add(time.Duration(in.N) * time.Millisecond); in.N == 0 || time.Now().Before(end); {
		}
	case "wait":
		time.Sleep(time.Hour)
	case "eat":
		eat()
	case "remember":
		return answer{"count": count}, nil
	case "note":
		return note(data("note"))
	case "fill":
		return answer{"count": in.N}, fill(data("filled"), in.N)
	case "touch":
		err := os.WriteFile("/shown/file", []byte("touched"), 0o600)
		var errno syscall.Errno
		errors.As(err, &errno)
		return answer{"errno": int(errno)}, nil
	case "call":
		var out json.RawMessage
		err := glasshousecall.Call(ctx, "test.other", answer{"x": 1}, &out)
		return out, err
	case "call-later":
		go func() {
			time.Sleep(time.Duration(in.N) * time.Millisecond)
			err := glasshousecall.Call(context.Background(), in.Call, in.Input, nil)
			os.WriteFile(in.Paths[0], []byte(cmp.Or(kind(err), "answered")), 0o600)
		}()
	case "call-other":
		var out json.RawMessage
		err := glasshousecall.Call(ctx, in.Call, in.Input, &out)
		return answer{"output": out, "kind": kind(err)}, nil
	case "write":
		for _, p := range in.Paths {
			if err := os.WriteFile(p, []byte(in.Text), 0o600); err != nil {
				return nil, err
			}
		}
	case "look":
		found := []string{}
		for _, p := range in.Paths {
			if _, err := os.Stat(p); err == nil {
				found = append(found, p)
			}
		}
		return answer{"found": found, "count": count}, nil
	case "list":
		entries, err := os.ReadDir(in.Paths[0])
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		names := []string{}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return answer{"found": names}, err
	case "read":
		text, err := os.ReadFile(in.Paths[0])
		return answer{"text": string(text)}, err
	case "fork":
		// Each starts two others, and stays.
		exec.Command("/bin/sh", "-c", `f() { f & f & sleep 1000; }; f; sleep 1000`).Start()
		time.Sleep(time.Hour)
	}
	return answer{"text": in.Text}, nil
}

func kind(err error) string {
	var e *glasshousecall.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Kind
	}
	return err.Error()
}

// note makes a file a byte longer.
func note(path string) (any, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Write([]byte{'.'}); err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return answer{"count": st.Size()}, nil
}

func fill(path string, mb int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	chunk := make([]byte, 1<<20)
	for range mb {
		if _, err := f.Write(chunk); err != nil {
			return err
		}
	}
	return f.Sync()
}

// eat takes memory without end.
func eat() {
	var all [][]byte
	for {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = 1
		}
		all = append(all, b)
	}
}
