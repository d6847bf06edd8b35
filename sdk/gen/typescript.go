package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

const typescriptHead = "// Made by `make sdk` from the OpenAPI document. Do not edit.\n"

// typescriptTypes returns wire.ts, which has an interface for each schema.
func typescriptTypes(schemas map[string]*schema) string {
	var b strings.Builder
	b.WriteString(typescriptHead + `
/** The request and response types of the API, as JSON values. */

`)
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		s := schemas[name]
		typescriptDoc(&b, "", s.Description)
		fmt.Fprintf(&b, "export interface %s {\n", name)
		for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
			typescriptDoc(&b, "  ", s.Properties[field].Description)
			mark := "?"
			if slices.Contains(s.Required, field) {
				mark = ""
			}
			fmt.Fprintf(&b, "  %s%s: %s;\n", typescriptField(field), mark, typescriptName(s.Properties[field], ""))
		}
		b.WriteString("}\n\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func typescriptDoc(b *strings.Builder, indent, text string) {
	if text != "" {
		fmt.Fprintf(b, "%s/** %s */\n", indent, strings.Join(sentences(strings.ReplaceAll(text, "*/", "* /"), 96), "\n"+indent+" * "))
	}
}

var typescriptWord = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]*$`)

func typescriptField(name string) string {
	if typescriptWord.MatchString(name) {
		return name
	}
	return fmt.Sprintf("%q", name)
}

// typescriptName returns the TypeScript type of a schema. prefix qualifies the types of wire.ts.
func typescriptName(s *schema, prefix string) string {
	name := plainTypescriptName(s, prefix)
	if _, null := s.kind(); null {
		return name + " | null"
	}
	return name
}

func plainTypescriptName(s *schema, prefix string) string {
	switch {
	case s.Ref != "":
		return prefix + s.named()
	case len(s.OneOf) > 0:
		var all []string
		for _, one := range s.OneOf {
			all = append(all, typescriptName(one, prefix))
		}
		return strings.Join(all, " | ")
	case len(s.Enum) > 0:
		return `"` + strings.Join(s.Enum, `" | "`) + `"`
	}
	switch kind, _ := s.kind(); kind {
	case "string", "boolean":
		return kind
	case "integer", "number":
		return "number"
	case "array":
		inner := typescriptName(s.Items, prefix)
		if strings.Contains(inner, "|") {
			inner = "(" + inner + ")"
		}
		return inner + "[]"
	case "object":
		if s.AdditionalProperties != nil {
			return "Record<string, " + typescriptName(s.AdditionalProperties, prefix) + ">"
		}
		return "Record<string, unknown>"
	}
	return "unknown"
}

var typescriptForms = map[form]struct{ call, result string }{
	asJSON:   {"json", ""},
	asNone:   {"none", "void"},
	asStream: {"events", "AsyncIterable<ServerEvent>"},
	asLines:  {"lines", ""},
	asText:   {"text", "string"},
	asHTML:   {"text", "string"},
	asBytes:  {"open", "Answer"},
}

// typescriptOperations returns operations.ts, which has a method for each operation.
func typescriptOperations(ops []operation) string {
	var b strings.Builder
	b.WriteString(typescriptHead + `
import { type Answer, type Content, part, Transport } from "./transport.js";
import type { ServerEvent } from "./sse.js";
import type * as wire from "./wire.js";

/** Options of any call. */
export interface Call {
  /** Ends the call when it is aborted. */
  signal?: AbortSignal;
}

/** Options of operations with an idempotency key. */
export interface Keyed extends Call {
  /** Requests with the same key within a day get the first response. With a key, a call is retried if the connection breaks. */
  idempotencyKey?: string;
}

/** Options of streams that can resume. */
export interface Resumed extends Call {
  /** The id of the last received event. */
  lastEventId?: string;
}

/**
 * The API with one method for each operation.
 *
 * An operation with several forms of response has a method for each form. The name without a
 * suffix is the first of JSON, events, lines of JSON, text and bytes.
 */
export class Operations extends Transport {
`)
	for i, op := range ops {
		if i > 0 {
			b.WriteByte('\n')
		}
		typescriptOperation(&b, op)
	}
	b.WriteString("}\n")
	return b.String()
}

func typescriptOperation(b *strings.Builder, op operation) {
	name := op.id
	if s := op.suffix(); s != "" {
		name += strings.ToUpper(s[:1]) + s[1:]
	}
	f := typescriptForms[op.form]
	result, kind := f.result, ""
	switch {
	case op.form == asJSON && op.loose():
		result, kind = "unknown", "<unknown>"
	case op.form == asJSON:
		result = typescriptName(op.result, "wire.")
		kind = "<" + result + ">"
	case op.form == asLines:
		inner := typescriptName(op.result, "wire.")
		result, kind = "AsyncIterable<"+inner+">", "<"+inner+">"
	}
	arguments, request := typescriptArguments(op)
	typescriptDoc(b, "  ", op.doc)
	fmt.Fprintf(b, "  %s(%s): Promise<%s> {\n", name, strings.Join(arguments, ", "), result)
	fmt.Fprintf(b, "    return this.%s%s({ %s });\n  }\n", f.call, kind, strings.Join(request, ", "))
}

// typescriptArguments returns a method's parameters and the fields of its transport request.
func typescriptArguments(op operation) (arguments, request []string) {
	path := op.path
	for _, p := range op.places {
		arguments = append(arguments, p.name+": "+typescriptName(p.schema, "wire."))
		path = strings.Replace(path, "{"+p.name+"}", "${part("+p.name+")}", 1)
	}
	request = []string{fmt.Sprintf("method: %q", op.method), "path: `" + path + "`"}
	if len(op.places) == 0 {
		request[1] = fmt.Sprintf("path: %q", path)
	}
	switch {
	case op.body != nil:
		value := ""
		if !op.needsBody {
			value = " | undefined"
		}
		arguments = append(arguments, "body: "+typescriptName(op.body, "wire.")+value)
		request = append(request, "body")
	case op.bytes != "":
		arguments = append(arguments, "content: Content")
		request = append(request, "content", fmt.Sprintf("contentType: %q", op.bytes))
	}
	if len(op.query) > 0 {
		var fields []string
		value := " = {}"
		for _, q := range op.query {
			if q.needed {
				fields, value = append(fields, typescriptField(q.name)+": "+typescriptName(q.schema, "wire.")), ""
				continue
			}
			fields = append(fields, typescriptField(q.name)+"?: "+typescriptName(q.schema, "wire.")+" | undefined")
		}
		arguments = append(arguments, "query: { "+strings.Join(fields, "; ")+" }"+value)
		request = append(request, "query")
	}
	kind := "Call"
	switch {
	case op.key:
		kind = "Keyed"
	case op.form == asStream && op.method == "GET":
		kind = "Resumed"
	}
	arguments = append(arguments, "how: "+kind+" = {}")
	if op.accept != "" && op.form != asJSON {
		request = append(request, fmt.Sprintf("accept: %q", op.accept))
	}
	return arguments, append(request, "...how")
}
