package cli

import (
	"strings"
	"testing"
)

func TestOutputFormats(t *testing.T) {
	jails := items(`{"id":"j-aaaaaaaaaaaa","name":"true","state":"running","created_at":"2026-01-02T03:04:05Z","labels":{"note":"a: b\u202e"}}`, `{"id":"j-bbbbbbbbbbbb","state":"stopped","created_at":"2026-01-02T03:04:05Z"}`)
	audit := items(`{"seq":9007199254740993,"time":"x","kind":"k","body":{"a":1.50},"prev":"p","hash":"h"}`)
	none := map[string]string{"GET /jails": items()}
	for _, c := range []struct {
		line    string
		answers map[string]string
		out     string // a part of the output
		errs    string
		code    int
	}{
		{line: "jail ls -o name", answers: map[string]string{"GET /jails": jails}, out: "j-aaaaaaaaaaaa\nj-bbbbbbbbbbbb\n"},
		{line: "jail ls -o json", answers: map[string]string{"GET /jails": jails}, out: "[\n  {\n    \"id\": \"j-aaaaaaaaaaaa\""},
		{line: "jail ls --json -o json", answers: map[string]string{"GET /jails": jails}, out: "\"id\": \"j-aaaaaaaaaaaa\""},
		{line: "jail ls -o table", answers: map[string]string{"GET /jails": jails}, out: "j-aaaaaaaaaaaa  true"},
		{line: "jail ls --output yaml", answers: map[string]string{"GET /jails": jails}, out: "- id: j-aaaaaaaaaaaa\n  name: \"true\"\n"},
		{line: "jail ls --output yaml", answers: map[string]string{"GET /jails": jails}, out: "note: \"a: b\\u202e\"\n"},
		{line: "jail ls -o yaml", answers: none, out: "[]\n"},
		{line: "jail ls -o name", answers: none},
		{line: "audit ls -o yaml", answers: map[string]string{"GET /chain": audit}, out: "- seq: 9007199254740993\n"},
		{line: "audit ls -o name", answers: map[string]string{"GET /chain": audit}, out: "9007199254740993\n"},
		{line: "version -o name", answers: map[string]string{"GET /version": `503 {"type":"/problems/unavailable","status":503}`}, errs: "the result has no name", code: 2},
		{line: "jail ls -o xml", errs: `--output "xml" is not one of table, json, yaml, name`, code: 2},
		{line: "jail ls --json -o yaml", errs: "exclude each other", code: 2},
		{line: "rtfs eval (+~1~2) -o yaml", out: "3\n"},
	} {
		t.Run(c.line, func(t *testing.T) {
			d := newScriptedDaemon(t, c.answers)
			code, out, errs := d.run("", argsOf(c.line)...)
			if code != c.code || !strings.Contains(out, c.out) || c.out == "" && out != "" || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
				t.Errorf("exit code %d, output %q, %q; want %d, %q, %q", code, out, errs, c.code, c.out, c.errs)
			}
			if strings.ContainsAny(out, "\u202e\x1b") {
				t.Errorf("the output %q can control a terminal", out)
			}
		})
	}
}

func TestEventsAsYAML(t *testing.T) {
	var out strings.Builder
	c := &command{format: "yaml", env: Env{Stdout: &out}}
	for _, line := range []string{`{"type":"proc","seq":1,"argv":["a","b"]}`, `{"type":"gap","seq":2,"lost":-1}`} {
		if err := c.writeEvent(&out, []byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	if want := "type: proc\nseq: 1\nargv:\n  - a\n  - b\n---\ntype: gap\nseq: 2\nlost: -1\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
