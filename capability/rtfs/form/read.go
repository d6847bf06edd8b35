package form

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"glasshouse/internal/text"
)

// MaxNesting is the maximum nesting depth of brackets.
const MaxNesting = 500

// maxSize is the maximum size of a text in bytes.
const maxSize = 16 << 20

// Read parses a text and returns its nodes in order. An error is an *Error of kind "ParseError"
// with a position and an excerpt of the source in its message.
func Read(file string, src []byte) ([]*Node, error) {
	l, err := newLexer(file, src)
	if err != nil {
		return nil, err
	}
	r := &reader{lexer: l}
	var nodes []*Node
	for {
		n, err := r.node()
		if err != nil {
			return nil, err
		}
		if n == nil {
			return nodes, nil
		}
		nodes = append(nodes, n)
	}
}

func newLexer(file string, src []byte) (*lexer, error) {
	start := Pos{File: file, Line: 1, Col: 1}
	if len(src) > maxSize {
		return nil, &Error{Kind: "ParseError", Pos: start, Message: fmt.Sprintf("the text is longer than %d bytes", maxSize)}
	}
	l := &lexer{src: string(src), pos: start}
	if !utf8.Valid(src) {
		for i, r := range l.src {
			if r == utf8.RuneError && !strings.HasPrefix(l.src[i:], "\ufffd") {
				return nil, l.failAt(i, "this is not UTF-8")
			}
		}
	}
	return l, nil
}

// A reader builds nodes from tokens.
type reader struct {
	*lexer
	depth    int
	shortFns int // number of open #(
}

// token returns the next token that is not a comment.
func (r *reader) token() (token, error) {
	for {
		t, err := r.next()
		if err != nil || t.kind != commentToken {
			return t, err
		}
	}
}

// node reads one node, or returns nil at the end of the text.
func (r *reader) node() (*Node, error) {
	t, err := r.token()
	if err != nil || t.kind == endToken {
		return nil, err
	}
	return r.begin(t)
}

// begin reads the node that begins with a token.
func (r *reader) begin(t token) (*Node, error) {
	if r.depth++; r.depth > MaxNesting {
		return nil, r.fail(t.pos, "nested more than %d levels deep", MaxNesting)
	}
	defer func() { r.depth-- }()
	switch t.kind {
	case openToken:
		return r.collection(t)
	case prefixToken:
		if t.text == "^" {
			return r.meta(t)
		}
		return r.prefixed(t)
	case closeToken:
		return nil, r.fail(t.pos, "unexpected %s", t.text)
	}
	if s, ok := t.value.(Symbol); ok && strings.HasPrefix(string(s), ".") {
		return nil, r.fail(t.pos, "%s calls a method: it must be the first in its parentheses", s)
	}
	return &Node{Kind: AtomNode, Atom: t.value, Pos: t.pos, End: t.end}, nil
}

// closing maps opening brackets to closing ones.
var closing = map[string]string{"(": ")", "#(": ")", "[": "]", "{": "}"}

func (r *reader) collection(open token) (*Node, error) {
	n := &Node{Pos: open.pos}
	switch open.text {
	case "(", "#(":
		n.Kind = ListNode
	case "[":
		n.Kind = VectorNode
	case "{":
		n.Kind = MapNode
	}
	if open.text == "#(" {
		if r.shortFns++; r.shortFns > 1 {
			return nil, r.fail(open.pos, "#( cannot be nested in #(: write one as (fn [x] …)")
		}
		defer func() { r.shortFns-- }()
	}
	if err := r.items(open, n); err != nil {
		return nil, err
	}
	if n.Kind == MapNode && len(n.Items)%2 != 0 {
		return nil, r.fail(n.Items[len(n.Items)-1].Pos, "this key has no value")
	}
	if open.text == "#(" {
		return shortFn(n), nil
	}
	return n, nil
}

// items reads the contents of brackets.
func (r *reader) items(open token, n *Node) error {
	for {
		t, err := r.token()
		switch {
		case err != nil:
			return err
		case t.kind == endToken:
			return r.fail(open.pos, "this %s is never closed", open.text)
		case t.kind == closeToken && t.text == closing[open.text]:
			n.End = t.end
			return nil
		case t.kind == closeToken:
			return r.fail(t.pos, "%s does not close the %s of %d:%d", t.text, open.text, open.pos.Line, open.pos.Col)
		}
		if method, ok := t.value.(Symbol); ok && n.Kind == ListNode && len(n.Items) == 0 && len(method) > 1 && method[0] == '.' {
			t.value = method[1:] // (.method target) is (method target)
		}
		item, err := r.begin(t)
		if err != nil {
			return err
		}
		n.Items = append(n.Items, item)
	}
}

// abbreviations maps prefixes to the forms that they abbreviate.
var abbreviations = map[string]Symbol{"'": "quote", "`": "quasiquote", "~": "unquote", "~@": "unquote-splicing"}

