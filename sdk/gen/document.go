package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A document is the part of OpenAPI 3.1 that the daemon's document uses.
type document struct {
	Paths      map[string]map[string]described
	Components struct{ Schemas map[string]*schema }
}

type described struct {
	OperationID string
	Description string
	Summary     string
	Parameters  []struct {
		Name, In, Description string
		Required              bool
		Schema                *schema
	}
	RequestBody struct {
		Required bool
		Content  map[string]struct{ Schema *schema }
	}
	Responses map[string]struct {
		Content map[string]struct{ Schema *schema }
	}
}

type schema struct {
	Ref                  string `json:"$ref"`
	Type                 any    // a type name, or a list of a type name and "null"
	Enum                 []string
	Items                *schema
	Properties           map[string]*schema
	Required             []string
	AdditionalProperties *schema
	OneOf                []*schema
	Description          string
}

// named returns the name of the schema to which s refers.
func (s *schema) named() string { return strings.TrimPrefix(s.Ref, "#/components/schemas/") }

// kind returns the type of s, and whether it may be null.
func (s *schema) kind() (kind string, null bool) {
	switch t := s.Type.(type) {
	case string:
		return t, false
	case []any:
		for _, v := range t {
			if v == "null" {
				null = true
			} else {
				kind = v.(string)
			}
		}
	}
	return kind, null
}

// A form is a representation of an operation's response.
type form string

const (
	asJSON   form = ""       // no suffix
	asStream form = "stream" // server-sent events
	asLines  form = "lines"  // JSON, one value per line
	asText   form = "text"
	asHTML   form = "html"
	asBytes  form = "bytes"
	asNone   form = "none" // no content
)

// forms lists the media types of responses in order of preference. The first form that an
// operation has gets the method name without a suffix.
var forms = []struct {
	media string
	form  form
}{
	{"application/json", asJSON},
	{"text/event-stream", asStream},
	{"application/x-ndjson", asLines},
	{"text/plain", asText},
	{"text/markdown", asText},
	{"text/html", asHTML},
	{"application/octet-stream", asBytes},
	{"application/zstd", asBytes},
	{"application/x-pcapng", asBytes},
	{"application/x-tar", asBytes},
}

// An operation is one route with one form of response.
type operation struct {
	id           string // getJail
	form         form
	plain        bool // has the method name without a suffix
	doc          string
	method, path string
	places       []parameter // in the path, in its order
	query        []parameter
	body         *schema // JSON
	needsBody    bool
	bytes        string // media type of a body of bytes
	key          bool   // takes an Idempotency-Key
	accept       string
	result       *schema
}

type parameter struct {
	name   string
	schema *schema
	needed bool
}

var methods = []string{"get", "post", "put", "patch", "delete"}

// operations returns all operations, ordered by path. Operations that are served only over a
// WebSocket have no 2xx response and are omitted.
func (d document) operations() ([]operation, error) {
	var all []operation
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		byMethod := slices.SortedFunc(maps.Keys(d.Paths[path]), func(a, b string) int {
			return cmp.Compare(slices.Index(methods, a), slices.Index(methods, b))
		})
		for _, method := range byMethod {
			ops, err := d.Paths[path][method].operations(strings.ToUpper(method), path)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, path, err)
			}
			all = append(all, ops...)
		}
	}
	return all, nil
}

func (o described) operations(method, path string) ([]operation, error) {
	base := operation{id: o.OperationID, doc: cmp.Or(o.Description, o.Summary+"."), method: method, path: path, needsBody: o.RequestBody.Required}
	for _, p := range o.Parameters {
		par := parameter{p.Name, p.Schema, p.Required}
		switch {
		case p.In == "path":
			base.places = append(base.places, par)
		case p.In == "query":
			base.query = append(base.query, par)
		case p.Name == "Idempotency-Key":
			base.key = true
		default:
			return nil, fmt.Errorf("unsupported parameter %s in %s", p.Name, p.In)
		}
	}
	slices.SortFunc(base.places, func(a, b parameter) int {
		return cmp.Compare(strings.Index(path, "{"+a.name+"}"), strings.Index(path, "{"+b.name+"}"))
	})
	for _, media := range slices.Sorted(maps.Keys(o.RequestBody.Content)) {
		if media == "application/json" {
			base.body = o.RequestBody.Content[media].Schema
		} else if base.bytes == "" {
			base.bytes = media
		}
	}
	if base.body != nil && base.body.Ref == "" { // JSON that the daemon must see as it was signed
		base.body, base.bytes = nil, "application/json"
	}
	return o.answers(base)
}

// answers returns one operation for each form of the response.
func (o described) answers(base operation) ([]operation, error) {
	content := map[string]*schema{}
	empty := false
	for status, r := range o.Responses {
		if !strings.HasPrefix(status, "2") {
			continue
		}
		empty = empty || len(r.Content) == 0
		for media, c := range r.Content {
			content[media] = c.Schema
		}
	}
	var all []operation
	for _, f := range forms {
		result, ok := content[f.media]
		delete(content, f.media)
		if !ok || len(all) > 0 && all[len(all)-1].form == f.form {
			continue
		}
		op := base
		op.form, op.accept, op.result, op.plain = f.form, f.media, result, len(all) == 0
		all = append(all, op)
	}
	if len(content) > 0 {
		return nil, fmt.Errorf("unsupported media types of a response: %v", slices.Collect(maps.Keys(content)))
	}
	if len(all) == 0 && empty {
		base.form, base.plain = asNone, true
		all = append(all, base)
	}
	return all, nil
}

// suffix returns the suffix of the method name for the form.
func (o operation) suffix() string {
	if o.plain {
		return ""
	}
	return string(o.form)
}

// loose reports whether the document does not describe the structure of the JSON response.
func (o operation) loose() bool {
	if o.result == nil {
		return true
	}
	if o.result.Ref != "" || len(o.result.OneOf) > 0 {
		return false
	}
	kind, _ := o.result.kind()
	return kind == "string" || kind == ""
}

// sentences splits a text into lines of at most width bytes.
func sentences(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// words splits a camel-case name into words.
func words(camel string) []string {
	var all []string
	start := 0
	for i := 1; i <= len(camel); i++ {
		if i == len(camel) || camel[i] >= 'A' && camel[i] <= 'Z' {
			all = append(all, strings.ToLower(camel[start:i]))
			start = i
		}
	}
	return all
}
