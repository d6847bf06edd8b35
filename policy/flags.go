package policy

import (
	"slices"
	"strings"

	"glasshouse/policy/shell"
)

// A flags is what the pattern of a command says when its options are taken for
// options: "rm -rf *" is about rm with -r and -f, whether they are written
// -rf, -fr, -r -f or --recursive --force, and wherever they stand.
type flags struct {
	program string
	words   []string // that stand among the arguments, in this order: "push"
	short   []rune
	long    []string
	rest    []pattern // what some argument each must match
}

// longNames are the long names of short options, as far as programs agree.
var longNames = map[rune][]string{
	'f': {"force"}, 'r': {"recursive"}, 'R': {"recursive"}, 'd': {"delete", "dir"}, 'D': {"delete"},
	'i': {"in-place", "interactive"}, 'a': {"all"}, 'n': {"dry-run"}, 'v': {"verbose"},
}

// compileFlags reads the pattern of a command, and returns nil if it names no
// option of a program.
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
				return nil // an option that is a pattern is matched as text
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
		return nil // as text it says the same
	}
	return f
}

// key is a word that must be among the arguments, or "".
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

// mayMatch reports whether there are texts for the holes in argv with which it
// would be matched. A hole is taken for an option anywhere, and for what the
// program is to do only in the first place.
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

// hasShort reports whether the option is given, by its letter or a long name.
func hasShort(argv []string, c rune) bool {
	return hasCluster(argv, c) || c == 'r' && hasCluster(argv, 'R') || c == 'R' && hasCluster(argv, 'r') ||
		slices.ContainsFunc(longNames[c], func(name string) bool { return hasLong(argv, name) })
}

func hasCluster(argv []string, c rune) bool {
	return slices.ContainsFunc(argv, func(a string) bool {
		return len(a) > 1 && a[0] == '-' && a[1] != '-' && strings.ContainsRune(a[1:], c)
	})
}

// hasLong knows that long options can be shortened.
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
