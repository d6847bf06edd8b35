package snapshot

import (
	"path"
	"strings"
)

// matching returns the first of a policy's rules whose words f finds, or "".
func matching(rules []string, f func(words []string) bool) string {
	for _, r := range rules {
		if f(strings.Fields(strings.TrimPrefix(r, "exec:"))) {
			return r
		}
	}
	return ""
}

// inProgram reports whether a program that has begun is the one meant: its name,
// or that of a script it reads, is the first word, and the others are among its
// arguments, in their order.
func inProgram(words, argv []string) bool {
	return len(argv) > 0 && (begins(words, argv) || begins(words, argv[1:]))
}

// inCommand reports whether a command may run the one meant. A snapshot too many
// harms nobody, so it looks at each place where a command could begin, also in a
// line for a shell.
func inCommand(words, argv []string) bool {
	for _, c := range simple(argv) {
		for i := range c {
			if begins(words, c[i:]) {
				return true
			}
		}
	}
	return false
}

// simple cuts a command, and the lines for a shell among its arguments, into
// commands of words.
func simple(argv []string) [][]string {
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

// begins reports whether argv is a command with these words.
func begins(words, argv []string) bool {
	if len(argv) == 0 || len(words) == 0 {
		return false
	}
	name := argv[0]
	if !strings.Contains(words[0], "/") {
		name = path.Base(name)
	}
	if !like(words[0], name) {
		return false
	}
	rest := words[1:]
	for _, arg := range argv[1:] {
		if len(rest) > 0 && like(rest[0], arg) {
			rest = rest[1:]
		}
	}
	return len(rest) == 0
}

// like reports whether s is the pattern, in which * stands for anything.
func like(pattern, s string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return s == pattern
	}
	s, ok := strings.CutPrefix(s, first)
	for ok && star {
		var piece string
		if piece, rest, star = strings.Cut(rest, "*"); !star {
			return strings.HasSuffix(s, piece)
		}
		var after string
		if _, after, ok = strings.Cut(s, piece); ok {
			s = after
		}
	}
	return ok
}
