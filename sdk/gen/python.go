package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

const pythonHead = "# Made by `make sdk` from the OpenAPI document. Do not edit.\n"

// pythonTypes returns wire.py, which has a TypedDict for each schema.
func pythonTypes(schemas map[string]*schema) string {
	var b strings.Builder
	b.WriteString(pythonHead + `"""The request and response types of the API, as dictionaries of JSON values.

A field that a response lacks is not in the dictionary: use get(). Unknown fields of later
versions of the daemon are kept.
"""

from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict
`)
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		pythonType(&b, name, schemas[name])
	}
	return b.String()
}

// pythonType writes a TypedDict. Python 3.9 has no Required, so optional fields are in a base
// class NAMEOptions with total=False. Fields whose names are not Python identifiers are in
// another base class, which is written with the functional syntax.
func pythonType(b *strings.Builder, name string, s *schema) {
	var needs, rest, odd []string
	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		switch {
		case !isPythonName(field):
			odd = append(odd, field)
		case slices.Contains(s.Required, field):
			needs = append(needs, field)
		default:
			rest = append(rest, field)
		}
	}
	base := "TypedDict"
	if len(odd) > 0 {
		base = "_" + name + "Odd"
		fmt.Fprintf(b, "\n\n%s = TypedDict(\n    %q,\n    {\n", base, base)
		for _, field := range odd {
			fmt.Fprintf(b, "        %q: %q,\n", field, strings.ReplaceAll(pythonName(s.Properties[field]), `"`, `'`))
		}
		b.WriteString("    },\n    total=False,\n)\n")
	}
	if len(needs) > 0 && len(rest) > 0 {
		fmt.Fprintf(b, "\n\nclass %sOptions(%s, total=False):\n", name, base)
		pythonFields(b, s, rest)
		base = name + "Options"
	}
	if len(needs) > 0 {
		fmt.Fprintf(b, "\n\nclass %s(%s):\n", name, base)
		pythonFields(b, s, needs)
		return
	}
	fmt.Fprintf(b, "\n\nclass %s(%s, total=False):\n", name, base)
	if len(rest) == 0 {
		b.WriteString("    pass\n")
	}
	pythonFields(b, s, rest)
}

func pythonFields(b *strings.Builder, s *schema, fields []string) {
	for _, field := range fields {
		for _, line := range sentences(s.Properties[field].Description, 88) {
			fmt.Fprintf(b, "    # %s\n", line)
		}
		fmt.Fprintf(b, "    %s: %s\n", field, pythonName(s.Properties[field]))
	}
}

// pythonName returns the Python type of a schema for use in wire.py.
func pythonName(s *schema) string {
	name := plainPythonName(s)
	if _, null := s.kind(); null {
		return "Optional[" + name + "]"
	}
	return name
}

func plainPythonName(s *schema) string {
	if s.Ref != "" {
		return s.named()
	}
	if len(s.Enum) > 0 {
		return `Literal["` + strings.Join(s.Enum, `", "`) + `"]`
	}
	switch kind, _ := s.kind(); kind {
	case "string":
		return "str"
	case "integer":
		return "int"
	case "number":
		return "float"
	case "boolean":
		return "bool"
	case "array":
		return "list[" + pythonName(s.Items) + "]"
	case "object":
		if s.AdditionalProperties != nil {
			return "dict[str, " + pythonName(s.AdditionalProperties) + "]"
		}
		return "dict[str, Any]"
	}
	return "Any"
}

// pythonResult returns the Python type of a schema for use outside of wire.py.
func pythonResult(s *schema) string {
	if len(s.OneOf) > 0 {
		var all []string
		for _, one := range s.OneOf {
			all = append(all, pythonResult(one))
		}
		return "Union[" + strings.Join(all, ", ") + "]"
	}
	if s.Ref != "" {
		return "wire." + s.named()
	}
	return pythonName(s)
}

var pythonForms = map[form]struct{ call, result string }{
	asJSON:   {"_json", ""},
	asNone:   {"_none", "None"},
	asStream: {"_sse", "AsyncEvents"},
	asLines:  {"_lines", "AsyncLines"},
	asText:   {"_text", "str"},
	asHTML:   {"_text", "str"},
	asBytes:  {"_open", "AsyncAnswer"},
}

