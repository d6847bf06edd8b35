// Command attack is a capability that means harm. It is built by the tests of the same
// name and runs in the jail of a capability: it reads on its standard input what to try,
// tries all of that, and writes what became of it.
//
// An attempt that succeeds says what it got. None may.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// An order is what to try.
type order struct {
	Do    string            `json:"do"`
	Words map[string]string `json:"words"` // of the test: paths, addresses, values
}

// An attempt is one thing to try. What it returns it should not have.
type attempt struct {
	what string
	try  func() (got string, err error)
}

// A try is what became of an attempt.
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

// list is the words of one, separated by spaces.
func list(words map[string]string, key string) []string { return strings.Fields(words[key]) }

// done says that something could be done that returned no error.
func done(err error) (string, error) {
	if err != nil {
		return "", err
	}
	return "it could be done", nil
}

// has is what was read, if one of the values is in it.
func has(b []byte, err error, values []string) (string, error) {
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(values, func(v string) bool { return strings.Contains(string(b), v) }); i >= 0 {
		return "it is there: " + values[i], nil
	}
	return "", nil
}
