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

// A View is a request prepared for display. Characters that would hide or reorder text are
// spelled out.
type View struct {
	ID        id.Approval      `json:"id"`
	Title     string           `json:"title"` // short summary
	What      string           `json:"what"`  // the complete action
	Complete  bool             `json:"whole"` // What is not shortened
	Requester string           `json:"who"`
	Details   []string         `json:"details,omitempty"` // attributes of the question: "cwd: /srv"
	Reason    string           `json:"why"`
	Rule      string           `json:"rule"` // the rule that requires approval
	Tier      Tier             `json:"tier"`
	State     State            `json:"state"`
	Expires   time.Time        `json:"expires"`
	Writes    map[Scope]string `json:"writes,omitempty"` // per scope, the rule that allowing would write
	Phrase    string           `json:"phrase,omitempty"` // typing it lets one person allow the request
	First     string           `json:"first,omitempty"`  // first of two people who has allowed it
	Outcome   string           `json:"outcome,omitempty"`
	Context   string           `json:"context,omitempty"`
}

// Show returns the view of a request. Each text, such as What and Context, has at most about
// limit bytes.
func Show(r Request, limit int) View {
	v := View{
		ID: r.ID, Tier: r.Tier, State: r.State, Expires: r.Expires,
		Requester: subjectText(r.Question.Subject), Reason: shorten(Visible(r.Reason), limit), Rule: shorten(Visible(r.Rule.String()), limit),
		Phrase: Visible(r.Phrase), Outcome: shorten(Visible(r.Outcome), limit),
	}
	what := Visible(r.Question.Resource)
	if r.Question.Action != policy.ActionRun {
		what = Visible(r.Question.Action) + " " + what
	}
	v.What = shorten(what, limit)
	v.Complete = v.What == what
	v.Title = shorten(v.Requester+" asks: "+strings.ReplaceAll(what, "\n", " "), 120)
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

// indented formats JSON for people. Top-level members begin at the margin. Text of several
// lines is printed below its name, indented by two spaces, so that text cannot imitate a
// top-level member.
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

// oneLine quotes a name that contains a line break, so that it cannot imitate another member.
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

func subjectText(s policy.Subject) string {
	var parts []string
	for _, p := range []struct{ name, value string }{{"agent", s.Agent}, {"jail", string(s.Jail)}, {"session", s.Session}, {"run", s.Run}} {
		if p.value != "" {
			parts = append(parts, p.name+" "+Visible(p.value))
		}
	}
	if len(parts) == 0 {
		return "unknown caller"
	}
	return shorten(strings.Join(parts, ", "), 200)
}

// Visible returns s with hidden content spelled out in ⟨⟩: control characters, bidirectional
// controls, characters without width or similar to a space, and long runs of spaces and empty
// lines.
func Visible(s string) string { return visible(s, 8, "⟨tab⟩") }

// VisibleCode is like Visible, but for indented text: it keeps runs of up to forty spaces or tabs.
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
		case c == '⟨' || c == '⟩': // reserved for the spelled-out characters
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

// hidden reports whether a reader could not see a character or would mistake it.
func hidden(c rune) bool {
	// Combining marks can cover the characters before them.
	return safetext.Hidden(c) || unicode.Is(unicode.Mn, c) || unicode.Is(unicode.Me, c)
}

// shorten replaces the middle of a text longer than limit bytes with the number of omitted
// bytes.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head, tail := safetext.Prefix(s, limit*2/3), safetext.Suffix(s, limit/4)
	return fmt.Sprintf("%s ⟨%d bytes omitted⟩ %s", head, len(s)-len(head)-len(tail), tail)
}
