package builtin

import (
	"fmt"
	"slices"
	"strings"

	"glasshouse/internal/text"
)

const (
	defaultContext = 32768 // tokens, where the door does not say
	minContext     = 1024
	answerRoom     = 8192 // tokens kept free for the answer, or a quarter of all

	// maxRoom keeps a state well below what a checkpoint may hold, as JSON.
	maxRoom = 1 << 20

	// bytesPerToken is on the safe side for English and for code, and about right for
	// text of other scripts.
	bytesPerToken = 3

	shortened = 200 // bytes of a dropped output that are kept
	noteLine  = 300
	wasTold   = "you were told: " // such a note is the last to go
)

// room is how many bytes a request may be made of.
func (s *state) room() int {
	c := s.Context
	if c <= 0 {
		c = defaultContext
	}
	c = min(max(c, minContext), maxRoom) // an absurd number must not overflow
	return min((c-min(answerRoom, c/4))*bytesPerToken, maxRoom)
}

// size is about how many bytes the next request is made of.
func (s *state) size() int {
	n := len(s.note())
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

// trim makes the conversation fit. Nothing is done while it does. When it does not, a
// quarter is made free at once, so that most requests begin like the one before, which
// models remember. What goes first is what can be had again: the oldest outputs of tools;
// then whole turns, of which a line is kept each. The head and the newest turn stay.
func (s *state) trim() {
	room := s.room()
	if s.size() <= room {
		return
	}
	enough := room - room/4
	s.shortenOutputs(enough)
	s.dropTurns(enough, room/8)
	for _, from := range []int{s.Head, 0} { // the head itself at last
		for most := room / 4; most >= 64 && s.size() > room; most /= 2 {
			for i := range s.Messages[from:] {
				s.Messages[from+i].clip(most)
			}
		}
	}
}

// clip leaves at most so many bytes of a message's text, and of what it calls with.
func (m *message) clip(most int) {
	m.Content = clip(m.Content, most)
	m.Calls = slices.Clone(m.Calls) // they may be another state's too
	for i, c := range m.Calls {
		if n := len(c.Function.Arguments); n > most {
			m.Calls[i].Function.Arguments = fmt.Sprintf(`{"dropped_to_save_room":"%d bytes"}`, n)
		}
	}
}

// shortenOutputs leaves the beginning of the oldest outputs, until the rest is enough.
func (s *state) shortenOutputs(enough int) {
	for i := s.Head; i < s.newest() && s.size() > enough; i++ {
		m := &s.Messages[i]
		if m.Role == "tool" && len(m.Content) > 2*shortened {
			m.Content = fmt.Sprintf("%s\n[the rest of this output, %d bytes, was dropped to save room; call the tool again if you need it]", text.Prefix(m.Content, shortened), len(m.Content)-shortened)
		}
	}
}

// dropTurns drops the oldest turns, until the rest is enough.
func (s *state) dropTurns(enough, notes int) {
	for s.size() > enough && s.Head < s.newest() {
		end := s.Head + 1
		for end < len(s.Messages) && s.Messages[end].Role != "assistant" {
			end++
		}
		for _, m := range s.Messages[s.Head:end] {
			s.Notes = append(s.Notes, noteOf(m)...)
		}
		s.Messages = slices.Delete(s.Messages, s.Head, end)
		for len(s.Notes) > 1 && len(s.note()) > notes {
			i := max(slices.IndexFunc(s.Notes, func(n string) bool { return !strings.HasPrefix(n, wasTold) }), 0)
			s.Notes = slices.Delete(s.Notes, i, i+1)
			s.Unnoted++
		}
	}
}

// newest is where the newest turn begins.
func (s *state) newest() int {
	for i := len(s.Messages) - 1; i > s.Head; i-- {
		if s.Messages[i].Role == "assistant" {
			return i
		}
	}
	return s.Head
}

// noteOf is what is remembered of a message that is dropped. What people said is
// remembered at greater length than the rest.
func noteOf(m message) []string {
	switch {
	case len(m.Calls) > 0:
		var lines []string
		for _, c := range m.Calls {
			lines = append(lines, clip("you called "+c.Function.Name+" "+c.Function.Arguments, noteLine))
		}
		return lines
	case m.Role == "tool":
		return []string{clip("  it answered: "+strings.ReplaceAll(m.Content, "\n", " "), noteLine)}
	case m.Role == "user":
		return []string{clip(wasTold+m.Content, 4*noteLine)}
	}
	return []string{clip("you said: "+m.Content, noteLine)}
}

// note is what the model is told of the turns that were dropped.
func (s *state) note() string {
	if len(s.Notes) == 0 && s.Unnoted == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("[Earlier turns were dropped to save room. What is left of them:")
	if s.Unnoted > 0 {
		fmt.Fprintf(&b, "\n(%d older lines are gone)", s.Unnoted)
	}
	for _, n := range s.Notes {
		b.WriteString("\n- " + n)
	}
	b.WriteString("]")
	return b.String()
}

// conversation is what the next request says.
func (s *state) conversation() []message {
	note := s.note()
	if note == "" {
		return s.Messages
	}
	return slices.Concat(s.Messages[:s.Head], []message{{Role: "user", Content: note}}, s.Messages[s.Head:])
}

// clip returns at most so many bytes of a text, the middle left out. A text that was
// clipped stays as it is when it is clipped again to the same size.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	mark := fmt.Sprintf("\n[… %d bytes left out …]\n", len(s)-most)
	keep := max(most-len(mark)-8, 0)
	head, tail := text.Prefix(s, keep*2/3), text.Suffix(s, keep/3)
	if len(head)+len(mark)+len(tail) > most {
		return text.Prefix(s, most)
	}
	return head + mark + tail
}

// firstBytes returns at most n bytes of s, in whole characters.
