package approval_test

import (
	"encoding/json"
	"strings"
	"testing"

	"glasshouse/approval"
	"glasshouse/policy"
)

func TestWhatWouldChangeIsShownOrWhyItCannotBe(t *testing.T) {
	for name, tt := range map[string]struct {
		action, context string
		want            approval.Foreseen
		rest            string
	}{
		"a file":                     {policy.ActionEdit, `{"diff":"--- a/x\n","step":"2"}`, approval.Foreseen{Diff: "--- a/x\n"}, `{"step":"2"}`},
		"a file, and nothing else":   {policy.ActionEdit, `{"diff":"--- a/x\n"}`, approval.Foreseen{Diff: "--- a/x\n"}, ""},
		"one that cannot be told":    {policy.ActionEdit, `{"no_diff":"it is not text"}`, approval.Foreseen{NoDiff: "it is not text"}, ""},
		"something that says itself": {policy.ActionRun, `{"summary":"x"}`, approval.Foreseen{NoDiff: "what a command changes is not known before it has run"}, `{"summary":"x"}`},
		"a diff that is none":        {policy.ActionRead, `{"diff":["x"]}`, approval.Foreseen{NoDiff: "it changes nothing"}, `{"diff":["x"]}`},
		"a command":                  {policy.ActionRun, ``, approval.Foreseen{NoDiff: "what a command changes is not known before it has run"}, ""},
	} {
		r := approval.Request{Question: policy.Question{Action: tt.action}, Context: json.RawMessage(tt.context)}
		got, rest := approval.Foresee(r)
		if got != tt.want || string(rest) != tt.rest {
			t.Errorf("%s: %+v and %s, want %+v and %s", name, got, rest, tt.want, tt.rest)
		}
	}
	for _, action := range []string{"deploy", "install", ""} {
		if got, _ := approval.Foresee(approval.Request{Question: policy.Question{Action: action}}); got.NoDiff == "" {
			t.Errorf("of %q nothing is said", action)
		}
	}
}

func TestCodeIsShownIndentedAndHidesNothing(t *testing.T) {
	if got, want := approval.VisibleCode("+\tif x {\n+            y()\u202e\x1b[2J"+strings.Repeat(" ", 200)), "+\tif x {\n+            y()⟨U+202E⟩⟨U+001B⟩[2J⟨200 spaces⟩"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
