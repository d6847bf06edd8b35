package run

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
)

// predicateCases are predicates, and whether they hold for a run with five steps and two
// successful calls of places.search.
var predicateCases = []struct {
	text  string
	holds bool
}{
	{`"manual"`, false},
	{`{"capability":"places.search"}`, true},
	{`{"capability":"places.book"}`, false},
	{`{"and":[{"capability":"places.search"},{"rtfs":"(> (:steps run) 3)"}]}`, true},
	{`{"and":[{"capability":"places.search"},"manual"]}`, false},
	{`{"or":["manual",{"capability":"places.search"}]}`, true},
	{`{"or":["manual",{"capability":"places.book"}]}`, false},
	{`{"not":{"capability":"places.book"}}`, true},
	{`{"not":{"not":"manual"}}`, false},
	{`{"rtfs":"(> (:steps run) 3)"}`, true},
	{`{"rtfs":"(= (get (:capabilities run) \"places.search\") 2)"}`, true},
	{`{"rtfs":"(= (:state run) :active)"}`, true},
	{`{"rtfs":"(let [n (:steps run)] (and (> n 3) (< n 10)))"}`, true},
	{`{"rtfs":"(> (:steps run) 30)"}`, false},
	// If an expression fails, neither the predicate nor its negation holds.
	{`{"rtfs":"(/ 1 0)"}`, false},
	{`{"not":{"rtfs":"(/ 1 0)"}}`, false},
	{`{"rtfs":"(:steps run)"}`, false},
	{`{"not":{"rtfs":"(:no-such-thing run)"}}`, false},
	{`{"rtfs":"(call \"fs.delete\" {})"}`, false},
	{`{"rtfs":"(loop [n 0] (recur (inc n)))"}`, false},
	{`{"rtfs":"(do (def f (fn [n] (inc (f n)))) (> (f 0) 0))"}`, false},
}

func evaluateCase(t testing.TB, u *Until) (bool, string, error) {
	t.Helper()
	r := Run{State: Active, Steps: 5, Created: time.Now()}
	succeeded := map[string]int64{"places.search": 2}
	return u.evaluate(context.Background(), facts{succeeded: succeeded, record: r.rtfsRecord(succeeded)})
}

func TestUntilEvaluate(t *testing.T) {
	for _, c := range predicateCases {
		u, err := ParseUntil([]byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		holds, missing, err := evaluateCase(t, u)
		if got := holds && err == nil; got != c.holds {
			t.Errorf("%s = %v, %v, want %v", c.text, got, err, c.holds)
		}
		if !holds && err == nil && missing == "" {
			t.Errorf("%s does not hold, but no reason is given", c.text)
		}
		again, err := json.Marshal(u)
		if err != nil || !sameJSON(t, again, []byte(c.text)) {
			t.Errorf("%s marshals as %s, %v", c.text, again, err)
		}
	}
}

func sameJSON(t testing.TB, a, b []byte) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	s, _ := json.Marshal(x)
	u, _ := json.Marshal(y)
	return string(s) == string(u)
}

func TestManualConditionHoldsIfSet(t *testing.T) {
	u, err := ParseUntil([]byte(`{"and":["manual",{"not":{"not":"manual"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if holds, _, err := u.evaluate(t.Context(), facts{manual: true}); !holds || err != nil {
		t.Errorf("evaluate = %v, %v, want true", holds, err)
	}
}

func TestParseUntilRefusesInvalid(t *testing.T) {
	for _, text := range []string{
		``, `null`, `1`, `[]`, `{}`, `"soon"`, `{"capability":""}`, `{"capability":1}`, `{"capability":"a","and":[]}`, `{"and":[]}`, `{"and":"x"}`,
		`{"and":[{"xor":[]}]}`, `{"not":[]}`, `{"rtfs":""}`, `{"rtfs":"(+ 1"}`, `{"rtfs":"1) (delete-all"}`, `{"rtfs":"true false"}`, `{"rtfs":"(> steps 3)"}`,
		`{"manual":true}`, `"manual" "manual"`, `{"not":"manual"} x`, `{"capability":"` + strings.Repeat("x", 300) + `"}`,
		strings.Repeat(`{"not":`, 40) + `"manual"` + strings.Repeat(`}`, 40),
		`{"or":[` + strings.Repeat(`"manual",`, 300) + `"manual"]}`, "\xff",
	} {
		if u, err := ParseUntil([]byte(text)); fault.KindOf(err) != fault.Invalid {
			t.Errorf("ParseUntil(%.60s) = %v, %v, want invalid", text, u, err)
		}
	}
	if _, err := ParseUntil([]byte(`"` + strings.Repeat("x", 65<<10) + `"`)); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("ParseUntil of a long input = %v", err)
	}
}

func FuzzUntil(f *testing.F) {
	for _, c := range predicateCases {
		f.Add([]byte(c.text))
	}
	f.Add([]byte(`{"and":[{"or":[{"not":"manual"}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		u, err := ParseUntil(data)
		if err != nil {
			return
		}
		text, err := json.Marshal(u)
		if err != nil {
			t.Fatalf("marshal the predicate %q: %v", data, err)
		}
		again, err := ParseUntil(text)
		if err != nil {
			t.Fatalf("%q marshals as %q, which does not parse: %v", data, text, err)
		}
		if twice, err := json.Marshal(again); err != nil || string(twice) != string(text) {
			t.Fatalf("%q marshals as %q, and then as %q, %v", data, text, twice, err)
		}
		if !strings.Contains(string(data), "rtfs") {
			evaluateCase(t, u)
		}
	})
}
