package approval

import (
	"encoding/json"

	"glasshouse/policy"
)

// Preview is the preview of a request's effect, as far as the requester can predict it. It is part
// of the request's Context.
type Preview struct {
	Diff         string `json:"diff,omitempty"`    // change of a file at the time of the request, in the format of diff -u
	NoDiffReason string `json:"no_diff,omitempty"` // why there is no diff
}

// noDiffReasons explains per action why there is no diff, for requests without an explanation.
var noDiffReasons = map[string]string{
	policy.ActionRun:        "the changes of a command are not known before it runs",
	policy.ActionEdit:       "approval is required before the file is opened, so the content to be written is not known",
	policy.ActionRead:       "the action changes nothing",
	policy.ActionOutside:    "the actions outside of the workspace are not known in advance",
	policy.ActionFetch:      "no file changes; the data to be sent is not known",
	policy.ActionConnect:    "no file changes; the data to be sent is not known",
	policy.ActionSecret:     "no file changes; the use of the secret is not known",
	policy.ActionCall:       "only the declared effects of the capability are known",
	policy.ActionCoordinate: "the actions of the other agent are not known",
	policy.ActionResources:  "no file changes; the current and requested resources are listed above",
}

// PreviewOf returns the preview of r and the remaining members of its Context, or nil if there are
// none. Both are untrusted input from the requester.
func PreviewOf(r Request) (f Preview, rest json.RawMessage) {
	var context map[string]json.RawMessage
	if json.Unmarshal(r.Context, &context) == nil && json.Unmarshal(r.Context, &f) == nil && f != (Preview{}) {
		delete(context, "diff")
		delete(context, "no_diff")
		if len(context) > 0 {
			rest, _ = json.Marshal(context) // cannot fail: it was decoded from JSON
		}
		return f, rest
	}
	f = Preview{NoDiffReason: noDiffReasons[r.Question.Action]}
	if f.NoDiffReason == "" {
		f.NoDiffReason = "the changes are not known in advance"
	}
	return f, r.Context
}
