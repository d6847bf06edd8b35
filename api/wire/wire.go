// Package wire is the JSON of the HTTP API: every request and response body.
//
// These types are the only ones that are a promise to strangers. Names are
// snake_case, times are RFC 3339, durations are whole milliseconds and sizes
// are bytes unless the name says otherwise. The description tags become the
// OpenAPI document, so a field is explained once.
package wire

import "strings"

// Page is one piece of a list. Asking again with after=Next gives the next
// piece; an empty Next means there is none.
type Page[T any] struct {
	Items []T    `json:"items" required:"true"`
	Next  string `json:"next,omitempty" description:"Pass as 'after' to get the items that follow. Absent on the last page."`
}

// Problem is an error, as RFC 9457 has it. Its media type is ProblemType.
type Problem struct {
	Type   string `json:"type" required:"true" description:"What kind of problem this is, such as /problems/not-found."`
	Title  string `json:"title" required:"true" description:"The kind in words."`
	Status int    `json:"status" required:"true" description:"The HTTP status."`
	Detail string `json:"detail,omitempty" description:"What went wrong, in this case."`
	Field  string `json:"field,omitempty" description:"The field of the request, or its query parameter, that is at fault."`
	Remedy string `json:"remedy,omitempty" description:"What the caller can do about it."`
	ID     string `json:"error_id,omitempty" description:"Where the daemon's log has more, for an internal error."`
}

// ProblemType is the media type of a Problem.
const ProblemType = "application/problem+json"

const problems = "/problems/"

// TypeOf returns the problem type of an error kind: "not found" is
// "/problems/not-found".
func TypeOf(kind string) string {
	return problems + strings.ReplaceAll(kind, " ", "-")
}

// Kind returns the error kind that TypeOf made p.Type from, or "".
func (p Problem) Kind() string {
	kind, ok := strings.CutPrefix(p.Type, problems)
	if !ok {
		return ""
	}
	return strings.ReplaceAll(kind, "-", " ")
}
