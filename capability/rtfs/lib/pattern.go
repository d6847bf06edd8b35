package lib

import (
	"container/list"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"

	"glasshouse/capability/rtfs/form"
)

var patterns = []Builtin{
	{"re-matches", 2, 2, "[pattern s]", "Whether a regular expression (RE2) matches the whole string.", reMatches},
	{"re-find", 2, 2, "[pattern s]", "The first part of a string that a pattern matches, or nil.", reFind},
	{"re-seq", 2, 2, "[pattern s]", "All parts of a string that a pattern matches.", reSeq},
	{"re-groups", 2, 2, "[pattern s]", "The first match and what its groups matched, or nil.", reGroups},
	{"re-replace", 3, 3, "[pattern s new]", "The string with every match replaced by new, in which $1 and ${name} are the matches of groups.", reReplace},
}

// A pattern is a compiled regular expression.
type pattern struct {
	text    string
	find    *regexp.Regexp
	longest *regexp.Regexp // leftmost-longest matching
	size    int64          // maximum number of states per character
}

// Limits of patterns. They bound the memory that compiling a pattern needs.
const (
	longestPattern = 4096 // bytes
	largestPattern = 10_000
)

func compilePattern(op, text string) (*pattern, error) {
	if len(text) > longestPattern {
		return nil, invalid(op, "a pattern has at most %d bytes, got %d", longestPattern, len(text))
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, notAPattern(op, text, err)
	}
	p := &pattern{text: text, size: states(parsed)}
	if p.size > largestPattern {
		return nil, invalid(op, "the pattern %s repeats too much: it has %d states, of %d", form.Text(text), p.size, largestPattern)
	}
	if p.find, err = regexp.Compile(text); err != nil {
		return nil, notAPattern(op, text, err)
	}
	p.longest = regexp.MustCompile(text)
	p.longest.Longest()
	return p, nil
}

func notAPattern(op, text string, err error) error {
	return invalid(op, "%s is not a valid pattern: %v", form.Text(text), err)
}

// states returns the size of a pattern with its repetitions expanded.
func states(re *syntax.Regexp) int64 {
	n := int64(1 + len(re.Rune))
	if re.Op == syntax.OpCharClass {
		n = 1
	}
	for _, sub := range re.Sub {
		n += states(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= int64(max(re.Min, re.Max, 1))
	}
	return n
}

// compiled caches the most recently used patterns of all programs. A compiled pattern does not
// depend on the program.
var compiled = struct {
	sync.Mutex
	byText map[string]*list.Element
	used   *list.List // elements are *pattern, most recently used first
}{byText: map[string]*list.Element{}, used: list.New()}

// patternsKept is the size of the cache. With largestPattern it bounds the memory of the cache.
const patternsKept = 64

// patternAnd returns the pattern and string arguments of a function. It charges for the worst
// case of a search: RE2 needs time proportional to the size of the pattern for each byte.
func patternAnd(c Call, op string, args []form.Value) (*pattern, string, error) {
	expr, err := text(op, args, 0)
	if err != nil {
		return nil, "", err
	}
	s, err := text(op, args, 1)
	if err != nil {
		return nil, "", err
	}
	p, err := lookUp(c, op, expr)
	if err != nil {
		return nil, "", err
	}
	return p, s, c.Step(1 + int64(len(s))*p.size/16)
}

func lookUp(c Call, op, expr string) (*pattern, error) {
	// Charged also on a cache hit, so that a program takes the same number of steps each time.
	if err := c.Step(16 + int64(len(expr))); err != nil {
		return nil, err
	}
	compiled.Lock()
	defer compiled.Unlock()
	if e, ok := compiled.byText[expr]; ok {
		compiled.used.MoveToFront(e)
		return e.Value.(*pattern), nil
	}
	p, err := compilePattern(op, expr)
	if err != nil {
		return nil, err
	}
	compiled.byText[expr] = compiled.used.PushFront(p)
	if compiled.used.Len() > patternsKept {
		oldest := compiled.used.Remove(compiled.used.Back()).(*pattern)
		delete(compiled.byText, oldest.text)
	}
	return p, nil
}

func reMatches(c Call, args []form.Value) (form.Value, error) {
	p, s, err := patternAnd(c, "re-matches", args)
	if err != nil {
		return nil, err
	}
	at := p.longest.FindStringIndex(s)
	return at != nil && at[0] == 0 && at[1] == len(s), nil
}

func reFind(c Call, args []form.Value) (form.Value, error) {
	p, s, err := patternAnd(c, "re-find", args)
	if err != nil {
		return nil, err
	}
	at := p.find.FindStringIndex(s)
	if at == nil {
		return nil, nil
	}
	return s[at[0]:at[1]], nil
}

func reGroups(c Call, args []form.Value) (form.Value, error) {
	p, s, err := patternAnd(c, "re-groups", args)
	if err != nil {
		return nil, err
	}
	at := p.find.FindStringSubmatchIndex(s)
	if at == nil {
		return nil, nil
	}
	if err := charge(c, len(at)/2, element); err != nil {
		return nil, err
	}
	groups := form.Vector{}
	for i := 0; i < len(at); i += 2 {
		if at[i] < 0 {
			groups = append(groups, nil)
		} else {
			groups = append(groups, s[at[i]:at[i+1]])
		}
	}
	return groups, nil
}

func reSeq(c Call, args []form.Value) (form.Value, error) {
	p, s, err := patternAnd(c, "re-seq", args)
	if err != nil {
		return nil, err
	}
	found := form.Vector{}
	err = p.eachMatch(c, s, func(match string) error {
		found = append(found, match)
		return charge(c, 1, 2*element)
	})
	return found, err
}

func reReplace(c Call, args []form.Value) (form.Value, error) {
	p, s, err := patternAnd(c, "re-replace", args)
	if err != nil {
		return nil, err
	}
	template, err := text("re-replace", args, 2)
	if err != nil {
		return nil, err
	}
	// A template may refer to a group several times.
	named := int64(strings.Count(template, "$"))
	most := int64(len(s))
	err = p.eachMatch(c, s, func(match string) error {
		most += int64(len(template)) + named*int64(len(match))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := c.Alloc(most); err != nil {
		return nil, err
	}
	return p.find.ReplaceAllString(s, template), nil
}

// enough is the panic value that stops a search of package regexp, which cannot be cancelled
// otherwise.
type enough struct{ err error }

// eachMatch calls f for every match. The search for the next match may read the whole string
// even if the match is short, so eachMatch checks the time limit between matches. It stops at
// the first error of f.
func (p *pattern) eachMatch(c Call, s string, f func(match string) error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case enough:
			err = r.err
		default:
			panic(r)
		}
	}()
	p.find.ReplaceAllStringFunc(s, func(match string) string {
		err := c.Step(1)
		if err == nil {
			err = c.Step(0)
		}
		if err == nil {
			err = f(match)
		}
		if err != nil {
			panic(enough{err})
		}
		return ""
	})
	return nil
}
