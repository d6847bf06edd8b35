package lib

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"glasshouse/capability/rtfs/form"
)

var texts = []Builtin{
	{"str", 0, -1, "[& xs]", "The concatenated texts of all arguments: strings without quotes, elements of collections in source notation.", str},
	{"pr-str", 0, -1, "[& xs]", "The texts of all arguments in source notation, separated by spaces.", prStr},
	{"string-length", 1, 1, "[s]", "The number of characters of a string.", stringLength},
	{"substring", 2, 3, "[s start end?]", "The characters from start up to, not including, end.", substring},
	{"string-contains", 2, 2, "[s part]", "Whether a string contains another.", contains("string-contains")},
	{"string-contains?", 2, 2, "[s part]", "The same as string-contains.", contains("string-contains?")},
	{"includes?", 2, 2, "[s part]", "The same as string-contains.", contains("includes?")},
	{"starts-with?", 2, 2, "[s part]", "Whether a string begins with another.", about("starts-with?", strings.HasPrefix)},
	{"ends-with?", 2, 2, "[s part]", "Whether a string ends with another.", about("ends-with?", strings.HasSuffix)},
	{"index-of", 2, 2, "[s part]", "The index of the first occurrence of a string in another, or nil.", index("index-of", strings.Index)},
	{"last-index-of", 2, 2, "[s part]", "The index of the last occurrence of a string in another, or nil.", index("last-index-of", strings.LastIndex)},
	{"blank?", 1, 1, "[s]", "Whether a string is nil, empty, or only white space.", blank},
	{"string-upper", 1, 1, "[s]", "The string in upper case.", changed("string-upper", strings.ToUpper)},
	{"upper", 1, 1, "[s]", "The same as string-upper.", changed("upper", strings.ToUpper)},
	{"upper-case", 1, 1, "[s]", "The same as string-upper.", changed("upper-case", strings.ToUpper)},
	{"string-lower", 1, 1, "[s]", "The string in lower case.", changed("string-lower", strings.ToLower)},
	{"lower", 1, 1, "[s]", "The same as string-lower.", changed("lower", strings.ToLower)},
	{"lower-case", 1, 1, "[s]", "The same as string-lower.", changed("lower-case", strings.ToLower)},
	{"capitalize", 1, 1, "[s]", "The first character in upper case, the others in lower case.", changed("capitalize", capitalized)},
	{"string-trim", 1, 1, "[s]", "The string without white space at its ends.", changed("string-trim", strings.TrimSpace)},
	{"trim", 1, 1, "[s]", "The same as string-trim.", changed("trim", strings.TrimSpace)},
	{"triml", 1, 1, "[s]", "The string without white space at its beginning.", changed("triml", trimLeft)},
	{"trimr", 1, 1, "[s]", "The string without white space at its end.", changed("trimr", trimRight)},
	{"string-join", 2, 2, "[separator coll]", "The texts of the elements, separated by the separator.", join("string-join")},
	{"join", 2, 2, "[separator coll]", "The same as string-join.", join("join")},
	{"split", 2, 2, "[s separator]", "The pieces of a string between separators; its characters if the separator is empty.", split},
	{"split-lines", 1, 1, "[s]", "The lines of a string, without line endings.", splitLines},
	{"replace", 3, 3, "[s old new]", "The string with every old replaced by new. Both are plain text; re-replace takes patterns.", replace},
	{"string-replace", 3, 3, "[s old new]", "The same as replace.", replace},
	{"format", 1, -1, "[template & xs]", "The template with %s, %d, %f, %e, %x, %o, %c and %% filled in, which take flags, a width and a precision.", format},
	{"name", 1, 1, "[x]", "The name of a keyword or symbol without its namespace; a string itself.", nameOf},
	{"namespace", 1, 1, "[x]", "The part before the slash in a keyword or symbol, or nil.", namespaceOf},
	{"keyword", 1, 1, "[x]", "The keyword of that name.", toKeyword},
	{"symbol", 1, 1, "[x]", "The symbol of that name.", toSymbol},
	{"parse-int", 1, 1, "[x]", "The integer that a string contains, without the space around it, or nil; a number without its fraction.", parseInt},
	{"parse-float", 1, 1, "[x]", "The number that a string contains, without the space around it, as a float, or nil.", parseFloat},
	{"int", 1, 1, "[x]", "x as an integer: a number without its fraction, the number in a string, 1 for true; otherwise 0.", toInt},
	{"float", 1, 1, "[x]", "x as a float; 0.0 if it is not a number.", asFloat},
	{"double", 1, 1, "[x]", "The same as float.", asFloat},
}

// display returns the text of a value for str.
func display(c Call, v form.Value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case float64:
		return displayFloat(v), nil
	case *form.Error:
		return v.Kind + ": " + v.Message, nil
	}
	return readable(c, v)
}

func displayFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// readable returns the source form of a value.
func readable(c Call, v form.Value) (string, error) {
	if err := measure(c, v, 0); err != nil {
		return "", err
	}
	return form.Text(v), nil
}

