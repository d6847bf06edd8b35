package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"

	"golang.org/x/term"
)

// rtfsRun runs a command without a daemon.
func rtfsRun(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), append([]string{"rtfs"}, args...), Env{
		Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs,
		Getenv: func(string) string { return "" }, UID: os.Getuid(),
	})
	return code, out.String(), errs.String()
}

// runLines runs a command with --jsonl and returns its responses by id.
func runLines(t *testing.T, command string, requests []byte) map[string]response {
	t.Helper()
	code, out, errs := rtfsRun(t, string(requests), command, "--jsonl")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	all := map[string]response{}
	for line := range strings.Lines(out) {
		var r response
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("it printed %q: %v", line, err)
		}
		all[string(r.ID)] = r
	}
	return all
}

// An rtfsCase is a program with its value, or a type with a value and whether the value
// conforms.
type rtfsCase struct {
	ID          int     `json:"id"`
	Src         string  `json:"src,omitempty"`
	Expect      *string `json:"expect,omitempty"`
	ExpectError string  `json:"expect_error,omitempty"`
	Unordered   bool    `json:"unordered,omitempty"`

	Type   string `json:"type,omitempty"`
	Value  string `json:"value,omitempty"`
	Valid  *bool  `json:"valid,omitempty"`
	Parses *bool  `json:"parses,omitempty"`
}

// readCases returns the numbered cases of a file, and their requests.
func readCases(t *testing.T, file string) (requests []byte, all []rtfsCase) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var c rtfsCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		c.ID = len(all) + 1
		all = append(all, c)
		request, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		requests = append(append(requests, request...), '\n')
	}
	return requests, all
}

func TestEvalPrograms(t *testing.T) {
	requests, cases := readCases(t, "../capability/rtfs/testdata/probes.jsonl")
	got := runLines(t, "eval", requests)
	for _, c := range cases {
		r, ok := got[strconv.Itoa(c.ID)]
		switch {
		case !ok:
			t.Errorf("%d: no response", c.ID)
		case c.ExpectError != "":
			if r.Error == nil || c.ExpectError != "*" && r.Error.Kind != c.ExpectError {
				t.Errorf("%d: %s\n= %s, want error %s", c.ID, c.Src, responseText(r), c.ExpectError)
			}
		case r.Value == nil || !sameValue(t, *r.Value, *c.Expect, c.Unordered):
			t.Errorf("%d: %s\n= %s, want %s", c.ID, c.Src, responseText(r), *c.Expect)
		}
	}
}

func responseText(r response) string {
	text, _ := json.Marshal(r)
	return string(text)
}

// sameValue compares the values of two texts.
func sameValue(t *testing.T, got, want string, unordered bool) bool {
	t.Helper()
	x, err := readValue(got)
	if err != nil {
		t.Errorf("cannot parse %q: %v", got, err)
		return false
	}
	y, err := readValue(want)
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := x.(form.Vector); ok && unordered {
		b := slices.Clone(y.(form.Vector))
		for _, v := range a {
			i := slices.IndexFunc(b, func(w form.Value) bool { return form.Equal(v, w) })
			if i < 0 {
				return false
			}
			b = slices.Delete(b, i, i+1)
		}
		return len(b) == 0
	}
	return form.Equal(x, y)
}

func TestValidateTypes(t *testing.T) {
	requests, cases := readCases(t, "../capability/schema/testdata/probes.jsonl")
	got := runLines(t, "validate", requests)
	for _, c := range cases {
		r := got[strconv.Itoa(c.ID)]
		switch {
		case c.Parses != nil && (r.Error == nil) != *c.Parses:
			t.Errorf("%d: %s gave %s, parses should be %v", c.ID, c.Type, responseText(r), *c.Parses)
		case c.Valid != nil && (r.Valid == nil || *r.Valid != *c.Valid):
			t.Errorf("%d: %s is a %s gave %s, want %v", c.ID, c.Value, c.Type, responseText(r), *c.Valid)
		}
	}
}

