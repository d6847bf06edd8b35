package policy

import (
	"regexp"
	"strings"

	safetext "glasshouse/internal/text"
)

// A Framework is the decision framework of an AGENTS.md: what its agent may decide without
// asking.
type Framework struct {
	File    string  `json:"file"`
	Entries []Entry `json:"entries"`
}

// An Entry is one item of a decision framework.
type Entry struct {
	Kind  EntryKind `json:"kind"`
	Text  string    `json:"text"`
	File  string    `json:"file"`
	Line  int       `json:"line"`
	Rules []Rule    `json:"rules,omitempty"` // rules derived from the text; none for advice
}

// An EntryKind is the effect of an entry.
type EntryKind string

const (
	PreApproved   EntryKind = "pre-approved"   // allowed without approval
	NeedsApproval EntryKind = "needs approval" // requires approval
	Forbidden     EntryKind = "forbidden"      // denied
	Advice        EntryKind = "advice"         // for the agent only, without rules
)

func (k EntryKind) effect() Effect {
	switch k {
	case PreApproved:
		return Allow
	case NeedsApproval:
		return Ask
	}
	return Deny
}

const originFramework = "decision framework"

// ReadFramework parses the decision framework of an AGENTS.md: the lists under headings about
// pre-approved, approval-requiring and forbidden actions, and the questions with their answers.
// Entries without a recognised action and all other text become advice.
func ReadFramework(name string, data []byte) (*Framework, error) {
	if len(data) > maxFile {
		return nil, invalid(name, 0, "make it smaller, or move text that contains no rules to other files",
			"%d bytes, more than the limit of %d", len(data), maxFile)
	}
	r := &frameworkReader{f: &Framework{File: name}, section: Advice}
	text := strings.TrimPrefix(strings.ToValidUTF8(string(data), "\ufffd"), "\ufeff")
	for line := range strings.SplitSeq(text, "\n") {
		r.at++
		if len(line) > maxEntry {
			return nil, invalid(name, r.at, "break it into several lines", "a line of %d bytes, more than the limit of %d", len(line), maxEntry)
		}
		r.line(strings.TrimRight(line, " \t\r"))
	}
	r.flush()
	switch {
	case r.long > 0:
		return nil, invalid(name, r.long, "make several entries of it", "an entry of more than %d bytes", maxEntry)
	case r.rules > maxRules:
		return nil, invalid(name, 0, "list fewer actions", "%d rules, more than the limit of %d", r.rules, maxRules)
	}
	return r.f, nil
}

// A frameworkReader parses a document line by line.
type frameworkReader struct {
	f       *Framework
	at      int       // the current line
	section EntryKind // kind of the list under the current heading
	fence   string    // closing fence of the open code block
	comment bool      // within <!-- -->

	open   *Entry // may continue in the next line
	isItem bool
	rules  int // total of all entries
	long   int // line of an entry that exceeds the limit
}

var (
	heading = regexp.MustCompile(`^ {0,3}#{1,6}\s+(.*?)\s*#*$`)
	bold    = regexp.MustCompile(`^\s*(?:\*\*|__)(.+?)(?:\*\*|__):?$`)
	item    = regexp.MustCompile(`^\s*(?:[-*+]|\d{1,4}[.)])\s+(?:\[[ xX]\]\s+)?(.*)$`)
	fence   = regexp.MustCompile("^\\s*(```+|~~~+)")
)

func (r *frameworkReader) line(s string) {
	if f := fence.FindStringSubmatch(s); f != nil || r.fence != "" {
		r.flush()
		switch {
		case r.fence == "":
			r.fence = f[1]
		case f != nil && strings.HasPrefix(f[1], r.fence) && strings.TrimSpace(s) == f[1]:
			r.fence = ""
		}
		return
	}
	if s = r.uncommented(s); strings.TrimSpace(s) == "" {
		r.flush()
		return
	}
	title := heading.FindStringSubmatch(s)
	if title == nil {
		title = bold.FindStringSubmatch(s)
	}
	switch {
	case title != nil:
		r.flush()
		r.section = kindOfHeading(title[1])
	case item.MatchString(s):
		r.flush()
		text := item.FindStringSubmatch(s)[1]
		r.open, r.isItem = &Entry{Text: text, File: r.f.File, Line: r.at}, true
	case r.open != nil:
		if len(r.open.Text) < maxEntry { // the rest of an oversized entry is ignored
			r.open.Text += " " + strings.TrimSpace(s)
		}
	default:
		r.open, r.isItem = &Entry{Text: strings.TrimSpace(s), File: r.f.File, Line: r.at}, false
	}
}