// measure charges for the text of a value before it is created. If a value shares parts, its
// text can be much larger than the value.
func measure(c Call, v form.Value, depth int) error {
	n := int64(8)
	if depth > deepest {
		return tooDeep()
	}
	switch v := v.(type) {
	case string:
		n += int64(len(v))
	case form.Keyword:
		n += int64(len(v))
	case form.Symbol:
		n += int64(len(v))
	case form.Vector:
		return measureAll(c, v, depth+1)
	case form.List:
		return measureAll(c, v, depth+1)
	case *form.Map:
		for k, item := range v.All() {
			if err := measure(c, k, depth+1); err != nil {
				return err
			}
			if err := measure(c, item, depth+1); err != nil {
				return err
			}
		}
	}
	if err := c.Step(1 + n/64); err != nil {
		return err
	}
	return c.Alloc(n)
}

func measureAll(c Call, all []form.Value, depth int) error {
	for _, item := range all {
		if err := measure(c, item, depth); err != nil {
			return err
		}
	}
	return c.Step(1)
}

func str(c Call, args []form.Value) (form.Value, error) {
	if len(args) == 1 {
		return display(c, args[0])
	}
	return joined(c, "", args, display)
}

func prStr(c Call, args []form.Value) (form.Value, error) { return joined(c, " ", args, readable) }

// joined concatenates the texts of all values with a separator, and charges while the result
// grows.
func joined(c Call, separator string, all []form.Value, textOf func(Call, form.Value) (string, error)) (form.Value, error) {
	var b strings.Builder
	for i, v := range all {
		s, err := textOf(c, v)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			s = separator + s
		}
		if err := c.Step(1 + int64(len(s)/64)); err != nil {
			return nil, err
		}
		if err := c.Alloc(int64(len(s))); err != nil {
			return nil, err
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

func stringLength(c Call, args []form.Value) (form.Value, error) {
	s, err := text("string-length", args, 0)
	if err != nil {
		return nil, err
	}
	return int64(utf8.RuneCountInString(s)), scan(c, s)
}

func substring(c Call, args []form.Value) (form.Value, error) {
	s, err := text("substring", args, 0)
	if err != nil {
		return nil, err
	}
	if err := scan(c, s); err != nil {
		return nil, err
	}
	length := utf8.RuneCountInString(s)
	start, err := integer("substring", args, 1)
	if err != nil {
		return nil, err
	}
	end := int64(length)
	if len(args) > 2 {
		if end, err = integer("substring", args, 2); err != nil {
			return nil, err
		}
	}
	if start < 0 || start > end || end > int64(length) {
		return nil, form.Errorf("IndexOutOfBounds", "substring: %d to %d is not within the %d characters there are", start, end, length)
	}
	return runes(s, int(start), int(end)), nil
}

// runes returns the characters of s between two indexes.
func runes(s string, from, to int) string {
	start := offset(s, from)
	return s[start : start+offset(s[start:], to-from)]
}

// offset returns the byte offset of character n of s, or the length of s.
func offset(s string, n int) int {
	for i := range s {
		if n <= 0 {
			return i
		}
		n--
	}
	return len(s)
}

// two returns the arguments of a function of two strings.
func two(c Call, op string, args []form.Value) (a, b string, err error) {
	if a, err = text(op, args, 0); err != nil {
		return "", "", err
	}
	if b, err = text(op, args, 1); err != nil {
		return "", "", err
	}
	return a, b, scan(c, a)
}

func contains(op string) Func { return about(op, strings.Contains) }

func about(op string, is func(s, part string) bool) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		s, part, err := two(c, op, args)
		return err == nil && is(s, part), err
	}
}

func index(op string, find func(s, part string) int) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		s, part, err := two(c, op, args)
		if err != nil {
			return nil, err
		}
		i := find(s, part)
		if i < 0 {
			return nil, nil
		}
		return int64(utf8.RuneCountInString(s[:i])), nil
	}
}

func blank(c Call, args []form.Value) (form.Value, error) {
	if args[0] == nil {
		return true, nil
	}
	s, err := text("blank?", args, 0)
	if err != nil {
		return nil, err
	}
	return strings.TrimSpace(s) == "", scan(c, s)
}

func changed(op string, change func(string) string) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		s, err := text(op, args, 0)
		if err != nil {
			return nil, err
		}
		if err := scan(c, s); err != nil {
			return nil, err
		}
		if err := c.Alloc(int64(len(s))); err != nil {
			return nil, err
		}
		return change(s), nil
	}
}

func capitalized(s string) string {
	n := offset(s, 1)
	return strings.ToUpper(s[:n]) + strings.ToLower(s[n:])
}

func trimLeft(s string) string  { return strings.TrimLeftFunc(s, unicode.IsSpace) }
func trimRight(s string) string { return strings.TrimRightFunc(s, unicode.IsSpace) }

func join(op string) Func {
	return func(c Call, args []form.Value) (form.Value, error) {
		separator, err := text(op, args, 0)
		if err != nil {
			return nil, err
		}
		all, err := items(op, args, 1)
		if err != nil {
			return nil, err
		}
		return joined(c, separator, all, display)
	}
}

