package chain_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/policy/chain"
)

func TestCanonicalRFC8785(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		// RFC 8785, sections 3.2.2 and 3.2.3.
		{`{
			"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
			"string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
			"literals": [null, true, false]
		}`, `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`},
		{`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
			`{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`},
		{` [ ] `, `[]`},
		{`{ }`, `{}`},
		{`{"b":{"d":1,"c":2},"a":[{"z":1,"y":2}]}`, `{"a":[{"y":2,"z":1}],"b":{"c":2,"d":1}}`},
		{`{"aa":1,"a":2,"":3}`, `{"":3,"a":2,"aa":1}`},
		{`"\b\t\n\f\r\u0000\u001f\u007f\/"`, `"\b\t\n\f\r\u0000\u001f` + "\x7f" + `/"`},
		{`"\ud83c\udfe0"`, `"🏠"`},
		{`-0`, `0`}, {`-0.0e5`, `0`}, {`1.0`, `1`}, {`1e2`, `100`}, {`-1.50`, `-1.5`},
		{`9007199254740991`, `9007199254740991`},
		{`100000000000000000000`, `100000000000000000000`},
	} {
		got, err := chain.Canonical([]byte(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("Canonical(%s)\n got %s, %v\nwant %s", c.in, got, err, c.want)
		}
	}
}

// TestCanonicalNumbers uses the samples of RFC 8785, appendix B.
func TestCanonicalNumbers(t *testing.T) {
	for bits, want := range map[uint64]string{
		0x0000000000000000: "0", 0x8000000000000000: "0",
		0x0000000000000001: "5e-324", 0x8000000000000001: "-5e-324",
		0x7fefffffffffffff: "1.7976931348623157e+308", 0xffefffffffffffff: "-1.7976931348623157e+308",
		0x4340000000000000: "9007199254740992", 0xc340000000000000: "-9007199254740992",
		0x4430000000000000: "295147905179352830000", 0x44b52d02c7e14af5: "9.999999999999997e+22",
		0x44b52d02c7e14af6: "1e+23", 0x44b52d02c7e14af7: "1.0000000000000001e+23",
		0x444b1ae4d6e2ef4e: "999999999999999700000", 0x444b1ae4d6e2ef4f: "999999999999999900000",
		0x444b1ae4d6e2ef50: "1e+21", 0x3eb0c6f7a0b5ed8c: "9.999999999999997e-7",
		0x3eb0c6f7a0b5ed8d: "0.000001", 0x41b3de4355555553: "333333333.3333332",
		0x41b3de4355555554: "333333333.33333325", 0x41b3de4355555555: "333333333.3333333",
		0x41b3de4355555556: "333333333.3333334", 0x41b3de4355555557: "333333333.33333343",
		0xbecbf647612f3696: "-0.0000033333333333333333", 0x43143ff3c1cb0959: "1424953923781206.2",
	} {
		in := strconv.FormatFloat(math.Float64frombits(bits), 'e', 20, 64)
		got, err := chain.Canonical([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("Canonical(%s) = %s, %v; want %s", in, got, err, want)
		}
	}
}

func TestCanonicalRejectsAmbiguousInput(t *testing.T) {
	for name, in := range map[string]string{
		"nothing":                       ``,
		"a key twice":                   `{"a":1,"b":2,"a":3}`,
		"a key twice, escaped":          `{"a":1,"\u0061":3}`,
		"half of a surrogate pair":      `"\ud83d"`,
		"the other half":                `"\udc00"`,
		"two first halves":              `"\ud83d\ud83d"`,
		"not UTF-8":                     "\"\xff\"",
		"a surrogate in UTF-8":          "\"\xed\xa0\x80\"",
		"an integer no double can hold": `9007199254740993`,
		"another":                       `{"ns":1700000000123456789}`,
		"a number beyond all":           `1e400`,
		"more behind it":                `{} {}`,
		"a comma too many":              `[1,]`,
		"a comma too many in an object": `{"a":1,}`,
		"a leading zero":                `01`,
		"no digits behind the point":    `1.`,
		"a plus":                        `+1`,
		"NaN":                           `NaN`,
		"a comment":                     `{} // x`,
		"a raw control character":       "\"\n\"",
		"an unknown escape":             `"\x41"`,
		"a string without end":          `"abc`,
		"an escape without end":         `"abc\`,
		"a byte order mark":             "\ufeff{}",
		"too deep":                      strings.Repeat("[", 100) + strings.Repeat("]", 100),
	} {
		if got, err := chain.Canonical([]byte(in)); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: Canonical(%q) = %s, %v; want invalid", name, in, got, err)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{
		`{"b":[1,2.5,-0,1e21,1e-7],"a":"\u20ac\ud83d\ude00\u0000\n","\ufb33":null,"😀":true}`, `"\ud800"`, `[[[]]]`, `9007199254740993`, `{"a":1,"a":2}`, `1e400`, ` {} x`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		once, err := chain.Canonical(in)
		if canonical := chain.IsCanonical(in); canonical != (err == nil && bytes.Equal(once, in)) {
			t.Fatalf("IsCanonical = %v for %q, but Canonical = %q, %v", canonical, in, once, err)
		}
		if err != nil {
			return
		}
		twice, err := chain.Canonical(once)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("Canonical(%q) = %q, then %q, %v", in, once, twice, err)
		}
		// The standard library decodes the same value.
		var a, b any
		if err := json.Unmarshal(in, &a); err != nil {
			t.Fatalf("Canonical accepts %q, but encoding/json does not: %v", in, err)
		}
		if err := json.Unmarshal(once, &b); err != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("Canonical(%q) = %q has a different value", in, once)
		}
	})
}
