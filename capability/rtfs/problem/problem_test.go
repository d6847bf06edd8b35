package problem_test

import (
	"strings"
	"testing"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/problem"
	"glasshouse/fault"
	"glasshouse/internal/texttest"
)

func TestProblemShowsPosition(t *testing.T) {
	text := []byte("one\n\ttwö three\n")
	p := problem.At(text, form.Pos{File: "f", Offset: 10, Line: 2, Col: 6}, "a.b", "%d is wrong", 3)
	if want := "f:2:6: a.b: 3 is wrong\n  2 |  twö three\n    |      ^"; p.String() != want {
		t.Errorf("String =\n%s\nwant\n%s", p, want)
	}
}

func TestLongLineIsTruncatedAroundProblem(t *testing.T) {
	text := []byte(strings.Repeat("x", 5000) + "!" + strings.Repeat("\x1b", 5000))
	p := problem.At(text, form.Pos{Offset: 5000, Line: 1, Col: 5001}, "", "here")
	lines := strings.Split(p.String(), "\n")
	if len(p.String()) > 600 || strings.IndexByte(lines[1], '!') != strings.IndexByte(lines[2], '^') {
		t.Errorf("String =\n%s\nwant the mark below !", p)
	}
	if strings.Contains(p.String(), "\x1b") {
		t.Error("an escape character is not escaped")
	}
}

func TestHiddenCharactersAreEscaped(t *testing.T) {
	text := "\tx\u202e\u009bm here"
	p := problem.At([]byte(text), form.Pos{Offset: strings.Index(text, "here"), Line: 1, Col: 1}, "", "wrong")
	lines := strings.Split(p.String(), "\n")
	if want := `  1 |  x\u202e\u009bm here`; lines[1] != want {
		t.Errorf("the line is shown as %q, want %q", lines[1], want)
	}
	if strings.Index(lines[1], "here") != strings.IndexByte(lines[2], '^') {
		t.Errorf("String =\n%s\nwant the mark below \"here\"", p)
	}
}

func TestLongLineIsTruncatedBetweenCharacters(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "a line", func(line string) string {
		middle := strings.Index(line, "世") + 30000
		return problem.At([]byte(line), form.Pos{Offset: middle, Line: 1, Col: 1}, "", "here").Line
	})
}

func TestPositionOutsideText(t *testing.T) {
	for _, offset := range []int{-5, 0, 3, 99} {
		_ = problem.At([]byte("abc"), form.Pos{Offset: offset, Line: 1, Col: 1}, "", "x").String()
	}
}

func TestEmptyListIsNoError(t *testing.T) {
	if err := (problem.List{}).Fault("x"); err != nil {
		t.Errorf("Fault = %v", err)
	}
	err := problem.List{{Field: "a", Message: "wrong"}, {Message: "wrong too"}}.Fault("x.Read")
	if fault.KindOf(err) != fault.Invalid || fault.FieldOf(err) != "a" || !strings.HasSuffix(err.Error(), "a: wrong\nwrong too") {
		t.Errorf("Fault = %v", err)
	}
}

func TestMeantSuggestsSimilarWord(t *testing.T) {
	words := []string{"allowed-hosts", "mode", "memory-mb", "effects"}
	for given, want := range map[string]string{
		"allowed_hosts": "allowed-hosts", "AllowedHosts": "allowed-hosts", ":mode": "mode", "moed": "mode", "efects": "effects",
		"memory": "memory-mb", "zebra": "", "": "", "m": "", strings.Repeat("x", 1000): "",
	} {
		got := strings.TrimSuffix(strings.TrimPrefix(problem.Meant(given, words...), "; did you mean "), "?")
		if got != want {
			t.Errorf("Meant(%.20q) = %q, want %q", given, got, want)
		}
	}
}
