package cli_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"glasshouse/cli"
)

func TestMockLLMRunsUntilInterrupted(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(script, []byte("conversations: [{turns: [{text: 'as written: {{.User}}'}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, in := io.Pipe()
	ctx, interrupt := context.WithCancel(t.Context())
	var log bytes.Buffer
	done := make(chan int)
	go func() {
		done <- cli.Run(ctx, []string{"mock-llm", "--listen", "127.0.0.1:0", "--script", script}, cli.Env{Stdout: in, Stderr: &log, Getenv: func(string) string { return "" }})
		in.Close()
	}()
	text := make([]byte, 4096)
	n, err := out.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	base := regexp.MustCompile(`OPENAI_BASE_URL=(\S+)`).FindSubmatch(text[:n])
	if base == nil {
		t.Fatalf("output = %q, want the variables to set", text[:n])
	}
	res, err := http.Post(string(base[1])+"/chat/completions", "application/json", strings.NewReader(`{"model":"fake-1","messages":[{"role":"user","content":"hello"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if !strings.Contains(string(body), "as written: hello") {
		t.Errorf("response = %s", body)
	}
	http.DefaultClient.CloseIdleConnections()
	interrupt()
	if code := <-done; code != 0 {
		t.Errorf("exit code %d; output\n%s", code, &log)
	}
}

func TestMockLLMScriptErrorNamesLine(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(script, []byte("conversations:\n  - name: x\n    turn: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{script: "line 3: field turn not found", script + ".no": "no such file"} {
		var stderr bytes.Buffer
		code := cli.Run(t.Context(), []string{"mock-llm", "--listen", "127.0.0.1:0", "--script", file}, cli.Env{Stdout: io.Discard, Stderr: &stderr, Getenv: func(string) string { return "" }})
		if code != 1 || !strings.Contains(stderr.String(), want) || !strings.Contains(stderr.String(), script) {
			t.Errorf("exit code %d and stderr %q, want %q", code, stderr.String(), want)
		}
	}
}
