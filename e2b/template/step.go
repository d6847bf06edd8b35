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

// A Step is one instruction, as clients send it.
type Step struct {
	Type  string   `json:"type"`
	Args  []string `json:"args"`
	Force bool     `json:"force"` // to be run though it was before
	Files string   `json:"filesHash"`
}

// What a Plan may have.
const (
	maxSteps   = 1000
	maxArgs    = 1024
	maxCommand = 64 << 10
)

// A Plan is what a build is told to do.
type Plan struct {
	Image    string    `json:"fromImage"`
	Registry *Registry `json:"fromImageRegistry"`
	Template string    `json:"fromTemplate"`
	Steps    []Step    `json:"steps"`
	Force    bool      `json:"force"` // all of them
	Start    string    `json:"startCmd"`
	Ready    string    `json:"readyCmd"`
}

// check refuses what no build can be. What a step lacks is said by the build, which names
// the step.
func (p Plan) check() error {
	if (p.Image == "") == (p.Template == "") {
		return invalid("exactly one of fromImage and fromTemplate must be given")
	}
	if len(p.Steps) > maxSteps {
		return invalid("%d steps are over the maximum of %d", len(p.Steps), maxSteps)
	}
	for _, text := range []string{p.Start, p.Ready} {
		if len(text) > maxCommand || strings.Contains(text, "\x00") {
			return invalid("startCmd and readyCmd have at most %d bytes, none of them NUL", maxCommand)
		}
	}
	return p.Registry.check()
}

// The kinds of an instruction.
type (
	// A copying puts files that the client sent into the tree.
	copying struct {
		from, to string
		pattern  bool   // from had a pattern, of which what stands before it is left
		owner    string // user or user:group, by name or number; "" is the user's of that step
		mode     int64  // -1 leaves it
	}
	running   struct{ command, user string }
	assigning struct{ pairs [][2]string }
	moving    struct{ dir string }
	being     struct{ user string }
)

var (
	envName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
	userName  = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,30}$`)
	ownerText = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?$`)
	filesHash = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// parse reads a step. What it returns has been checked as far as that can be done without
// the tree that it is for.
func (s Step) parse() (any, error) {
	if len(s.Args) > maxArgs {
		return nil, invalid("%d arguments are over the maximum of %d", len(s.Args), maxArgs)
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
		return nil, invalid("%s wants an argument", short(kind))
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
		return moving{arg(0)}, nil
	case "USER":
		if !userName.MatchString(arg(0)) {
			return nil, invalid("USER: %q is not the name of a user", short(arg(0)))
		}
		return being{arg(0)}, nil
	}
	return nil, invalid("an instruction %q is not known", short(s.Type))
}

func (s Step) copying(arg func(int) string) (any, error) {
	if arg(1) == "" {
		return nil, invalid("COPY wants what and where to")
	}
	if !filesHash.MatchString(s.Files) {
		return nil, invalid("COPY wants the hash of its files")
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
		if c.mode, err = strconv.ParseInt(arg(3), 8, 16); err != nil || c.mode < 0 || c.mode > 0o7777 {
			return nil, invalid("COPY: %q is not a mode in octal", short(arg(3)))
		}
	}
	return c, nil
}

// beforePattern returns the part of a path that stands before the first name with a
// pattern in it.
func beforePattern(s string) (string, bool, error) {
	clean := path.Clean(s)
	if path.IsAbs(s) || clean == ".." || strings.HasPrefix(clean, "../") {
		return "", false, invalid("COPY: %q leads out of what was sent", short(s))
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
		return nil, invalid("%s wants names, each with a value", kind)
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

// String is a step as people read it.
func (s Step) String() string {
	args := s.Args
	if kind := strings.ToUpper(s.Type); (kind == "COPY" || kind == "ADD") && len(args) > 2 {
		args = args[:2]
	}
	line := strings.ToUpper(short(s.Type)) + " " + strings.Join(args, " ")
	return strings.ToValidUTF8(text.Clip(line, 1000), "�")
}

// maxValue bounds what a value may become: each use of another can double it.
const maxValue = 64 << 10

// expand puts the values of variables in the place of $NAME and ${NAME}. A backslash
// takes the meaning from the dollar after it; anything else stays as it is.
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

// variable reads the name that stands behind a dollar, and how long it is; 0 is none.
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

// stepError is why a build is an error, and at which step.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return fmt.Sprintf("step %s: %v", e.step, e.err) }
func (e *stepError) Unwrap() error { return e.err }
