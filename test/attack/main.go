// Command attack is a malicious capability. The tests of the same name build it and run it in the
// jail of a capability: it reads an order from standard input, makes all attempts in it, and writes
// their results.
//
// A successful attempt returns the data that it obtained. No attempt may succeed.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// An order selects the attempts.
type order struct {
	Do    string            `json:"do"`
	Words map[string]string `json:"words"` // from the test: paths, addresses, values
}

// An attempt is one attack. Its result must be empty.
type attempt struct {
	what string
	try  func() (got string, err error)
}

// A try is the result of an attempt.
type try struct {
	What  string `json:"what"`
	Got   string `json:"got"`
	Error string `json:"error"`
}

var rows = map[string]func(words map[string]string) []attempt{
	"read": readHost, "write": writeHost, "secrets": secrets, "kernel": kernel, "privilege": privilege,
	"plant": plant, "look": lookForPlants, "ask": ask, "exhaust": exhaust, "hold": hold, "call": callOther,
}

func main() {
	var o order
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	row := rows[o.Do]
	if row == nil {
		fmt.Fprintf(os.Stderr, "%q is not one of the attacks\n", o.Do)
		os.Exit(1)
	}
	tried := []try{}
	for _, a := range row(o.Words) {
		got, err := a.try()
		t := try{What: a.what, Got: got[:min(len(got), 1000)]}
		if err != nil {
			t.Error = err.Error()
		}
		tried = append(tried, t)
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"tried": tried}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// list splits a value at spaces.
func list(words map[string]string, key string) []string { return strings.Fields(words[key]) }

// done reports an operation that returned no error as a success.
func done(err error) (string, error) {
	if err != nil {
		return "", err
	}
	return "it could be done", nil
}

// has returns the data if it contains one of the values.
func has(b []byte, err error, values []string) (string, error) {
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(values, func(v string) bool { return strings.Contains(string(b), v) }); i >= 0 {
		return "it is there: " + values[i], nil
	}
	return "", nil
}