// uncommented returns s without comments. Readers do not see them, so they must not contain
// rules.
func (r *frameworkReader) uncommented(s string) string {
	var b strings.Builder
	for {
		mark := "<!--"
		if r.comment {
			mark = "-->"
		}
		before, after, found := strings.Cut(s, mark)
		if !r.comment {
			b.WriteString(before)
		}
		if !found {
			return b.String()
		}
		r.comment = !r.comment
		s = after
	}
}

// flush adds the open entry.
func (r *frameworkReader) flush() {
	e := r.open
	if r.open = nil; e == nil || r.rules > maxRules {
		return
	}
	if len(e.Text) >= maxEntry {
		if r.isItem && r.section != Advice {
			r.long = e.Line
		}
		e.Text = safetext.Clip(e.Text, maxEntry)
	}
	e.Kind = Advice
	kind, text := r.section, e.Text
	if question, answer, ok := cutQuestion(e.Text); ok {
		kind, text = kindOfAnswer(answer), question
	} else if !r.isItem {
		kind = Advice
	}
	if kind != Advice {
		if e.Rules = recognise(text, kind); len(e.Rules) > 0 {
			e.Kind = kind
		}
	}
	if r.rules += len(e.Rules); r.rules > maxRules {
		e.Rules = nil
		return
	}
	for i := range e.Rules {
		e.Rules[i].File, e.Rules[i].Line = e.File, e.Line
	}
	r.f.Entries = append(r.f.Entries, *e)
}

var (
	saysFree      = regexp.MustCompile(`\b(no|not|without|never|n't|don't|doesn't)\b[^.]{0,24}\b(approval|permission|asking|confirmation|ask)\b`)
	saysApproval  = regexp.MustCompile(`\b(requir\w*|needs?|needing|must have|with)\b[^.]{0,24}\b(approval|permission|confirmation|sign-?off)\b|\b(approval|permission|confirmation)\b[^.]{0,12}\b(required|needed|first)\b|\bask (first|before|for|the user|a human)\b|\bmust ask\b|\balways ask\b`)
	saysForbidden = regexp.MustCompile(`\b(forbidden|prohibited|never|not allowed|off[- ]limits|disallowed|denied)\b`)
	saysApproved  = regexp.MustCompile(`\b(pre-?approved|autonomous(ly)?|whitelist(ed)?|allow-?list(ed)?|always allowed|allowed|safe (actions|commands|operations))\b`)
)

func kindOfHeading(title string) EntryKind {
	t := strings.ToLower(title)
	switch {
	case saysFree.MatchString(t):
		return PreApproved
	case saysApproval.MatchString(t):
		return NeedsApproval
	case saysForbidden.MatchString(t):
		return Forbidden
	case saysApproved.MatchString(t):
		return PreApproved
	}
	return Advice
}

// answered matches a question with the answer for yes: "Is this …? → YES: Ask".
var answered = regexp.MustCompile(`(?i)^(.+?\?)\s*(?:→|->|=>|—|–|:)?\s*(?:if )?\byes\b\s*[:,→–—-]*>?\s*(.+)$`)

func cutQuestion(s string) (question, answer string, ok bool) {
	m := answered.FindStringSubmatch(s)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

func kindOfAnswer(answer string) EntryKind {
	a := strings.ToLower(answer)
	if no := strings.Index(a, "no:"); no > 0 { // "Autonomous, NO: ask"
		a = a[:no]
	}
	switch {
	case saysFree.MatchString(a):
		return PreApproved
	case strings.Contains(a, "ask"), strings.Contains(a, "approval"), strings.Contains(a, "confirm"):
		return NeedsApproval
	case strings.Contains(a, "stop"), strings.Contains(a, "refuse"), strings.Contains(a, "never"), strings.Contains(a, "do not"):
		return Forbidden
	case strings.Contains(a, "autonom"), strings.Contains(a, "proceed"), strings.Contains(a, "go ahead"), strings.Contains(a, "act"):
		return PreApproved
	}
	return Advice
}