// pythonOperations returns _async/operations.py, which has a method for each operation.
func pythonOperations(ops []operation) string {
	var b strings.Builder
	b.WriteString(pythonHead + `"""One method for each operation of the API."""

from __future__ import annotations

from typing import Any, Literal, Optional, Union, cast

from .. import wire
from .transport import AsyncAnswer, AsyncEvents, AsyncLines, AsyncTransport, Content


class AsyncOperations(AsyncTransport):
    """The API, route by route, with nothing done beyond what is asked.

    A route that answers in more than one form has a method for each: the plain name
    gives the first of JSON, events, lines of JSON, text and bytes.
    """
`)
	for _, op := range ops {
		pythonOperation(&b, op)
	}
	return b.String()
}

func pythonOperation(b *strings.Builder, op operation) {
	name := strings.Join(words(op.id), "_")
	if s := op.suffix(); s != "" {
		name += "_" + s
	}
	f := pythonForms[op.form]
	result := f.result
	if op.form == asJSON {
		result = "Any"
		if !op.loose() {
			result = pythonResult(op.result)
		}
	}
	signature, call := pythonArguments(op)
	fmt.Fprintf(b, "\n    async def %s(self%s) -> %s:\n", name, signature, result)
	doc := sentences(op.doc, 88)
	fmt.Fprintf(b, "        \"\"\"%s", strings.Join(doc, "\n        "))
	if len(doc) > 1 {
		b.WriteString("\n        ")
	}
	b.WriteString("\"\"\"\n")
	what := fmt.Sprintf("await self.%s(%s)", f.call, strings.Join(call, ", "))
	switch {
	case op.form == asJSON && result != "Any":
		fmt.Fprintf(b, "        return cast(%q, %s)\n", result, what)
	case op.form == asNone:
		fmt.Fprintf(b, "        %s\n", what)
	default:
		fmt.Fprintf(b, "        return %s\n", what)
	}
}

// pythonArguments returns a method's parameters and the arguments of its transport call.
func pythonArguments(op operation) (signature string, call []string) {
	path, prefix := fmt.Sprintf("%q", op.path), ""
	for _, p := range op.places {
		signature += ", " + pythonVariable(p.name) + ": " + pythonName(p.schema)
		path = strings.Replace(path, "{"+p.name+"}", "{self._part("+pythonVariable(p.name)+")}", 1)
		prefix = "f"
	}
	call = []string{fmt.Sprintf("%q", op.method), prefix + path}
	switch {
	case op.body != nil && op.needsBody:
		signature += ", body: " + pythonResult(op.body)
		call = append(call, "body=body")
	case op.body != nil:
		signature += ", body: Optional[" + pythonResult(op.body) + "] = None"
		call = append(call, "body=body")
	case op.bytes != "":
		signature += ", content: Content"
		call = append(call, "content=content", "content_type=content_type")
	}
	var named, query []string
	for _, q := range op.query {
		arg := fmt.Sprintf("%s: Optional[%s] = None", pythonVariable(q.name), pythonName(q.schema))
		if q.needed {
			arg = pythonVariable(q.name) + ": " + pythonName(q.schema)
		}
		named = append(named, arg)
		query = append(query, fmt.Sprintf("%q: %s", q.name, pythonVariable(q.name)))
	}
	if len(query) > 0 {
		call = append(call, "query={"+strings.Join(query, ", ")+"}")
	}
	if op.bytes != "" {
		named = append(named, fmt.Sprintf("content_type: str = %q", op.bytes))
	}
	if op.key {
		named = append(named, "idempotency_key: Optional[str] = None")
		call = append(call, "key=idempotency_key")
	}
	if op.form == asStream || op.form == asLines {
		if op.method == "GET" {
			named = append(named, "last_event_id: Optional[str] = None")
			call = append(call, "last=last_event_id")
		}
	}
	if op.accept != "" && op.form != asJSON {
		call = append(call, fmt.Sprintf("accept=%q", op.accept))
	}
	if len(named) > 0 {
		signature += ", *, " + strings.Join(named, ", ")
	}
	return signature, call
}

var pythonWord = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// pythonKeywords lists the Python keywords that could be names of fields.
var pythonKeywords = []string{
	"and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif", "else", "except", "finally", "for",
	"from", "global", "if", "import", "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
}

func isPythonName(s string) bool {
	return pythonWord.MatchString(s) && !slices.Contains(pythonKeywords, s)
}

// pythonVariable returns a valid Python variable name for s, with a trailing underscore if s is
// not one.
func pythonVariable(s string) string {
	if isPythonName(s) {
		return s
	}
	return s + "_"
}
