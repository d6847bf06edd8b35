package template

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"glasshouse/internal/text"
)

// A Step is one instruction from a client.
type Step struct {
	Type  string   `json:"type"`
	Args  []string `json:"args"`
	Force bool     `json:"force"` // run it even if its result is cached
	Files string   `json:"filesHash"`
}

// Limits of a Plan.
const (
	maxSteps   = 1000
	maxArgs    = 1024
	maxCommand = 64 << 10
)

// A Plan describes the steps of a build.
type Plan struct {
	Image    string    `json:"fromImage"`
	Registry *Registry `json:"fromImageRegistry"`
	Template string    `json:"fromTemplate"`
	Steps    []Step    `json:"steps"`
	Force    bool      `json:"force"` // for all steps
	Start    string    `json:"startCmd"`
	Ready    string    `json:"readyCmd"`
}

// check rejects invalid plans. Errors in a single step are reported by the build, which names
// the step.
func (p Plan) check() error {
	if (p.Image == "") == (p.Template == "") {
		return invalid("exactly one of fromImage and fromTemplate must be given")
	}
	if len(p.Steps) > maxSteps {
		return invalid("%d steps exceed the maximum of %d", len(p.Steps), maxSteps)
	}
	for _, text := range []string{p.Start, p.Ready} {
		if len(text) > maxCommand || strings.Contains(text, "\x00") {
			return invalid("startCmd and readyCmd have at most %d bytes, none of them NUL", maxCommand)
		}
	}
	return p.Registry.check()
}

// The kinds of instructions.
type (
	// A copying copies uploaded files to the tree.
	copying struct {
		from, to string
		pattern  bool   // from is the part of a path before its first pattern
		owner    string // user or user:group, by name or number; "" is the current user
		mode     int64  // -1 leaves it unchanged
	}
	running     struct{ command, user string }
	assigning   struct{ pairs [][2]string }
	settingDir  struct{ dir string }
	settingUser struct{ user string }
)

var (
	envName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
	userName  = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,30}$`)
	ownerText = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?$`)
	filesHash = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// parse parses a step. It checks everything that does not depend on the tree.
func (s Step) parse() (any, error) {
	if len(s.Args) > maxArgs {
		return nil, invalid("%d arguments exceed the maximum of %d", len(s.Args), maxArgs)
	}
	for _, a := range s.Args {
		if len(a) > maxCommand || strings.Contains(a, "\x00") {
			return nil, invalid("an argument has at most %d bytes, none of them NUL", maxCommand)
		}
	}
	arg := func(i int) string {
		if i < len(s.Args) {
			return s.Args[i]
		}
		return ""
	}
	kind := strings.ToUpper(s.Type)
	if arg(0) == "" && kind != "ENV" && kind != "ARG" {
		return nil, invalid("%s needs an argument", short(kind))
	}
	switch kind {
	case "COPY", "ADD":
		return s.copying(arg)
	case "RUN":
		if arg(1) != "" && !userName.MatchString(arg(1)) {
			return nil, invalid("RUN: %q is not the name of a user", short(arg(1)))
		}
		return running{arg(0), arg(1)}, nil
	case "ENV", "ARG":
		return s.assigning(kind)
	case "WORKDIR":
		return settingDir{arg(0)}, nil
	case "USER":
		if !userName.MatchString(arg(0)) {
			return nil, invalid("USER: %q is not the name of a user", short(arg(0)))
		}
		return settingUser{arg(0)}, nil
	}
	return nil, invalid("unknown instruction %q", short(s.Type))
}

func (s Step) copying(arg func(int) string) (any, error) {
	if arg(1) == "" {
		return nil, invalid("COPY needs a source and a destination")
	}
	if !filesHash.MatchString(s.Files) {
		return nil, invalid("COPY needs the hash of its files")
	}
	c := copying{to: arg(1), owner: arg(2), mode: -1}
	var err error
	if c.from, c.pattern, err = beforePattern(arg(0)); err != nil {
		return nil, err
	}
	if c.owner != "" && !ownerText.MatchString(c.owner) {
		return nil, invalid("COPY: %q is not an owner", short(c.owner))
	}
	if arg(3) != "" {
		c.mode, err = strconv.ParseInt(arg(3), 8, 16)
		if err != nil || c.mode < 0 || c.mode > 0o7777 {
			return nil, invalid("COPY: %q is not a mode in octal", short(arg(3)))
		}
	}
	return c, nil
}

// beforePattern returns the part of a path before the first component with a pattern.
func beforePattern(s string) (string, bool, error) {
	clean := path.Clean(s)
	if path.IsAbs(s) || clean == ".." || strings.HasPrefix(clean, "../") {
		return "", false, invalid("COPY: %q is outside of the uploaded files", short(s))
	}
	parts := strings.Split(clean, "/")
	i := slices.IndexFunc(parts, func(part string) bool { return strings.ContainsAny(part, `*?[{`) })
	if i < 0 {
		return clean, false, nil
	}
	return path.Join(append([]string{"."}, parts[:i]...)...), true, nil
}

func (s Step) assigning(kind string) (any, error) {
	if len(s.Args) == 0 || len(s.Args)%2 != 0 {
		return nil, invalid("%s needs names, each with a value", kind)
	}
	var e assigning
	for pair := range slices.Chunk(s.Args, 2) {
		if !envName.MatchString(pair[0]) {
			return nil, invalid("%s: %q is not the name of a variable", kind, short(pair[0]))
		}
		e.pairs = append(e.pairs, [2]string{pair[0], pair[1]})
	}
	return e, nil
}

// String returns the step as text for the log.
func (s Step) String() string {
	args := s.Args
	if kind := strings.ToUpper(s.Type); (kind == "COPY" || kind == "ADD") && len(args) > 2 {
		args = args[:2]
	}
	line := strings.ToUpper(short(s.Type)) + " " + strings.Join(args, " ")
	return strings.ToValidUTF8(text.Clip(line, 1000), "�")
}

// maxValue limits expanded values: each reference to another value can double the size.
const maxValue = 64 << 10

// expand replaces $NAME and ${NAME} by the values of variables. A backslash escapes the dollar
// after it; all other text stays unchanged.
func expand(value string, of func(name string) string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(value); {
		switch {
		case value[i] == '\\' && i+1 < len(value) && value[i+1] == '$':
			b.WriteByte('$')
			i += 2
		case value[i] == '$':
			name, n := variable(value[i+1:])
			if n == 0 {
				b.WriteByte('$')
			} else {
				b.WriteString(of(name))
			}
			i += 1 + n
		default:
			b.WriteByte(value[i])
			i++
		}
		if b.Len() > maxValue {
			return "", invalid("a value has more than %d bytes", maxValue)
		}
	}
	return b.String(), nil
}

// variable parses the name after a dollar. It returns the number of bytes, or 0 if there is no
// name.
func variable(s string) (name string, n int) {
	if inner, ok := strings.CutPrefix(s, "{"); ok {
		name, _, closed := strings.Cut(inner, "}")
		if !closed || !envName.MatchString(name) {
			return "", 0
		}
		return name, len(name) + 2
	}
	for n < len(s) && (s[n] == '_' || s[n] >= 'A' && s[n] <= 'Z' || s[n] >= 'a' && s[n] <= 'z' || n > 0 && s[n] >= '0' && s[n] <= '9') {
		n++
	}
	return s[:n], n
}

// stepError is the error of a build, with the step that caused it.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return fmt.Sprintf("step %s: %v", e.step, e.err) }
func (e *stepError) Unwrap() error { return e.err }