func TestEvalJSONL(t *testing.T) {
	in := strings.Join([]string{
		`{"id": 1, "src": "(def x 5) (+ x 1)"}`,
		`{"id": 2, "src": "x"}`,
		``,
		`{"id": {"a": [3]}, "src": "(loop [] (recur))"}`,
		`{"id": "four", "src": "(println 1) (step \"s\" (log 2)) {:a \"<\\n\"}"}`,
		`{"src": "(call :anything {})"}`,
		`not json`,
		`{"id": 7, "src": "(+ 1"}`,
		`{"id": 8, "src": ""}`,
		`{"id": 9, "src": "(reduce (fn [a _] [a a]) 1 (range 0 60))"}`,
		`{"id": 10, "src": "(fn f [x] x)"}`,
	}, "\n")
	code, out, errs := rtfsRun(t, in, "eval", "--jsonl")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, %s", code, errs)
	}
	want := []string{
		`{"id":1,"value":"6"}`,
		`{"id":2,"error":{"kind":"UndefinedSymbol",`,
		`{"id":{"a":[3]},"error":{"kind":"BudgetExhausted",`,
		`{"id":"four","value":"{:a \"<\\n\"}"}`,
		`{"id":null,"error":{"kind":"UnknownCapability",`,
		`{"id":null,"error":{"kind":"JsonError",`,
		`{"id":7,"error":{"kind":"ParseError",`,
		`{"id":8,"value":"nil"}`,
		`{"id":9,"error":{"kind":"BudgetExhausted",`,
	}
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != len(want)+1 {
		t.Fatalf("got %d response lines:\n%s", len(lines), out)
	}
	for i, w := range want {
		if !strings.HasPrefix(lines[i], w) {
			t.Errorf("response %d = %s, want %s", i, lines[i], w)
		}
	}
}

