package snapshot

import (
	"path"
	"strings"
)

// matching returns the first rule of a policy for whose words f returns true, or "".
func matching(rules []string, f func(words []string) bool) string {
	for _, r := range rules {
		if f(strings.Fields(strings.TrimPrefix(r, "exec:"))) {
			return r
		}
	}
	return ""
}

// matchesProgram reports whether a started program matches the words of a rule. The first word
// must match its name or that of its script, and the other words must occur in order in its
// arguments.
func matchesProgram(words, argv []string) bool {
	return len(argv) > 0 && (isCommand(words, argv) || isCommand(words, argv[1:]))
}

// mayRun reports whether a command may run a program that matches the words of a rule. A
// superfluous snapshot does no harm, so it checks each argument where a command could start,
// including shell command lines.
func mayRun(words, argv []string) bool {
	for _, c := range splitCommands(argv) {
		for i := range c {
			if isCommand(words, c[i:]) {
				return true
			}
		}
	}
	return false
}

// splitCommands returns the argument list and the simple commands of all shell command lines
// in its arguments.
func splitCommands(argv []string) [][]string {
	all := [][]string{argv}
	for _, arg := range argv {
		if !strings.ContainsAny(arg, " \t\n;&|()`") {
			continue
		}
		for line := range strings.FieldsFuncSeq(arg, func(r rune) bool { return strings.ContainsRune(";&|()`\n{}", r) }) {
			words := strings.Fields(line)
			for i, w := range words {
				words[i] = strings.Trim(w, `"'$`)
			}
			all = append(all, words)
		}
	}
	return all
}

// isCommand reports whether argv starts with the command and contains the other words in order.
func isCommand(words, argv []string) bool {
	if len(argv) == 0 || len(words) == 0 {
		return false
	}
	name := argv[0]
	if !strings.Contains(words[0], "/") {
		name = path.Base(name)
	}
	if !matchPattern(words[0], name) {
		return false
	}
	rest := words[1:]
	for _, arg := range argv[1:] {
		if len(rest) > 0 && matchPattern(rest[0], arg) {
			rest = rest[1:]
		}
	}
	return len(rest) == 0
}

// matchPattern reports whether s matches the pattern, in which * matches any string.
func matchPattern(pattern, s string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return s == pattern
	}
	s, ok := strings.CutPrefix(s, first)
	for ok && star {
		var piece string
		piece, rest, star = strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(s, piece)
		}
		var after string
		_, after, ok = strings.Cut(s, piece)
		if ok {
			s = after
		}
	}
	return ok
}
