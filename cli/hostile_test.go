package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"glasshouse/api/wire"
)

// hostileName contains everything that a name can do to a terminal: C0 and C1 control
// characters, an ANSI escape sequence, bidirectional and zero-width characters, a line end, and
// a letter with very many combining characters.
var hostileName = "evil\x1b]0;owned\x07\u009b2J\u202egnp\u2066.exe\u200b\ufeff\r\nglasshouse: all is well e" + strings.Repeat("\u0301", 5000)

// runAgainst runs the command with a daemon that sends the same response to every request.
func runAgainst(t *testing.T, status int, answer any, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if status >= 400 {
			w.Header().Set("Content-Type", wire.ProblemType)
		} else {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	var out, errs strings.Builder
	code = Run(t.Context(), append([]string{"--addr", s.URL}, args...),
		Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, UID: 1000})
	return out.String(), errs.String(), code
}

// checkTerminal fails if text could control the terminal or hide text.
func checkTerminal(t *testing.T, what, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%s is not UTF-8: %q", what, text)
	}
	for _, r := range text {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r)) {
			t.Errorf("%s has the character %U, want it escaped: %.300q", what, r, text)
			return
		}
	}
}

func TestHostileNamesInErrorsAreEscaped(t *testing.T) {
	problem := wire.Problem{Type: wire.TypeOf("not found"), Title: hostileName, Status: 404,
		Detail: hostileName + ": no such jail", Field: hostileName, Remedy: "try " + hostileName, ID: hostileName}
	for _, args := range [][]string{
		{"jail", "show", "j-4k2v9c7m1xqe"},
		{"--json", "jail", "list"},
		{"jail", "exec", "j-4k2v9c7m1xqe", "--", "true"},
		{"jail", "rm", "j-4k2v9c7m1xqe", "j-4k2v9c7m1xqf"},
		{"runs"},
		{"approval", "ls"},
	} {
		_, stderr, code := runAgainst(t, 404, problem, args...)
		line := strings.Join(args, " ")
		if code == 0 {
			t.Errorf("%s: exit code = 0, want a failure", line)
		}
		if !strings.Contains(stderr, `\u009b2J\u202egnp\u2066.exe\u200b\ufeff\r`) {
			t.Errorf("%s: stderr = %.300q, want the name with its hidden characters escaped", line, stderr)
		}
		checkTerminal(t, line+": stderr", stderr)
	}
}

func TestHostileNamesInResponsesAreEscaped(t *testing.T) {
	jails := map[string]any{"items": []map[string]any{{"id": "j-4k2v9c7m1xqe", "name": hostileName, "state": hostileName, "runtime": hostileName, "backend": hostileName, "labels": map[string]string{hostileName: hostileName}}}}
	runs := map[string]any{"items": []map[string]any{{"id": "r-1", "session": hostileName, "goal": hostileName, "state": hostileName, "reason": hostileName, "agent": map[string]any{"name": hostileName}}}}
	for _, c := range []struct {
		answer any
		args   []string
	}{
		{jails, []string{"jail", "list"}},
		{jails, []string{"jail", "list", "--json"}},
		{runs, []string{"runs"}},
		{runs, []string{"runs", "--json"}},
		{jails, []string{"sessions"}},
		{jails, []string{"approval", "ls"}},
		{jails, []string{"skills"}},
		{jails, []string{"schedules"}},
	} {
		stdout, stderr, _ := runAgainst(t, 200, c.answer, c.args...)
		line := strings.Join(c.args, " ")
		checkTerminal(t, line+": stdout", stdout)
		checkTerminal(t, line+": stderr", stderr)
	}
	stdout, _, code := runAgainst(t, 200, jails, "jail", "list", "--json")
	var got []struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || len(got) != 1 || got[0].Name != hostileName {
		t.Errorf("jail list --json: %d jails, code %d, error %v; want the name unchanged after decoding", len(got), code, err)
	}
}