func (r *reader) prefixed(t token) (*Node, error) {
	item, err := r.behind(t)
	if err != nil {
		return nil, err
	}
	head := &Node{Kind: AtomNode, Atom: abbreviations[t.text], Pos: t.pos, End: t.end}
	return &Node{Kind: ListNode, Items: []*Node{head, item}, Pos: t.pos, End: item.End}, nil
}

// behind reads the node after a prefix.
func (r *reader) behind(t token) (*Node, error) {
	next, err := r.token()
	if err != nil {
		return nil, err
	}
	if next.kind == endToken || next.kind == closeToken {
		return nil, r.fail(t.pos, "%s must be followed by a form", t.text)
	}
	return r.begin(next)
}

// meta reads ^{…} x and ^:key x. The key :delegation is followed by its own arguments.
func (r *reader) meta(t token) (*Node, error) {
	m, err := r.behind(t)
	if err != nil {
		return nil, err
	}
	if _, ok := m.Atom.(Keyword); !ok && m.Kind != MapNode {
		return nil, r.fail(m.Pos, "metadata must be a map or a keyword")
	}
	if m.Atom == Keyword("delegation") {
		if m, err = r.delegation(t, m); err != nil {
			return nil, err
		}
	}
	item, err := r.behind(t)
	if err != nil {
		return nil, err
	}
	item.Meta = append([]*Node{m}, item.Meta...)
	return item, nil
}

// delegation reads the target of :delegation: :local, :local-model "id" or :remote "id".
func (r *reader) delegation(t token, key *Node) (*Node, error) {
	target, err := r.behind(t)
	if err != nil {
		return nil, err
	}
	switch target.Atom {
	case Keyword("local"):
	case Keyword("local-model"), Keyword("remote"):
		model, err := r.behind(t)
		if err != nil {
			return nil, err
		}
		if _, ok := model.Atom.(string); !ok {
			return nil, r.fail(model.Pos, "%s needs the name of a model, a string", Text(target.Atom))
		}
		target = &Node{Kind: VectorNode, Items: []*Node{target, model}, Pos: target.Pos, End: model.End}
	default:
		return nil, r.fail(target.Pos, "the target of :delegation must be :local, :local-model or :remote")
	}
	return &Node{Kind: MapNode, Items: []*Node{key, target}, Pos: key.Pos, End: target.End}, nil
}

// shortFn converts the body of #(…) to (fn [%1 %2] (…)).
func shortFn(body *Node) *Node {
	most, rest := 0, false
	numberArguments(body, &most, &rest)
	at := func(n *Node) *Node { n.Pos, n.End = body.Pos, body.End; return n }
	params := at(&Node{Kind: VectorNode})
	for i := range most {
		params.Items = append(params.Items, at(&Node{Atom: Symbol("%" + strconv.Itoa(i+1))}))
	}
	if rest {
		params.Items = append(params.Items, at(&Node{Atom: Symbol("&")}), at(&Node{Atom: Symbol("%&")}))
	}
	return at(&Node{Kind: ListNode, Items: []*Node{at(&Node{Atom: Symbol("fn")}), params, body}})
}

// numberArguments replaces % by %1 and finds the highest argument number.
func numberArguments(n *Node, most *int, rest *bool) {
	if name, ok := n.Atom.(Symbol); ok {
		switch i, err := strconv.Atoi(strings.TrimPrefix(string(name), "%")); {
		case name == "%":
			n.Atom = Symbol("%1")
			*most = max(*most, 1)
		case name == "%&":
			*rest = true
		case name[0] == '%' && err == nil && 0 < i && i <= 20:
			*most = max(*most, i)
		}
	}
	for _, item := range n.Items {
		numberArguments(item, most, rest)
	}
}

// failure returns an error at a position, with an excerpt of the source.
func failure(src string, pos Pos, message string) *Error {
	return &Error{Kind: "ParseError", Pos: pos, Message: message + "\n" + excerpt(src, pos)}
}

// Excerpt returns the line at a position with a marker below it.
func Excerpt(src []byte, pos Pos) string { return excerpt(string(src), pos) }

func excerpt(src string, pos Pos) string {
	if pos.Offset > len(src) || pos.Line < 1 {
		return ""
	}
	const before, after = 60, 40 // bytes shown of a long line
	start := strings.LastIndexByte(src[:pos.Offset], '\n') + 1
	start = max(start, pos.Offset-before)
	end := len(src)
	if n := strings.IndexByte(src[pos.Offset:], '\n'); n >= 0 {
		end = pos.Offset + n
	}
	end = min(end, pos.Offset+after)
	line := strconv.Itoa(pos.Line)
	return fmt.Sprintf("  %s | %s%s\n  %s | %s^",
		line, plain(src[start:pos.Offset]), plain(src[pos.Offset:end]),
		strings.Repeat(" ", len(line)), strings.Repeat(" ", utf8.RuneCountInString(plain(src[start:pos.Offset]))))
}

// plain replaces hidden characters of s by spaces and removes invalid UTF-8.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return -1 // part of a truncated character
		case text.Hidden(r): // a terminal would interpret it, or reorder the line
			return ' '
		}
		return r
	}, s)
}

func short(s string) string {
	return plain(text.Clip(s, 40))
}