func TestLineIsAnsweredBeforeNextLine(t *testing.T) {
	in, ask := io.Pipe()
	answer, out := io.Pipe()
	done := make(chan error)
	go func() { done <- eachLine(in, out, func(r request) response { return evalLine(t.Context(), r) }) }()
	lines := bufio.NewReader(answer)
	for _, src := range []string{"1", "(+ 1 1)"} {
		if _, err := io.WriteString(ask, `{"id": 1, "src": "`+src+`"}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	ask.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestValidateJSONL(t *testing.T) {
	got := runLines(t, "validate", []byte(`
		{"id": 1, "type": "[:and :int [:> 0]]", "value": "5"}
		{"id": 2, "type": "[:and :int [:> 0]]", "value": "-5"}
		{"id": 3, "type": "[:map [:a {:optional true} :int]]", "value": "{}"}
		{"id": 4, "type": "[:vector", "value": "[]"}
		{"id": 5, "type": ":int", "value": "1 2"}
		{"id": 6, "type": ":int"}`))
	for id, want := range map[string]string{
		"1": `{"id":1,"valid":true}`, "2": `{"id":2,"valid":false}`, "3": `{"id":3,"valid":true}`, "6": `{"id":6,"valid":true}`,
	} {
		if responseText(got[id]) != want {
			t.Errorf("got %s, want %s", responseText(got[id]), want)
		}
	}
	for _, id := range []string{"4", "5"} {
		if r := got[id]; r.Error == nil || r.Error.Kind != "ParseError" {
			t.Errorf("got %s, want a ParseError", responseText(r))
		}
	}
}

func TestRTFSEval(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.rtfs")
	write := func(src string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(src), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, src, stdin string
		args             []string
		code             int
		out, errs        string
	}{
		{name: "a file", src: "(println \"a\" 1)\n(println [\"a\" 1])\n(println)\n(print \"b\")\n(log \"to the log\")\n{:a 1}", args: []string{"run", file}, out: "a 1\n[\"a\" 1]\n\nb{:a 1}\n", errs: "to the log\n"},
		{name: "nil is not printed", src: "(println \"a\")", args: []string{"run", file}, out: "a\n"},
		{name: "the standard input", stdin: "(+ 1 2)", args: []string{"run", "-"}, out: "3\n"},
		{name: "an expression", args: []string{"eval", "(map inc [1 2])"}, out: "[2 3]\n"},
		{name: "nil of an expression", args: []string{"eval", "nil"}, out: "nil\n"},
		{name: "JSON", args: []string{"--json", "eval", "{:a [1 nil \"x\"]}"}, out: "{\"a\":[1,null,\"x\"]}\n"},
		{name: "types of parameters", args: []string{"eval", "((fn [x : int] x) \"a\")"}, code: 1, errs: "TypeValidationError"},
		{name: "where it failed", src: "(defn f [x]\n  (/ x 0))\n(inc (f 1))", args: []string{"run", file}, code: 1, errs: "a.rtfs:2:3: DivisionByZero: Division by zero\n  2 |   (/ x 0))\n    |   ^\n  in f, called at "},
		{name: "what cannot be read", args: []string{"eval", "(+ 1"}, code: 1, errs: "ParseError"},
		{name: "no kernel", args: []string{"eval", "(http-fetch {:url \"x\"})"}, code: 1, errs: "UnknownCapability: ccos.network.http-fetch"},
		{name: "nothing to evaluate", args: []string{"eval"}, code: 2, errs: "no program given"},
		{name: "both", args: []string{"eval", "--jsonl", "1"}, code: 2, errs: "--jsonl"},
		{name: "a file that is not there", args: []string{"run", file + "x"}, code: 1, errs: "no such file"},
		{name: "valid", args: []string{"validate", ":int", "1"}, out: "valid\n"},
		{name: "not valid, and where", args: []string{"validate", "[:map [:a [:vector [:and :int [:<= 5]]]]]", "{:a [1 6]}"}, code: 1, errs: "6"},
	} {
		write(c.src)
		code, out, errs := rtfsRun(t, c.stdin, c.args...)
		if code != c.code || out != c.out || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
			t.Errorf("%s: exit code %d, want %d\n%s\nwant\n%s\nerrors\n%s\nwant\n%s", c.name, code, c.code, out, c.out, errs, c.errs)
		}
	}
}

const placesManifest = `(capability "places.search"
  :description "Search for places"
  :version "1.0.0"
  :input-schema [:map [:query :string]]
  :output-schema [:map [:n :int]]
  :effects []
  :runtime {:type :rtfs}
  :implementation (fn [input] {:n (count (:query input))}))
`

// placesJSON is placesManifest as JSON.
const placesJSON = `{"capability": "places.search", "version": "1.0.0", "effects": [], "input-schema": ["map", [":query", ":string"]],
  "output-schema": ["map", [":n", ":int"]], "runtime": {"type": "rtfs"}, "implementation": "(fn [input] {:n (count (:query input))})"}`

func TestRTFSCheck(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		src, out, errs string
		code           int
	}{
		"places.rtfs":  {src: placesManifest, out: "ok, capability places.search 1.0.0, run by rtfs"},
		"code.rtfs":    {src: strings.Replace(placesManifest, "(count", "(countt", 1), code: 1, errs: "code.rtfs:8:36: UndefinedSymbol: countt is not defined\n  8 |"},
		"key.rtfs":     {src: strings.Replace(placesManifest, ":effects", ":efects", 1), code: 1, errs: "effects"},
		"type.rtfs":    {src: strings.Replace(placesManifest, ":query :string", ":query [:vector]", 1), code: 1, errs: "vector"},
		"program.rtfs": {src: "(defn f [x] (+ x 1))", out: "ok, a program"},
		"broken.rtfs":  {src: "(defn f [x] (+ x 1)", code: 1, errs: "ParseError"},
		"places.json":  {src: "[]x", code: 1},
		"places.txt":   {src: placesJSON, out: "ok, capability places.search 1.0.0, run by rtfs"},
		"list.txt":     {src: "[\n  " + strings.Replace(placesJSON, "{", "{\n", 1) + "]", out: "ok, capability places.search 1.0.0, run by rtfs"},
		"empty.txt":    {src: "{}", out: "ok, a program"},
		"slip.txt":     {src: strings.Replace(placesJSON, `"effects"`, `"efects"`, 1), code: 1, errs: "effects"},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(c.src), 0o644); err != nil {
			t.Fatal(err)
		}
		code, out, errs := rtfsRun(t, "", "check", file)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.errs) {
			t.Errorf("%s: exit code %d, want %d\n%s\nwant %q\n%s\nwant %q", name, code, c.code, out, c.out, errs, c.errs)
		}
	}
	// An invalid file does not prevent the check of the others.
	code, out, _ := rtfsRun(t, "", "check", filepath.Join(dir, "broken.rtfs"), filepath.Join(dir, "program.rtfs"))
	if code != 1 || !strings.Contains(out, "a program") {
		t.Errorf("exit code %d, %q; want 1, and the second checked", code, out)
	}
}

func TestRTFSFmt(t *testing.T) {
	code, out, errs := rtfsRun(t, "(let [x 1]\n(+   x\n2 ) )", "fmt", "-")
	if want := "(let [x 1]\n  (+ x\n     2))\n"; code != 0 || out != want {
		t.Errorf("exit code %d, %q, %s; want %q", code, out, errs, want)
	}
	dir := t.TempDir()
	bad, good, broken := filepath.Join(dir, "bad"), filepath.Join(dir, "good"), filepath.Join(dir, "broken")
	for file, src := range map[string]string{bad: "( +  1 2)", good: "(+ 1 2)\n", broken: "(+"} {
		if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, out, errs = rtfsRun(t, "", "fmt", "-w", bad, good)
	if code != 0 || out != bad+"\n" {
		t.Errorf("exit code %d, %q, %s; want the one that was changed", code, out, errs)
	}
	if text, err := os.ReadFile(bad); err != nil || string(text) != "(+ 1 2)\n" {
		t.Errorf("formatted file = %q, %v", text, err)
	}
	if info, err := os.Stat(bad); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the formatted file = %v, %v", info.Mode(), err)
	}
	if code, _, errs = rtfsRun(t, "", "fmt", "-w", broken); code != 1 || !strings.Contains(errs, "ParseError") {
		t.Errorf("exit code %d, %s; want a ParseError", code, errs)
	}
}

func TestREPL(t *testing.T) {
	code, out, errs := rtfsRun(t, strings.Join([]string{
		"(def x",
		"  5)",
		"; a comment alone",
		"(* x 2) (println \"said\")",
		"(nope)",
		"(defn half [n] (/ n 0))",
		"(half x)",
		"(doc map)",
		"(doc let)",
		"(doc half)",
		"(doc println)",
		"(doc freq)",
		"(doc nothing-like-it)",
		"(+ 1 2",
	}, "\n"), "repl")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, %s", code, errs)
	}
	for _, want := range []string{
		"5\n", "said\nnil\n", "UndefinedSymbol", "DivisionByZero", "in half, called at 1:1\n",
		"(map f coll)\n  A vector of the results of f for each element.\n",
		"(let [pattern value …] body …)\n", "half is defined in this session\n",
		"Calls the capability ccos.io.println.\n", "unknown name freq; similar names: frequencies\n",
		"unknown name nothing-like-it\n", "ParseError",
	} {
		_, after, found := strings.Cut(out, want)
		if !found {
			t.Errorf("no %q in the right order in\n%s", want, out)
		}
		out = after
	}
}

func TestTabCompletion(t *testing.T) {
	r := newREPL(Env{Stdout: io.Discard, Stderr: io.Discard})
	r.answer(t.Context(), "(def zebra 1)")
	for _, c := range []struct{ line, want, shows string }{
		{"(zeb|", "(zebra |", ""},
		{"(inc zeb| 1)", "(inc zebra| 1)", ""},
		{"(string-le|", "(string-length |", ""},
		{"(string-t|", "(string-trim |", ""},
		{"(defm|", "(defmacro |", ""},
		{"(printl|", "(println |", ""},
		{"(parse-|", "(parse-|", "parse-float  parse-int  parse-json\n"},
		{"(pars|", "(parse-|", ""},
		{"(|", "(|", ""},
		{"(qqq|", "(qqq|", ""},
	} {
		before, behind, _ := strings.Cut(c.line, "|")
		var out bytes.Buffer
		line, pos, ok := r.complete(&out, before+behind, len(before), '\t')
		if got := line[:pos] + "|" + line[pos:]; !ok || got != c.want || out.String() != c.shows {
			t.Errorf("%s became %s and showed %q; want %s and %q", c.line, got, out.String(), c.want, c.shows)
		}
	}
	if _, _, ok := r.complete(io.Discard, "zeb", 3, 'r'); ok {
		t.Error("a letter was taken for tab")
	}
}

func TestREPLHistoryPersists(t *testing.T) {
	name := filepath.Join(t.TempDir(), "state", "history")
	h, err := openHistory(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"(+ 1 2)", "(+ 1 2)", "", "(inc 3)"} {
		h.Add(line)
	}
	if err := h.close(); err != nil {
		t.Fatal(err)
	}
	h, err = openHistory(name)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()

	// On a terminal: up twice is the line before the last.
	keys, typed := io.Pipe()
	t.Cleanup(func() { typed.Close() })
	go io.WriteString(typed, "\x1b[A\x1b[A\r")
	terminal := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keys, io.Discard}, "")
	terminal.History = h
	line, err := terminalLines{terminal}.line("> ")
	if err != nil || line != "(+ 1 2)" {
		t.Errorf("got %q, %v; want the line before the last", line, err)
	}
}

func TestEveryFormIsDocumented(t *testing.T) {
	forms := rtfs.Forms()
	for _, name := range forms {
		if formDocs[name] == "" {
			t.Errorf("%s is not documented", name)
		}
	}
	for name := range formDocs {
		if !slices.Contains(forms, name) {
			t.Errorf("%s is documented but is not a form", name)
		}
	}
}
