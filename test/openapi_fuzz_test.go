package test_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
)

// An operation of the daemon's OpenAPI document.
type operation struct {
	method, path string
	query        []string
	body         map[string]any // schema of its JSON body; nil: none
}

// operations returns the operations in the OpenAPI document. It also returns the document itself,
// which is needed to resolve references between schemas.
func (s stranger) operations() (all []operation, document map[string]any) {
	s.Helper()
	if err := json.Unmarshal(s.do("GET", "/openapi.json", "").body, &document); err != nil {
		s.Fatal(err)
	}
	paths := document["paths"].(map[string]any)
	for path, item := range paths {
		for method, what := range item.(map[string]any) {
			what, ok := what.(map[string]any)
			if !ok {
				continue
			}
			o := operation{method: strings.ToUpper(method), path: path}
			for _, p := range elements(what["parameters"]) {
				if p, _ := p.(map[string]any); p["in"] == "query" {
					o.query = append(o.query, p["name"].(string))
				}
			}
			o.body, _ = inside(what, "requestBody", "content", "application/json", "schema").(map[string]any)
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.method+a.path, b.method+b.path) })
	return all, document
}

func elements(v any) []any { l, _ := v.([]any); return l }

func inside(v any, names ...string) any {
	for _, name := range names {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// A scribbler generates invalid requests, the same in each run.
type scribbler struct {
	*rand.Rand
	document map[string]any
}

// values are JSON values of unexpected types.
var values = []string{
	`null`, `true`, `0`, `-1`, `1e99`, `-9223372036854775809`, `18446744073709551616`, `0.0000001`, `""`, `"x"`, `" "`, `[]`, `{}`, `[null]`, `[[[[]]]]`, `{"":{}}`,
	`"\u0000"`, "\"\xff\xfe\"", `"\ud800"`, `"../../../etc/passwd"`, `"/etc/passwd"`, `"` + strings.Repeat("x", 5000) + `"`, `"` + strings.Repeat("é", 3000) + `"`, `"10m"`, `"-1h"`, `"9999999h"`, `"2026-99-99T00:00:00Z"`,
	`"<script>"`, `"*"`, `"$(id)"`, `"';DROP TABLE x;--"`, `"%s%n"`, strings.Repeat("[", 200) + strings.Repeat("]", 200),
}

// words are values for paths and queries.
var words = []string{
	"", ".", "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "%ff%fe", "x", "-1", "0", "1e99", "99999999999999999999", "9223372036854775807", "-9223372036854775808", "j-aaaaaaaaaaaa", "s-aaaaaaaaaaaa",
	"r-aaaaaaaaaaaa", "a-aaaaaaaaaaaa", "true", "null", "%7B%7D", "%F0%9F%92%A9", "*", "a%20b", "%25", "%27%22%3C", "0x10", "2026-99-99T00:00:00Z", "10m", "-5s", "type%3A", "%28%28%28", "~0~1", strings.Repeat("z", 4000),
}

func (s scribbler) pick(from []string) string { return from[s.IntN(len(from))] }

// json generates a value of a schema, which is sometimes invalid.
func (s scribbler) json(schema map[string]any, depth int) string {
	for ref, _ := schema["$ref"].(string); ref != ""; ref, _ = schema["$ref"].(string) {
		schema, _ = inside(s.document, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...).(map[string]any)
	}
	if depth > 6 || s.IntN(8) == 0 {
		return s.pick(values)
	}
	if one := append(elements(schema["oneOf"]), elements(schema["anyOf"])...); len(one) > 0 {
		schema, _ = one[s.IntN(len(one))].(map[string]any)
		return s.json(schema, depth+1)
	}
	if enum := elements(schema["enum"]); len(enum) > 0 {
		v, _ := json.Marshal(enum[s.IntN(len(enum))])
		return string(v)
	}
	kind, ok := schema["type"].(string)
	if kinds := elements(schema["type"]); !ok && len(kinds) > 0 {
		kind, _ = kinds[0].(string)
	}
	switch kind {
	case "object":
		var fields []string
		properties, _ := schema["properties"].(map[string]any)
		names := make([]string, 0, len(properties))
		for name := range properties {
			names = append(names, name)
		}
		slices.Sort(names)
		required := elements(schema["required"])
		for _, name := range names {
			if of, _ := properties[name].(map[string]any); slices.Contains(required, any(name)) && s.IntN(20) > 0 || s.IntN(3) == 0 {
				fields = append(fields, fmt.Sprintf("%q:%s", name, s.json(of, depth+1)))
			}
		}
		if more, _ := schema["additionalProperties"].(map[string]any); more != nil {
			fields = append(fields, fmt.Sprintf(`"k":%s`, s.json(more, depth+1)))
		}
		return "{" + strings.Join(fields, ",") + "}"
	case "array":
		items, _ := schema["items"].(map[string]any)
		var all []string
		for range s.IntN(4) {
			all = append(all, s.json(items, depth+1))
		}
		return "[" + strings.Join(all, ",") + "]"
	case "integer", "number":
		return s.pick([]string{"0", "1", "-1", "2", "1000", "9223372036854775807", "-9223372036854775808", "1.5"})
	case "boolean":
		return s.pick([]string{"true", "false"})
	case "string":
		return s.pick([]string{`"a"`, `"echo"`, `"/tmp/x"`, `"example.com"`, `"1.0.0"`, `""`, `"0 * * * * *"`, `"5m"`, `"(capability"`, `"` + strings.Repeat("y", 300) + `"`})
	}
	return s.pick(values)
}

// The daemon answers any input to any documented operation with success or a problem, and never
// with an internal error.
func TestFuzzOpenAPIOperations(t *testing.T) {
	h := open(t, "pool: {size: 0}\n")
	s := h.stranger()
	s.http.Timeout = time.Minute
	j := h.running(wire.CreateJail{Name: "target"})
	session, err := h.OpenSession(t.Context(), wire.OpenSession{Name: "target"})
	if err != nil {
		t.Fatal(err)
	}
	all, document := s.operations()
	if len(all) < 100 {
		t.Fatalf("the document has %d operations, want at least 100", len(all))
	}
	rounds := 1
	if thorough {
		rounds = 60
	}
	write := scribbler{rand.New(rand.NewPCG(7, 11)), document}
	known := map[string]string{"id": string(j.ID), "session": session.ID, "name": "target", "seq": "1"}
	parameter := regexp.MustCompile(`\{[^}]*\}`)
	pid := h.cmd.Process.Pid
	sent := 0
	for _, o := range all {
		// Operations that fetch from other servers are not called with random input, and probing
		// the host takes seconds.
		if slices.Contains([]string{"POST /images", "POST /capabilities/import", "POST /market/install", "GET /doctor"}, o.method+" "+o.path) {
			continue
		}
		for range rounds {
			path := parameter.ReplaceAllStringFunc(o.path, func(p string) string {
				if real := known[strings.Trim(p, "{}")]; real != "" && o.method != http.MethodDelete && write.IntN(2) == 0 {
					return real
				}
				return write.pick(words)
			})
			var query []string
			for _, name := range o.query {
				if name == "follow" || strings.HasPrefix(name, "wait") {
					continue
				}
				if write.IntN(3) == 0 {
					query = append(query, url.QueryEscape(name)+"="+write.pick(words))
				}
			}
			if len(query) > 0 {
				path += "?" + strings.Join(query, "&")
			}
			body := ""
			if o.body != nil {
				body = write.json(o.body, 0)
			} else if write.IntN(4) == 0 {
				body = write.pick(values)
			}
			if strings.Contains(body, "wait_ms") || strings.Contains(body, "timeout") { // the daemon would wait
				continue
			}
			sent++
			s.throws(o, path, body)
			if t.Failed() && h.cmd.ProcessState != nil {
				t.Fatal("the daemon has exited")
			}
		}
	}
	t.Logf("%d requests to %d operations", sent, len(all))
	if a := s.do("GET", "/health", ""); a.status != 200 || h.cmd.Process.Pid != pid {
		t.Errorf("/health after the requests = %d, want 200", a.status)
	}
	for line := range strings.Lines(h.log.String()) {
		if strings.Contains(line, "internal error") || strings.Contains(line, "panic") {
			t.Errorf("the daemon logged %s", line)
		}
	}
}

// throws sends a request and checks the response as far as it is available immediately: for a
// stream, only its header.
func (s stranger) throws(o operation, path, body string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), o.method, "http://glasshouse/", strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.URL.Opaque = "//glasshouse" + path
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.Errorf("%s %.200s with %.300s: %v", o.method, path, body, err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode == 500 || resp.StatusCode == 0 {
		s.Errorf("%s %.200s with %.300s: %d", o.method, path, body, resp.StatusCode)
	}
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode >= 400 && resp.StatusCode != 426 && kind != "application/problem+json" && !strings.HasPrefix(o.path, "/answers/") {
		s.Errorf("%s %.200s with %.300s: %d as %q, want a problem document", o.method, path, body, resp.StatusCode, kind)
	}
}
