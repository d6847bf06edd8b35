package shell

import "strings"

// options describes the option syntax of a program. Options that are not listed are
// unsupported.
type options struct {
	flags string // short ones that take nothing: "ivk0"
	args  string // short options with an argument, attached or separate
	maybe string // short options with an optional attached argument
	longs string // long ones: "foreground kill-after= color?"
	digit bool   // -5 is an option
	ends  string // short options with an argument, after which no options are parsed
}

// An option is a parsed option; its name is "k" or "kill-after".
type option struct {
	name  string
	value field
}

// split parses the options at the beginning of args and returns the number of arguments they
// occupy. bad is the reason if they cannot be parsed.
func (o options) split(args []field) (got []option, n int, bad string) {
	for n < len(args) {
		a := args[n]
		switch {
		case a.loose() || strings.HasPrefix(a.text, Hole):
			return got, n, "an option with unknown text"
		case a.text == "--":
			return got, n + 1, ""
		case len(a.text) < 2 || a.text[0] != '-':
			return got, n, ""
		}
		var used int
		var more []option
		if strings.HasPrefix(a.text, "--") {
			more, used, bad = o.long(a.text[2:], args[n+1:])
		} else {
			more, used, bad = o.short(a.text[1:], args[n+1:])
		}
		if bad != "" {
			return got, n, bad
		}
		got = append(got, more...)
		n += 1 + used
		if len(more) > 0 && strings.Contains(o.ends, more[len(more)-1].name) && o.ends != "" {
			return got, n, ""
		}
	}
	return got, n, ""
}

func (o options) long(text string, next []field) (got []option, used int, bad string) {
	name, value, attached := strings.Cut(text, "=")
	for l := range strings.FieldsSeq(o.longs) {
		switch {
		case l == name && !attached, l == name+"?" && !attached:
			return []option{{name: name}}, 0, ""
		case l == name+"=" && attached, l == name+"?" && attached:
			return []option{{name, field{text: value}}}, 0, ""
		case l == name+"=":
			if len(next) == 0 || next[0].loose() {
				return nil, 0, "option --" + name + " has an unknown value"
			}
			return []option{{name, next[0]}}, 1, ""
		}
	}
	return nil, 0, "unknown option --" + printable(name)
}

func (o options) short(text string, next []field) (got []option, used int, bad string) {
	if o.digit && isNumber(text) {
		return []option{{name: text}}, 0, ""
	}
	for i := range len(text) {
		name := text[i : i+1]
		rest := text[i+1:]
		switch {
		case strings.Contains(o.flags, name):
			got = append(got, option{name: name})
			continue
		case strings.Contains(o.maybe, name):
			return append(got, option{name, field{text: rest}}), 0, ""
		case strings.Contains(o.args+o.ends, name) && rest != "":
			return append(got, option{name, field{text: rest}}), 0, ""
		case strings.Contains(o.args+o.ends, name):
			if len(next) == 0 || next[0].loose() {
				return nil, 0, "option -" + name + " has an unknown value"
			}
			return append(got, option{name, next[0]}), 1, ""
		}
		return nil, 0, "unknown option -" + printable(name)
	}
	return got, 0, ""
}

// printable returns a text for a reason, with an ellipsis in place of each Hole.
func printable(s string) string { return strings.ReplaceAll(s, Hole, "…") }

func has(got []option, names ...string) bool {
	_, there := find(got, names...)
	return there
}

// find returns the last option with one of the names.
func find(got []option, names ...string) (field, bool) {
	for i := len(got) - 1; i >= 0; i-- {
		for _, name := range names {
			if got[i].name == name {
				return got[i].value, true
			}
		}
	}
	return field{}, false
}
