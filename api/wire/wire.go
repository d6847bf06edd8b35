// Package wire defines the JSON request and response bodies of the HTTP API.
//
// Only these types are a public interface; other types may change at any time. Names are
// snake_case, times are RFC 3339, durations are whole milliseconds and sizes are bytes, unless
// the name says otherwise. The OpenAPI document contains the description tags.
package wire

import "strings"

// Page is one page of a list. A request with after=Next returns the next page. Next is
// empty on the last page.
type Page[T any] struct {
	Items []T    `json:"items" required:"true" description:"Items of the page."`
	Next  string `json:"next,omitempty" description:"Pass as 'after' to get the items that follow. Absent on the last page."`
}

// Problem is an error in the format of RFC 9457. Its media type is ProblemType.
type Problem struct {
	Type   string `json:"type" required:"true" description:"URI of the problem type, such as /problems/not-found."`
	Title  string `json:"title" required:"true" description:"Short description of the problem type."`
	Status int    `json:"status" required:"true" description:"The HTTP status."`
	Detail string `json:"detail,omitempty" description:"What failed and why."`
	Field  string `json:"field,omitempty" description:"The request field or query parameter that is invalid."`
	Remedy string `json:"remedy,omitempty" description:"How the caller can resolve the problem."`
	ID     string `json:"error_id,omitempty" description:"For an internal error: the id under which the daemon's log has details."`
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
