package skill

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/problem"
	"glasshouse/fault"
	"glasshouse/internal/text"
)

const (
	// MaxText is the maximum size of a document in bytes.
	MaxText = 1 << 20

	maxFront = 64 << 10
	maxDepth = 20
	maxList  = 256
)

// A front is the YAML front matter of a document, with its problems.
type front struct {
	file     string
	text     []byte // the whole document
	lines    []int  // offset of each line
	first    int    // lines before the YAML
	before   int    // lines before the Markdown
	problems problem.List
}

// open parses the front matter and returns its mapping and the Markdown after it. A document
// may be YAML only.
func (f *front) open(op string) (*yaml.Node, string, error) {
	if len(f.text) > MaxText {
		return nil, "", fault.Newf(fault.TooLarge, op, f.file, "the skill has %d bytes, which exceeds the maximum of %d", len(f.text), MaxText)
	}
	f.text = bytes.TrimPrefix(f.text, []byte("\uFEFF"))
	for i, c := range f.text {
		if i == 0 || f.text[i-1] == '\n' {
			f.lines = append(f.lines, i)
		}
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			return nil, "", f.fail(op, form.Pos{}, "not a text: it contains the byte %#02x", c)
		}
	}
	if !utf8.Valid(f.text) {
		return nil, "", f.fail(op, form.Pos{}, "not valid UTF-8")
	}
	head, body, err := f.split()
	if err != nil {
		return nil, "", f.fail(op, form.Pos{File: f.file, Line: 1, Col: 1}, "%v", err)
	}
	if len(head) > maxFront {
		return nil, "", fault.Newf(fault.TooLarge, op, f.file, "the front matter has %d bytes, which exceeds the maximum of %d", len(head), maxFront)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(head, &doc); err != nil {
		return nil, "", f.fail(op, f.placeOf(err), "not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return nil, "", f.fail(op, form.Pos{File: f.file, Line: 1, Col: 1}, "the front matter is empty")
	}
	return doc.Content[0], body, nil
}

func (f *front) fail(op string, pos form.Pos, format string, args ...any) error {
	if pos.Line > 0 {
		pos = f.pos(pos.Line-f.first, pos.Col)
	}
	return problem.List{problem.At(f.text, pos, "", format, args...)}.Fault(op)
}

// seen reports invisible characters.
func (f *front) seen() {
	for i, from := range f.lines {
		line, _, _ := bytes.Cut(f.text[from:], []byte("\n"))
		if at := bytes.IndexFunc(line, text.Covert); at >= 0 {
			r, _ := utf8.DecodeRune(line[at:])
			f.problems = append(f.problems, problem.At(f.text, f.pos(i+1-f.first, utf8.RuneCount(line[:at])+1), "", "invisible character %U", r))
			if len(f.problems) > maxList {
				return
			}
		}
	}
}

// split splits a document into its YAML and its Markdown.
func (f *front) split() (head []byte, body string, err error) {
	line, rest, _ := bytes.Cut(f.text, []byte("\n"))
	if string(bytes.TrimRight(line, " \t\r")) != "---" {
		if f.isYAML() {
			return f.text, "", nil
		}
		return nil, "", fmt.Errorf("the document does not begin with --- and YAML front matter")
	}
	f.first = 1
	for at := 0; at < len(rest); {
		line, _, more := bytes.Cut(rest[at:], []byte("\n"))
		if string(bytes.TrimRight(line, " \t\r")) == "---" {
			body := strings.ReplaceAll(string(rest[min(at+len(line)+1, len(rest)):]), "\r\n", "\n")
			trimmed := strings.TrimLeftFunc(body, unicode.IsSpace)
			f.before = f.first + bytes.Count(rest[:at], []byte("\n")) + 1 + strings.Count(body[:len(body)-len(trimmed)], "\n")
			return rest[:at], strings.TrimSpace(trimmed), nil
		}
		if at += len(line) + 1; !more {
			break
		}
	}
	if f.isYAML() {
		return rest, "", nil
	}
	return nil, "", fmt.Errorf("the front matter is not closed: add a line with ---")
}

func (f *front) isYAML() bool {
	return strings.HasSuffix(f.file, ".yaml") || strings.HasSuffix(f.file, ".yml")
}

// pos converts a position in the YAML to one in the document.
func (f *front) pos(line, col int) form.Pos {
	line += f.first
	p := form.Pos{File: f.file, Line: line, Col: col}
	if line >= 1 && line <= len(f.lines) {
		p.Offset = f.lines[line-1]
		for rest := f.text[p.Offset:]; col > 1 && len(rest) > 0 && rest[0] != '\n'; col-- {
			_, size := utf8.DecodeRune(rest)
			rest, p.Offset = rest[size:], p.Offset+size
		}
	}
	return p
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

// placeOf returns the line of an error of the YAML parser.
func (f *front) placeOf(err error) form.Pos {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		if line, err := strconv.Atoi(m[1]); err == nil && line > 0 {
			return form.Pos{Line: line + f.first, Col: 1}
		}
	}
	return form.Pos{Line: f.first + 1, Col: 1}
}

func (f *front) problem(n *yaml.Node, field, format string, args ...any) {
	f.problems = append(f.problems, problem.At(f.text, f.pos(n.Line, n.Column), field, format, args...))
}

// keys maps the allowed keys of a mapping to their parsers.
type keys map[string]func(n *yaml.Node)

func (k keys) names() []string {
	var names []string
	for name := range k {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// entries parses a mapping. Each key must be known and may occur once.
func (f *front) entries(n *yaml.Node, field string, known keys) {
	f.each(n, field, func(key, value *yaml.Node) {
		read := known[key.Value]
		at := join(field, clip(key.Value))
		if read != nil {
			read(value)
			return
		}
		hint := problem.Meant(key.Value, known.names()...)
		switch {
		case hint == "" && slices.Contains(foreign, key.Value):
			hint = "; this key is part of the skill format of other agents: use glasshouse skill import"
		case hint == "":
			hint = "; valid: " + strings.Join(known.names(), ", ")
		}
		f.problem(key, at, "unknown key%s", hint)
	})
}

// each yields the keys and values of a mapping.
func (f *front) each(n *yaml.Node, field string, yield func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		f.problem(n, field, "must be a mapping, not %s", name(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			f.problem(key, field, "a key must be a string, not %s", name(key))
		case seen[key.Value]:
			f.problem(key, join(field, clip(key.Value)), "duplicate key")
		default:
			seen[key.Value] = true
			yield(key, n.Content[i+1])
		}
	}
}

// foreign are keys of the documents that Import reads.
var foreign = []string{"allowed-tools", "license", "metadata", "compatibility"}

func join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}

func clip(s string) string {
	return text.Clip(s, 60)
}

// name describes a node for a message.
func name(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias, which is not supported"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!str":
		return fmt.Sprintf("%q", clip(n.Value))
	case "!!int", "!!float":
		return "the number " + clip(n.Value) + ": put it in quotes"
	}
	return clip(n.Value)
}

// str parses a non-empty string.
func (f *front) str(n *yaml.Node, field string) string {
	switch {
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str":
		f.problem(n, field, "must be a string, not %s", name(n))
	case strings.TrimSpace(n.Value) == "":
		f.problem(n, field, "must not be empty")
	default:
		return strings.TrimSpace(n.Value)
	}
	return ""
}

func (f *front) flag(n *yaml.Node, field string) *bool {
	var b bool
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Decode(&b) != nil {
		f.problem(n, field, "must be true or false, not %s", name(n))
		return nil
	}
	return &b
}

// list parses strings without duplicates. The result is not nil.
func (f *front) list(n *yaml.Node, field string, check func(s string) error) []string {
	all := []string{}
	if n.Kind != yaml.SequenceNode {
		f.problem(n, field, "must be a list, not %s", name(n))
		return all
	}
	if len(n.Content) > maxList {
		f.problem(n, field, "%d elements, at most %d are allowed", len(n.Content), maxList)
		return all
	}
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", field, i)
		s := f.str(item, at)
		if s == "" {
			continue
		}
		switch err := check(s); {
		case err != nil:
			f.problem(item, at, "%v", err)
		case slices.Contains(all, s):
			f.problem(item, at, "duplicate element %s", s)
		default:
			all = append(all, s)
		}
	}
	return all
}
