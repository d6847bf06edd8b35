package clients_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	glasshousecall "glasshouse/capability/clients/go"
)

// kernel answers calls as that of a sandbox does, at a socket whose path it returns.
func kernel(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "call") // whose name is short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "call.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /call/{id}", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		switch r.PathValue("id") {
		case "test.denied":
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, `{"kind": "denied", "message": "the rules say no"}`)
		case "test.list":
			w.WriteHeader(http.StatusTeapot)
			io.WriteString(w, `["no object"]`)
		case "test.garbled":
			io.WriteString(w, "{{{")
		case "test.hangs":
			<-r.Context().Done()
		case "test.closes":
			panic(http.ErrAbortHandler)
		default:
			json.NewEncoder(w).Encode(map[string]any{"id": r.PathValue("id"), "input": json.RawMessage(text)})
		}
	})
	server := &http.Server{Handler: mux}
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return path
}

const pythonProgram = `
import json, sys
sys.path.insert(0, "python")
from glasshouse_call import call, CallError
for id, input, timeout in json.loads(sys.argv[1]):
    try:
        print(json.dumps(call(id, input, timeout=timeout or None)))
    except CallError as e:
        print("kind", e.kind)
`

const nodeProgram = `
import { call, CallError } from "./node/glasshouse-call.mjs";
for (const [id, input, timeout] of JSON.parse(process.argv.at(-1))) {
  try {
    console.log(JSON.stringify(await call(id, input, { timeout: timeout * 1000 || undefined })));
  } catch (err) {
    if (!(err instanceof CallError)) throw err;
    console.log("kind", err.kind);
  }
}
`

// clients maps each library to a program that makes calls with it and prints one result per line.
var clients = map[string][]string{
	"Python": {"python3", "-c", pythonProgram},
	"Node":   {"node", "--input-type=module", "-e", nodeProgram, "--"},
}

// A try is a call with its timeout in seconds and its expected result: JSON, or the kind of the
// failure.
type try struct {
	id, input string
	timeout   float64
	want      string
}

// makes runs a program that makes calls at a socket, and checks their results.
func makes(t *testing.T, program []string, socket string, tries ...try) {
	t.Helper()
	path, err := exec.LookPath(program[0])
	if err != nil {
		t.Skipf("this host has no %s", program[0])
	}
	var all [][]any
	for _, c := range tries {
		all = append(all, []any{c.id, json.RawMessage(c.input), c.timeout})
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, append(slices.Clone(program[1:]), string(text))...)
	cmd.Env = append(os.Environ(), "GLASSHOUSE_CALL_SOCKET="+socket, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", program[0], err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(tries) {
		t.Fatalf("%d answers to %d calls: %q", len(lines), len(tries), lines)
	}
	for i, c := range tries {
		if lines[i] != c.want && !same(lines[i], c.want) {
			t.Errorf("%s: %s, want %s", c.id, lines[i], c.want)
		}
	}
}

func TestCallResultsAndErrors(t *testing.T) {
	socket := kernel(t)
	for name, program := range clients {
		t.Run(name, func(t *testing.T) {
			const input = `{"text": "ä\n\"", "n": [1, 2.5, null]}`
			makes(t, program, socket,
				try{"test.other", input, 0, `{"id": "test.other", "input": ` + input + `}`},
				try{"odd/../id?x=1", `{}`, 0, `{"id": "odd/../id?x=1", "input": {}}`},
				try{"test.denied", `{}`, 0, "kind denied"},
				try{"test.list", `{}`, 0, "kind failed"},
				try{"test.garbled", `{}`, 0, "kind garbled"},
				try{"test.hangs", `{}`, 0.2, "kind timeout"},
				try{"test.closes", `{}`, 0, "kind unavailable"},
			)
			makes(t, program, socket+".not", try{"test.other", `{}`, 0, "kind unavailable"})
		})
	}
}

func TestCallThroughGoClient(t *testing.T) {
	t.Setenv("GLASSHOUSE_CALL_SOCKET", kernel(t))
	var out struct {
		ID    string
		Input map[string]int
	}
	if err := glasshousecall.Call(t.Context(), "test.other", map[string]int{"x": 1}, &out); err != nil || out.ID != "test.other" || out.Input["x"] != 1 {
		t.Errorf("it is answered %+v, %v", out, err)
	}
	if err := glasshousecall.Call(t.Context(), "test.other", nil, nil); err != nil {
		t.Errorf("a call whose output nobody wants: %v", err)
	}
	for id, want := range map[string]string{"test.denied": "denied: the rules say no", "test.list": "failed: 418 I'm a teapot"} {
		err := glasshousecall.Call(t.Context(), id, nil, nil)
		if e, ok := errors.AsType[*glasshousecall.Error](err); !ok || e.Error() != want {
			t.Errorf("%s: %v, want %s", id, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := glasshousecall.Call(ctx, "test.hangs", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that is given up: %v", err)
	}
	if err := glasshousecall.Call(t.Context(), "test.other", func() {}, nil); err == nil {
		t.Error("an input that JSON cannot write is called with")
	}
}

// same reports whether two texts are the same JSON.
func same(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return string(p) == string(q)
}
