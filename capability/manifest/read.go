package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/problem"
	"glasshouse/fault"
	"glasshouse/internal/text"
)

// MaxText is the maximum size of a text of manifests in bytes.
const MaxText = 1 << 20

const opRead = "manifest.Read"

// Read parses the manifests of a text: (capability "id" …) forms, or their JSON form if it
// begins with "{" or "[". An error of kind fault.Invalid wraps a problem.List with all
// problems.
func Read(file string, text []byte) ([]*Capability, error) {
	return read(&reader{file: file, src: text})
}

// ReadServer parses the manifest of a tool server, from which the caller derives capabilities.
// It has :stdio :mcp and no :tool.
func ReadServer(file string, text []byte) (*Capability, error) {
	all, err := read(&reader{file: file, src: text, server: true})
	if err != nil {
		return nil, err
	}
	if len(all) != 1 || all[0].Runtime.Stdio != MCPStdio || all[0].Runtime.Tool != (Tool{}) {
		return nil, &fault.Error{Op: "manifest.ReadServer", On: file, Kind: fault.Invalid,
			Err: errors.New("not the manifest of exactly one tool server"), Remedy: "use one manifest with :stdio :mcp and without :tool"}
	}
	return all[0], nil
}

func read(r *reader) ([]*Capability, error) {
	file, text := r.file, r.src
	if len(text) > MaxText {
		return nil, fault.Newf(fault.TooLarge, opRead, file, "the text has %d bytes, which exceeds the maximum of %d", len(text), MaxText)
	}
	var all []*Capability
	if lead := bytes.TrimLeft(text, " \t\r\n"); len(lead) > 0 && (lead[0] == '{' || lead[0] == '[') {
		all = r.readJSON()
	} else {
		all = r.readRTFS()
	}
	if err := r.problems.Fault(opRead); err != nil {
		return nil, err
	}
	return all, nil
}

func (r *reader) readRTFS() []*Capability {
	nodes, err := form.Read(r.file, r.src)
	if err != nil {
		// The message already has the line.
		p := problem.Problem{Message: err.Error()}
		if e, ok := err.(*form.Error); ok {
			p.Pos, p.Message = e.Pos, e.Message
		}
		r.problems = append(r.problems, p)
		return nil
	}
	if len(nodes) == 0 {
		r.problems = append(r.problems, problem.Problem{Message: `the text contains no (capability "id" …)`})
	}
	var all []*Capability
	for _, n := range nodes {
		if n.Kind != form.ListNode || len(n.Items) == 0 || n.Items[0].Atom != form.Value(form.Symbol("capability")) {
			r.problem(n, "", `expected (capability "id" …), got %s`, r.name(n))
			continue
		}
		if len(n.Items) == 1 {
			r.problem(n, "", "the id is missing")
			continue
		}
		all = append(all, r.capability(n, n.Items[1], n.Items[2:]))
	}
	r.unique(nodes, all)
	return all
}

func (r *reader) readJSON() []*Capability {
	r.json = true
	top, p := nodeOfJSON(r.file, r.src)
	if p != nil {
		r.problems = append(r.problems, *p)
		return nil
	}
	nodes := []*form.Node{top}
	if top.Kind == form.VectorNode {
		nodes = r.list(top, "")
		if len(top.Items) == 0 {
			r.problem(top, "", "the text contains no capability")
		}
	}
	var all []*Capability
	for _, n := range nodes {
		if n.Kind != form.MapNode {
			r.problem(n, "", "a capability must be an object, not %s", r.name(n))
			continue
		}
		all = append(all, r.twin(n))
	}
	r.unique(nodes, all)
	return all
}

// twin parses an object, in which the id is an ordinary key.
func (r *reader) twin(n *form.Node) *Capability {
	var id *form.Node
	var rest []*form.Node
	for i := 0; i+1 < len(n.Items); i += 2 {
		if n.Items[i].Atom == form.Value(form.Keyword("capability")) {
			if id != nil {
				r.problem(n.Items[i], "capability", "duplicate key")
			}
			id = n.Items[i+1]
			continue
		}
		rest = append(rest, n.Items[i], n.Items[i+1])
	}
	if id == nil {
		r.problem(n, "capability", "the id is missing")
		id = &form.Node{Atom: "missing", Pos: n.Pos}
	}
	return r.capability(n, id, rest)
}

// unique refuses duplicate ids.
func (r *reader) unique(nodes []*form.Node, all []*Capability) {
	if len(all) != len(nodes) {
		return // another error was reported
	}
	seen := map[string]bool{}
	for i, c := range all {
		if c.ID != "" && seen[c.ID] {
			r.problem(nodes[i], "", "duplicate id %s", c.ID)
		}
		seen[c.ID] = true
	}
}

// dotted matches words joined by dots. Words do not begin or end with - or _, so that __ can
// replace a dot in tool names.
var dotted = regexp.MustCompile(`^[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*(?:\.[a-z0-9]+(?:[-_][a-z0-9]+)*)*$`)

// maxID is the maximum length of an id, in which a dot counts twice: tool names of model APIs
// have this limit and cannot contain dots.
const maxID = 64

// CheckID returns an error if the id of a capability is invalid.
func CheckID(id string) error {
	switch {
	case !dotted.MatchString(id):
		return fmt.Errorf("%.80q is not a valid id: use lower-case words separated by dots, such as places.search, with - or _ within words", id)
	case len(id)+strings.Count(id, ".") > maxID:
		return fmt.Errorf("%q is too long: at most %d characters, a dot counts as two", id, maxID)
	}
	return nil
}

// maxDescription is the maximum length of a description in runes: people read it before
// approval, and models with each request.
const maxDescription = 4096

func (r *reader) description(n *form.Node, field string) string {
	s := r.str(n, field)
	if utf8.RuneCountInString(s) > maxDescription {
		r.problem(n, field, "longer than %d characters", maxDescription)
	}
	if strings.ContainsFunc(s, func(c rune) bool { return text.Covert(c) || unicode.IsControl(c) && c != '\n' && c != '\t' }) {
		r.problem(n, field, "contains invisible characters")
	}
	return s
}

// source returns the source text of a node.
func (r *reader) source(n *form.Node) string {
	if n.Pos.Offset < 0 || n.End > len(r.src) || n.Pos.Offset >= n.End {
		return ""
	}
	return string(r.src[n.Pos.Offset:n.End])
}
