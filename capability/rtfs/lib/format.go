package lib

import (
	"fmt"
	"strings"

	"glasshouse/capability/rtfs/form"
)

// widest is the maximum width and precision of a directive.
const widest = 1000

// format implements the function format. It checks the number and types of the arguments,
// because the template may come from outside the program.
func format(c Call, args []form.Value) (form.Value, error) {
	template, err := text("format", args, 0)
	if err != nil {
		return nil, err
	}
	if err := scan(c, template); err != nil {
		return nil, err
	}
	var b strings.Builder
	used := 1
	for rest := template; rest != ""; {
		plain, after, found := strings.Cut(rest, "%")
		b.WriteString(plain)
		if !found {
			break
		}
		d, err := readDirective(after)
		if err != nil {
			return nil, err
		}
		rest = after[d.length:]
		if d.verb == '%' {
			b.WriteByte('%')
			continue
		}
		if used == len(args) {
			return nil, invalid("format", "the template needs more than the %d given values", used-1)
		}
		s, err := d.fill(c, args, used)
		if err != nil {
			return nil, err
		}
		if err := c.Step(1); err != nil {
			return nil, err
		}
		b.WriteString(s)
		if err := c.Alloc(int64(len(plain) + len(s))); err != nil {
			return nil, err
		}
		used++
	}
	if used < len(args) {
		return nil, invalid("format", "the template takes %d values, got %d", used-1, len(args)-1)
	}
	return b.String(), nil
}

// A directive is a parsed % directive.
type directive struct {
	spec   string // with the percent sign, in the syntax of package fmt, without the verb
	verb   byte
	length int
}

func readDirective(s string) (directive, error) {
	i := 0
	for i < len(s) && strings.IndexByte("-+ 0", s[i]) >= 0 {
		i++
	}
	i, width := digits(s, i)
	precision := 0
	if i < len(s) && s[i] == '.' {
		i, precision = digits(s, i+1)
	}
	if width > widest || precision > widest {
		return directive{}, invalid("format", "a width or precision of more than %d", widest)
	}
	if i == len(s) {
		return directive{}, invalid("format", "the template ends within a directive")
	}
	if strings.IndexByte("sdfexoc%", s[i]) < 0 {
		return directive{}, invalid("format", "unknown directive %%%s", s[i:i+offset(s[i:], 1)])
	}
	return directive{spec: "%" + s[:i], verb: s[i], length: i + 1}, nil
}

// digits parses a number. It saturates at a value that is too large anyway.
func digits(s string, i int) (next, n int) {
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		n = min(n*10+int(s[i]-'0'), widest+1)
		i++
	}
	return i, n
}

func (d directive) fill(c Call, args []form.Value, i int) (string, error) {
	v := args[i]
	switch d.verb {
	case 's':
		s, err := display(c, v)
		return fmt.Sprintf(d.spec+"s", s), err
	case 'd', 'x', 'o', 'c':
		n, err := integer("format", args, i)
		if err != nil {
			return "", err
		}
		if d.verb == 'c' {
			return fmt.Sprintf(d.spec+"c", rune(min(max(n, -1), 1<<31-1))), nil
		}
		return fmt.Sprintf(d.spec+string(d.verb), n), nil
	}
	f, ok := toFloat(v)
	if !ok {
		return "", notANumber("format", i, v)
	}
	return fmt.Sprintf(d.spec+string(d.verb), f), nil
}
