package approval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"glasshouse/id"
	safetext "glasshouse/internal/text"
	"glasshouse/policy"
)

// A View is a request as a person sees it, wherever they do. All of its text is
// made visible: what would hide or reorder text is spelled out.
type View struct {
	ID      id.Approval      `json:"id"`
	Title   string           `json:"title"` // short; never all there is to see
	What    string           `json:"what"`  // all of what would be done
	Whole   bool             `json:"whole"` // nothing of What is left out
	Who     string           `json:"who"`
	Details []string         `json:"details,omitempty"` // what else is known of it: "cwd: /srv"
	Why     string           `json:"why"`
	Rule    string           `json:"rule"` // that says to ask
	Tier    Tier             `json:"tier"`
	State   State            `json:"state"`
	Expires time.Time        `json:"expires"`
	Writes  map[Scope]string `json:"writes,omitempty"` // the rule that allowing it for longer would write
	Phrase  string           `json:"phrase,omitempty"` // to type, to allow it alone
	First   string           `json:"first,omitempty"`  // who has allowed it, if it takes two
	Outcome string           `json:"outcome,omitempty"`
	Context string           `json:"context,omitempty"`
}

// Show returns a request as a person sees it, with at most limit bytes of what
// would be done and of what comes with it.
func Show(r Request, limit int) View {
	v := View{
		ID: r.ID, Tier: r.Tier, State: r.State, Expires: r.Expires,
		Who: who(r.Question.Subject), Why: shorten(Visible(r.Reason), limit), Rule: shorten(Visible(r.Rule.String()), limit),
		Phrase: Visible(r.Phrase), Outcome: shorten(Visible(r.Outcome), limit),
	}
	what := Visible(r.Question.Resource)
	if r.Question.Action != policy.ActionRun {
		what = Visible(r.Question.Action) + " " + what
	}
	v.What = shorten(what, limit)
	v.Whole = v.What == what
	v.Title = shorten(v.Who+" asks: "+strings.ReplaceAll(what, "\n", " "), 120)
	for _, name := range slices.Sorted(maps.Keys(r.Question.Attributes)) {
		v.Details = append(v.Details, shorten(Visible(name+": "+r.Question.Attributes[name]), limit))
	}
	for _, s := range r.Scopes {
		if rule, err := RuleFor(r, Allow, s); err == nil {
			if v.Writes == nil {
				v.Writes = map[Scope]string{}
			}
			v.Writes[s] = shorten(Visible(rule.String()), limit)
		}
	}
	if r.First != nil {
		v.First = Visible(r.First.By.Name)
	}
	if len(r.Context) > 0 {
		v.Context = shorten(Visible(indented(r.Context)), limit)
	}
	return v
}

// indented is JSON as people read it: what is at its top begins at the margin, and text
// of several lines stands below its name as it is, two spaces in, so that no text can
// look like what is at the top.
func indented(doc json.RawMessage) string {
	var top map[string]json.RawMessage
	if json.Unmarshal(doc, &top) != nil {
		return pretty(doc, "")
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(top)) {
		var text string
		if json.Unmarshal(top[name], &text) != nil || !strings.Contains(text, "\n") {
			fmt.Fprintf(&b, "%s: %s\n", oneLine(name), pretty(top[name], "  "))
			continue
		}
		fmt.Fprintf(&b, "%s:\n", oneLine(name))
		for line := range strings.Lines(text) {
			b.WriteString("  " + strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// oneLine is a name that cannot begin anything of its own.
func oneLine(name string) string {
	if strings.Contains(name, "\n") {
		return strconv.Quote(name)
	}
	return name
}

func pretty(doc json.RawMessage, prefix string) string {
	var b bytes.Buffer
	if err := json.Indent(&b, doc, prefix, "  "); err != nil {
		return string(doc)
	}
	return b.String()
}

func who(s policy.Subject) string {
	var parts []string
	for _, p := range []struct{ name, value string }{{"agent", s.Agent}, {"jail", string(s.Jail)}, {"session", s.Session}, {"run", s.Run}} {
		if p.value != "" {
			parts = append(parts, p.name+" "+Visible(p.value))
		}
	}
	if len(parts) == 0 {
		return "somebody unknown"
	}
	return shorten(strings.Join(parts, ", "), 200)
}

// Visible returns text in which nothing is hidden: control characters, what
// changes the direction of text, what has no width or looks like a space, and
// long runs of spaces and empty lines are spelled out in ⟨⟩.
func Visible(s string) string { return visible(s, 8, "⟨tab⟩") }

// VisibleCode is Visible of a text that is indented: up to forty spaces and tabs stay
// as they are.
func VisibleCode(s string) string { return visible(s, 40, "\t") }

func visible(s string, spaces int, tab string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRuneInString(s[i:])
		switch run := len(s[i:]) - len(strings.TrimLeft(s[i:], string(c))); {
		case c == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "⟨byte %02X⟩", s[i])
		case c == ' ' && run > spaces, c == '\t' && run > spaces:
			fmt.Fprintf(&b, "⟨%d %s⟩", run, map[rune]string{' ': "spaces", '\t': "tabs"}[c])
			n = run
		case c == '\n' && run > 3:
			fmt.Fprintf(&b, "\n⟨%d empty lines⟩\n", run-1)
			n = run
		case c == '\t':
			b.WriteString(tab)
		case c == '\n' || c == ' ':
			b.WriteRune(c)
		case c == '⟨' || c == '⟩': // they mean something here
			fmt.Fprintf(&b, "⟨U+%04X⟩", c)
		case hidden(c):
			fmt.Fprintf(&b, "⟨U+%04X⟩", c)
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// hidden reports whether a reader would not see a character as what it is.
func hidden(c rune) bool {
	// Combining marks can cover the characters before them.
	return safetext.Hidden(c) || unicode.Is(unicode.Mn, c) || unicode.Is(unicode.Me, c)
}

// shorten leaves the middle of a text out if it is longer than limit bytes, and
// says how much.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head, tail := safetext.Prefix(s, limit*2/3), safetext.Suffix(s, limit/4)
	return fmt.Sprintf("%s ⟨%d bytes are not shown⟩ %s", head, len(s)-len(head)-len(tail), tail)
}
