package approval

import (
	"encoding/json"

	"glasshouse/policy"
)

// Foreseen is what would change if a request is allowed, as far as whoever asks knows.
// It is a part of the request's Context.
type Foreseen struct {
	Diff   string `json:"diff,omitempty"`    // of a file, as diff -u writes it, when it was asked
	NoDiff string `json:"no_diff,omitempty"` // why there is none
}

// unforeseen is why there is no difference to see, where whoever asks has said none.
var unforeseen = map[string]string{
	policy.ActionRun:        "what a command changes is not known before it has run",
	policy.ActionEdit:       "it is asked before the file is opened, and what would be written is not known",
	policy.ActionRead:       "it changes nothing",
	policy.ActionOutside:    "what would be done there is not known",
	policy.ActionFetch:      "it changes no file; what would be sent is not known",
	policy.ActionConnect:    "it changes no file; what would be sent is not known",
	policy.ActionSecret:     "it changes no file; what would be done with the secret is not known",
	policy.ActionCall:       "what the capability would change is what its effects say, and no more is known",
	policy.ActionCoordinate: "what the other would do is not known",
	policy.ActionResources:  "it changes no file: what the jail has and would have stands above",
}

// Foresee returns what would change if r is allowed, or why that cannot be said, and
// what else its Context has, nil if that is all. Both are as they were given.
func Foresee(r Request) (f Foreseen, rest json.RawMessage) {
	var context map[string]json.RawMessage
	if json.Unmarshal(r.Context, &context) == nil && json.Unmarshal(r.Context, &f) == nil && f != (Foreseen{}) {
		delete(context, "diff")
		delete(context, "no_diff")
		if len(context) > 0 {
			rest, _ = json.Marshal(context) // it was JSON before
		}
		return f, rest
	}
	f = Foreseen{NoDiff: unforeseen[r.Question.Action]}
	if f.NoDiff == "" {
		f.NoDiff = "what would change is not known beyond what is said here"
	}
	return f, r.Context
}
