package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"glasshouse/api/wire"
)

// maxJailFile bounds the size of a file that describes a jail.
const maxJailFile = 1 << 20

// readJailFile reads the description of a jail: the fields of POST /jails, in YAML or JSON. The
// name - stands for standard input.
func (c *command) readJailFile(name string) (req wire.CreateJail, err error) {
	r := c.env.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return req, err
		}
		defer f.Close()
		r = f
	}
	data, err := io.ReadAll(io.LimitReader(r, maxJailFile+1))
	if err != nil {
		return req, fmt.Errorf("read the jail file: %w", err)
	}
	if len(data) > maxJailFile {
		return req, fmt.Errorf("%s is larger than %d bytes", name, maxJailFile)
	}
	dec := yaml.NewDecoder(strings.NewReader(string(data))) // JSON is YAML
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		return req, usagef("%s: %w", name, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return req, usagef("%s: want one document", name)
	}
	value, err := jsonOf(doc.Content[0], reflect.TypeFor[wire.CreateJail](), "")
	if err != nil {
		return req, usagef("%s: %w", name, err)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return req, fmt.Errorf("encode the jail file: %w", err)
	}
	return req, json.Unmarshal(text, &req)
}

// jsonOf returns a YAML value as encoding/json represents it, if t has such a value. Errors begin
// with the line and name the field at path.
func jsonOf(n *yaml.Node, t reflect.Type, path string) (any, error) {
	wrong := func(want string) (any, error) {
		return nil, fmt.Errorf("line %d: %s must be %s", n.Line, path, want)
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == yaml.AliasNode {
		return nil, fmt.Errorf("line %d: aliases are not supported", n.Line)
	}
	if n.Tag == "!!null" {
		return nil, nil
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		if n.Kind != yaml.MappingNode {
			if path == "" {
				path = "the description of a jail"
			}
			return wrong("a mapping of fields")
		}
		fields := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			key, sub := n.Content[i], reflect.Type(nil)
			at := strings.TrimPrefix(path+"."+key.Value, ".")
			if t.Kind() == reflect.Map {
				sub = t.Elem()
			} else {
				sub = fieldNamed(t, key.Value)
			}
			if sub == nil {
				return nil, fmt.Errorf("line %d: unknown field %s", key.Line, at)
			}
			if _, twice := fields[key.Value]; twice {
				return nil, fmt.Errorf("line %d: %s is set twice", key.Line, at)
			}
			v, err := jsonOf(n.Content[i+1], sub, at)
			if err != nil {
				return nil, err
			}
			fields[key.Value] = v
		}
		return fields, nil
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return wrong("a list")
		}
		list := []any{}
		for i, item := range n.Content {
			v, err := jsonOf(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i))
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	}
	if n.Kind != yaml.ScalarNode {
		return wrong("a single value")
	}
	switch t.Kind() {
	case reflect.String: // a number is also accepted, for example the uid in user
		return n.Value, nil
	case reflect.Bool:
		b, err := strconv.ParseBool(n.Value)
		if err != nil || n.Tag != "!!bool" {
			return wrong("true or false")
		}
		return b, nil
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(n.Value, 10, 64)
		if err != nil || n.Tag != "!!int" {
			return wrong("a whole number")
		}
		return i, nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return wrong("a " + t.String())
	}
	return v, nil
}

// fieldNamed returns the type of a struct's field by its name in JSON, or nil.
func fieldNamed(t reflect.Type, name string) reflect.Type {
	for f := range t.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && tag == "" {
			if sub := fieldNamed(f.Type, name); sub != nil {
				return sub
			}
		} else if tag == name && tag != "-" {
			return f.Type
		}
	}
	return nil
}
