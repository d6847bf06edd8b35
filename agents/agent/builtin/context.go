package builtin

import (
	"fmt"
	"slices"
	"strings"

	"glasshouse/internal/text"
)

const (
	defaultContext = 32768 // tokens, if the endpoint reports none
	minContext     = 1024
	answerTokens   = 8192 // tokens reserved for the answer, at most a quarter of the context

	// maxRequestBytes keeps the encoded state well below the size limit of a checkpoint.
	maxRequestBytes = 1 << 20

	// bytesPerToken is a conservative estimate for English and for code, and approximately
	// right for other scripts.
	bytesPerToken = 3

	shortenedBytes = 200 // bytes kept of a shortened output
	noteBytes      = 300
	userNotePrefix = "you were told: " // summaries with this prefix are dropped last
)

// maxBytes returns the maximum size of a request in bytes.
func (s *state) maxBytes() int {
	c := s.Context
	if c <= 0 {
		c = defaultContext
	}
	c = min(max(c, minContext), maxRequestBytes) // avoids overflow
	return min((c-min(answerTokens, c/4))*bytesPerToken, maxRequestBytes)
}

// size returns the approximate size of the next request in bytes.
func (s *state) size() int {
	n := len(s.summary())
	for _, m := range s.Messages {
		n += m.size()
	}
	for _, t := range s.Tools {
		n += len(t.Name) + len(t.Description) + len(t.Schema) + 60
	}
	return n
}

func (m *message) size() int {
	n := len(m.Content) + 20
	for _, c := range m.Calls {
		n += len(c.Function.Name) + len(c.Function.Arguments) + 60
	}
	return n
}

// trim shortens the conversation if it exceeds maxBytes. It frees a quarter of maxBytes at a
// time, so that most requests extend the previous one and hit the provider's prompt cache.
// It first shortens the oldest tool outputs, which the model can request again. Then it
// replaces the oldest turns by a line each. It keeps the head and the newest turn, and
// clips their texts only as a last resort.
func (s *state) trim() {
	room := s.maxBytes()
	if s.size() <= room {
		return
	}
	target := room - room/4
	s.shortenOutputs(target)
	s.summarizeTurns(target, room/8)
	for _, from := range []int{s.Head, 0} { // the head last
		for limit := room / 4; limit >= 64 && s.size() > room; limit /= 2 {
			for i := range s.Messages[from:] {
				s.Messages[from+i].clip(limit)
			}
		}
	}
}

// clip shortens the text of a message, and the arguments of each call, to limit bytes.
func (m *message) clip(limit int) {
	m.Content = clip(m.Content, limit)
	m.Calls = slices.Clone(m.Calls) // may be shared with another state
	for i, c := range m.Calls {
		if n := len(c.Function.Arguments); n > limit {
			m.Calls[i].Function.Arguments = fmt.Sprintf(`{"dropped_to_save_room":"%d bytes"}`, n)
		}
	}
}

// shortenOutputs shortens the oldest tool outputs until the size is at most target bytes.
func (s *state) shortenOutputs(target int) {
	for i := s.Head; i < s.newestTurn() && s.size() > target; i++ {
		m := &s.Messages[i]
		if m.Role == "tool" && len(m.Content) > 2*shortenedBytes {
			m.Content = fmt.Sprintf("%s\n[the rest of this output, %d bytes, was dropped to save room; call the tool again if you need it]", text.Prefix(m.Content, shortenedBytes), len(m.Content)-shortenedBytes)
		}
	}
}

// summarizeTurns replaces the oldest turns by notes until the size is at most target bytes.
// The notes take at most maxNotes bytes.
func (s *state) summarizeTurns(target, maxNotes int) {
	for s.size() > target && s.Head < s.newestTurn() {
		end := s.Head + 1
		for end < len(s.Messages) && s.Messages[end].Role != "assistant" {
			end++
		}
		for _, m := range s.Messages[s.Head:end] {
			s.Notes = append(s.Notes, summarize(m)...)
		}
		s.Messages = slices.Delete(s.Messages, s.Head, end)
		for len(s.Notes) > 1 && len(s.summary()) > maxNotes {
			i := max(slices.IndexFunc(s.Notes, func(n string) bool { return !strings.HasPrefix(n, userNotePrefix) }), 0)
			s.Notes = slices.Delete(s.Notes, i, i+1)
			s.DroppedNotes++
		}
	}
}

// newestTurn returns the index of the first message of the newest turn.
func (s *state) newestTurn() int {
	for i := len(s.Messages) - 1; i > s.Head; i-- {
		if s.Messages[i].Role == "assistant" {
			return i
		}
	}
	return s.Head
}

// summarize returns the notes that replace a dropped message. A note of a user's message
// may be longer than the others.
func summarize(m message) []string {
	switch {
	case len(m.Calls) > 0:
		var lines []string
		for _, c := range m.Calls {
			lines = append(lines, clip("you called "+c.Function.Name+" "+c.Function.Arguments, noteBytes))
		}
		return lines
	case m.Role == "tool":
		return []string{clip("  it answered: "+strings.ReplaceAll(m.Content, "\n", " "), noteBytes)}
	case m.Role == "user":
		return []string{clip(userNotePrefix+m.Content, 4*noteBytes)}
	}
	return []string{clip("you said: "+m.Content, noteBytes)}
}

// summary returns a message to the model that lists the notes of dropped turns.
func (s *state) summary() string {
	if len(s.Notes) == 0 && s.DroppedNotes == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("[Earlier turns were dropped to save room. What is left of them:")
	if s.DroppedNotes > 0 {
		fmt.Fprintf(&b, "\n(%d older lines are gone)", s.DroppedNotes)
	}
	for _, n := range s.Notes {
		b.WriteString("\n- " + n)
	}
	b.WriteString("]")
	return b.String()
}

// conversation returns the messages of the next request.
func (s *state) conversation() []message {
	note := s.summary()
	if note == "" {
		return s.Messages
	}
	return slices.Concat(s.Messages[:s.Head], []message{{Role: "user", Content: note}}, s.Messages[s.Head:])
}

// clip shortens s to at most limit bytes by leaving out the middle. Clipping the result to
// the same size again does not change it.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	ellipsis := fmt.Sprintf("\n[… %d bytes left out …]\n", len(s)-limit)
	keep := max(limit-len(ellipsis)-8, 0)
	head, tail := text.Prefix(s, keep*2/3), text.Suffix(s, keep/3)
	if len(head)+len(ellipsis)+len(tail) > limit {
		return text.Prefix(s, limit)
	}
	return head + ellipsis + tail
}
