package policy

import (
	"slices"
	"strings"

	"glasshouse/policy/shell"
)

// A flags is the pattern of a command with its options interpreted: "rm -rf *" matches rm with
// -r and -f, whether they are written -rf, -fr, -r -f or --recursive --force, at any position.
type flags struct {
	program string
	words   []string // literal arguments in this order: "push"
	short   []rune
	long    []string
	rest    []pattern // patterns that some argument must match
}

// longNames are the long names of short options on which programs agree.
var longNames = map[rune][]string{
	'f': {"force"}, 'r': {"recursive"}, 'R': {"recursive"}, 'd': {"delete", "dir"}, 'D': {"delete"},
	'i': {"in-place", "interactive"}, 'a': {"all"}, 'n': {"dry-run"}, 'v': {"verbose"},
}

// compileFlags parses the pattern of a command. It returns nil if the pattern has no options.
func compileFlags(text string) *flags {
	all := strings.Fields(text)
	if len(all) < 2 || strings.ContainsAny(all[0], "*?") {
		return nil
	}
	f := &flags{program: all[0]}
	options := 0
	for _, w := range all[1:] {
		if len(w) > 1 && w[0] == '-' && w != "--" {
			options++
		}
		switch {
		case w == "*":
		case strings.ContainsAny(w, "*?"):
			if strings.HasPrefix(w, "-") {
				return nil // an option with a wildcard is matched as text
			}
			f.rest = append(f.rest, compilePattern(w, ""))
		case strings.HasPrefix(w, "--") && len(w) > 2:
			f.long = append(f.long, w[2:])
		case strings.HasPrefix(w, "-") && len(w) > 4: // "-delete" is one option, not six
			f.rest = append(f.rest, compilePattern(w, ""))
		case strings.HasPrefix(w, "-") && len(w) > 1 && w != "--":
			f.short = append(f.short, []rune(w[1:])...)
		default:
			f.words = append(f.words, w)
		}
	}
	if options == 0 {
		return nil // equivalent to the text pattern
	}
	return f
}

// key returns a word that must be among the arguments, or "".
func (f *flags) key() string {
	if len(f.words) > 0 {
		return f.words[0]
	}
	return ""
}

func (f *flags) match(argv []string) bool {
	if len(argv) < 2 || shell.Base(argv[0]) != f.program {
		return false
	}
	words, given := f.words, argv[1:]
	for _, a := range argv[1:] {
		if len(words) > 0 && a == words[0] {
			words = words[1:]
		}
	}
	if len(words) > 0 {
		return false
	}
	if end := slices.Index(given, "--"); end >= 0 {
		given = given[:end]
	}
	for _, c := range f.short {
		if !hasShort(given, c) {
			return false
		}
	}
	for _, name := range f.long {
		if !hasLong(given, name) && !slices.ContainsFunc(shortOf(name), func(c rune) bool { return hasCluster(given, c) }) {
			return false
		}
	}
	for i := range f.rest {
		if !slices.ContainsFunc(argv[1:], f.rest[i].matches) {
			return false
		}
	}
	return true
}

// mayMatch reports whether some texts for the holes in argv would match. A hole can be an
// option at any position, but a subcommand only in the first.
func (f *flags) mayMatch(argv []string) bool {
	if len(argv) < 2 || shell.Base(argv[0]) != f.program {
		return false
	}
	if strings.Contains(argv[1], shell.Hole) {
		return true
	}
	words := f.words
	for _, a := range argv[1:] {
		if len(words) > 0 && a == words[0] {
			words = words[1:]
		}
	}
	return len(words) == 0
}

// hasShort reports whether the option is present, by its letter or a long name.
func hasShort(argv []string, c rune) bool {
	return hasCluster(argv, c) || c == 'r' && hasCluster(argv, 'R') || c == 'R' && hasCluster(argv, 'r') ||
		slices.ContainsFunc(longNames[c], func(name string) bool { return hasLong(argv, name) })
}

func hasCluster(argv []string, c rune) bool {
	return slices.ContainsFunc(argv, func(a string) bool {
		return len(a) > 1 && a[0] == '-' && a[1] != '-' && strings.ContainsRune(a[1:], c)
	})
}

// hasLong also recognises abbreviated long options (getopt_long(3)).
func hasLong(argv []string, name string) bool {
	return slices.ContainsFunc(argv, func(a string) bool {
		given, ok := strings.CutPrefix(a, "--")
		given, _, _ = strings.Cut(given, "=")
		return ok && given != "" && (strings.HasPrefix(name, given) || given == name)
	})
}

func shortOf(name string) []rune {
	var all []rune
	for c, names := range longNames {
		if slices.Contains(names, name) {
			all = append(all, c)
		}
	}
	return all
}