func split(c Call, args []form.Value) (form.Value, error) {
	s, separator, err := two(c, "split", args)
	if err != nil {
		return nil, err
	}
	pieces := utf8.RuneCountInString(s)
	if separator != "" {
		pieces = strings.Count(s, separator) + 1
	}
	if err := charge(c, pieces, 2*element); err != nil {
		return nil, err
	}
	return vectorOf(strings.Split(s, separator)), nil
}

func vectorOf(texts []string) form.Vector {
	v := make(form.Vector, len(texts))
	for i, s := range texts {
		v[i] = s
	}
	return v
}

func splitLines(c Call, args []form.Value) (form.Value, error) {
	s, err := text("split-lines", args, 0)
	if err != nil {
		return nil, err
	}
	if err := charge(c, strings.Count(s, "\n")+1, 2*element); err != nil {
		return nil, err
	}
	lines := form.Vector{}
	for line := range strings.Lines(s) {
		lines = append(lines, strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"))
	}
	return lines, scan(c, s)
}

func replace(c Call, args []form.Value) (form.Value, error) {
	s, old, err := two(c, "replace", args)
	if err != nil {
		return nil, err
	}
	with, err := text("replace", args, 2)
	if err != nil {
		return nil, err
	}
	// An empty old text occurs at every character.
	n := int64(strings.Count(s, old))
	if err := c.Alloc(int64(len(s)) + n*int64(len(with))); err != nil {
		return nil, err
	}
	return strings.ReplaceAll(s, old, with), steps(c, int(n))
}

func nameOf(_ Call, args []form.Value) (form.Value, error) {
	if s, ok := args[0].(string); ok {
		return s, nil
	}
	_, name, err := named("name", args)
	return name, err
}

func namespaceOf(_ Call, args []form.Value) (form.Value, error) {
	space, _, err := named("namespace", args)
	if err != nil || space == "" {
		return nil, err
	}
	return space, nil
}

// named splits a keyword or symbol at its slash.
func named(op string, args []form.Value) (space, name string, err error) {
	switch v := args[0].(type) {
	case form.Keyword:
		name = string(v)
	case form.Symbol:
		name = string(v)
	default:
		return "", "", wrong(op, 0, "a keyword, a symbol or a string", v)
	}
	// A name of one character may be a slash.
	if i := strings.LastIndexByte(name, '/'); i > 0 && i < len(name)-1 {
		return name[:i], name[i+1:], nil
	}
	return "", name, nil
}

func toKeyword(_ Call, args []form.Value) (form.Value, error) {
	switch v := args[0].(type) {
	case form.Keyword:
		return v, nil
	case form.Symbol:
		return form.Keyword(v), nil
	case string:
		return form.Keyword(strings.TrimPrefix(v, ":")), nil
	}
	return nil, wrong("keyword", 0, "a string, a symbol or a keyword", args[0])
}

func toSymbol(_ Call, args []form.Value) (form.Value, error) {
	switch v := args[0].(type) {
	case form.Symbol:
		return v, nil
	case form.Keyword:
		return form.Symbol(v), nil
	case string:
		return form.Symbol(v), nil
	}
	return nil, wrong("symbol", 0, "a string, a symbol or a keyword", args[0])
}

func parseInt(_ Call, args []form.Value) (form.Value, error) {
	switch v := args[0].(type) {
	case int64:
		return v, nil
	case float64:
		return orNil(wholeInt(math.Trunc(v)))
	case string:
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		return orNil(n, err == nil)
	}
	return nil, nil
}

func parseFloat(_ Call, args []form.Value) (form.Value, error) {
	switch v := args[0].(type) {
	case int64:
		return float64(v), nil
	case float64:
		return v, nil
	case string:
		return orNil(floatIn(strings.TrimSpace(v)))
	}
	return nil, nil
}

func orNil[T any](v T, ok bool) (form.Value, error) {
	if !ok {
		return nil, nil
	}
	return v, nil
}

// floatIn parses a string as a decimal number.
func floatIn(s string) (float64, bool) {
	if strings.ContainsAny(s, "xX_") {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil
}

func toInt(_ Call, args []form.Value) (form.Value, error) {
	v := args[0]
	if s, ok := v.(string); ok {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n, nil
		}
		f, _ := floatIn(s)
		v = f
	}
	switch v := v.(type) {
	case int64:
		return v, nil
	case bool:
		return int64(truth(v)), nil
	case float64:
		if math.IsNaN(v) {
			return int64(0), nil
		}
		n, ok := wholeInt(math.Trunc(v))
		if !ok {
			return nil, overflow("int", v)
		}
		return n, nil
	}
	return int64(0), nil
}

func asFloat(_ Call, args []form.Value) (form.Value, error) {
	switch v := args[0].(type) {
	case int64:
		return float64(v), nil
	case float64:
		return v, nil
	case bool:
		return float64(truth(v)), nil
	case string:
		f, _ := floatIn(v)
		return f, nil
	}
	return 0.0, nil
}
