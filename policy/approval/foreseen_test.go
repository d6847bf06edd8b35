package approval_test

import (
	"encoding/json"
	"strings"
	"testing"

	"glasshouse/policy"
	"glasshouse/policy/approval"
)

func TestForesee(t *testing.T) {
	for name, tt := range map[string]struct {
		action, context string
		want            approval.Preview
		rest            string
	}{
		"file edit":                      {policy.ActionEdit, `{"diff":"--- a/x\n","step":"2"}`, approval.Preview{Diff: "--- a/x\n"}, `{"step":"2"}`},
		"file edit without more context": {policy.ActionEdit, `{"diff":"--- a/x\n"}`, approval.Preview{Diff: "--- a/x\n"}, ""},
		"file edit without a diff":       {policy.ActionEdit, `{"no_diff":"it is not text"}`, approval.Preview{NoDiffReason: "it is not text"}, ""},
		"command with context":           {policy.ActionRun, `{"summary":"x"}`, approval.Preview{NoDiffReason: "the changes of a command are not known before it runs"}, `{"summary":"x"}`},
		"diff of the wrong type":         {policy.ActionRead, `{"diff":["x"]}`, approval.Preview{NoDiffReason: "the action changes nothing"}, `{"diff":["x"]}`},
		"command":                        {policy.ActionRun, ``, approval.Preview{NoDiffReason: "the changes of a command are not known before it runs"}, ""},
	} {
		r := approval.Request{Question: policy.Question{Action: tt.action}, Context: json.RawMessage(tt.context)}
		got, rest := approval.PreviewOf(r)
		if got != tt.want || string(rest) != tt.rest {
			t.Errorf("%s: Foresee = %+v and %s, want %+v and %s", name, got, rest, tt.want, tt.rest)
		}
	}
	for _, action := range []string{"deploy", "install", ""} {
		if got, _ := approval.PreviewOf(approval.Request{Question: policy.Question{Action: action}}); got.NoDiffReason == "" {
			t.Errorf("NoDiff of action %q is empty", action)
		}
	}
}

func TestVisibleCode(t *testing.T) {
	if got, want := approval.VisibleCode("+\tif x {\n+            y()\u202e\x1b[2J"+strings.Repeat(" ", 200)), "+\tif x {\n+            y()⟨U+202E⟩⟨U+001B⟩[2J⟨200 spaces⟩"; got != want {
		t.Errorf("VisibleCode = %q, want %q", got, want)
	}
}
