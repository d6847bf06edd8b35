package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"glasshouse/internal/text"
)

// formats are the values of --output.
var formats = []string{"table", "json", "yaml", "name"}

// addFormat adds the flags that select the format of the output.
func (c *command) addFormat(root *cobra.Command) {
	root.PersistentFlags().StringVarP(&c.format, "output", "o", "", "output format: table (default), json, yaml, or name (only ids or names)")
	root.PersistentFlags().BoolVar(&c.json, "json", false, "output JSON; short for -o json")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		switch c.format {
		case "", "table":
			if c.format == "table" && c.json {
				return usagef("--json and -o table exclude each other")
			}
		case "json", "yaml", "name":
			if c.json && c.format != "json" {
				return usagef("--json and -o %s exclude each other", c.format)
			}
			c.json = true
		}
		return nil
	}
}

// converts reports whether JSON is only the source of the selected format.
func (c *command) converts() bool { return c.format == "yaml" || c.format == "name" }

// writeJSON writes a JSON value in the selected format: as it is, as YAML, or only its names.
func (c *command) writeJSON(value []byte) error {
	var err error
	switch c.format {
	case "yaml":
		value, err = yamlOf(value)
		if c.documents > 0 {
			value = append([]byte("---\n"), value...)
		}
		c.documents++
	case "name":
		value, err = namesIn(value)
	}
	if err != nil {
		return err
	}
	_, err = c.env.Stdout.Write(text.JSON(value))
	return err
}

// yamlOf converts JSON to YAML. It keeps the order of the fields and the digits of numbers.
func yamlOf(value []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	root, err := yamlNode(dec)
	if err != nil {
		return nil, fmt.Errorf("convert to YAML: %w", err)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return nil, fmt.Errorf("convert to YAML: %w", err)
	}
	return b.Bytes(), nil
}

// yamlNode reads the next JSON value.
func yamlNode(dec *json.Decoder) (*yaml.Node, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch v := tok.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		if v == '{' {
			n.Kind = yaml.MappingNode // its content alternates between keys and values
		}
		for dec.More() {
			sub, err := yamlNode(dec)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, sub)
		}
		_, err := dec.Token() // the closing delimiter
		return n, err
	case string:
		n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: v}
		if strings.ContainsFunc(v, text.Hidden) {
			n.Style = yaml.DoubleQuotedStyle // in which text.JSON may write escapes
		}
		return n, nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: v.String()}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: cmp.Or(map[any]string{true: "true", false: "false"}[tok], "null")}, nil
}

// naming lists the fields that identify an object. The first field that the object has is used.
var naming = []string{"id", "name", "digest", "path", "host", "seq", "token"}

// namesIn returns one line for the object, or for each object of the list.
func namesIn(value []byte) ([]byte, error) {
	var list []map[string]json.RawMessage
	if bytes.HasPrefix(bytes.TrimSpace(value), []byte("[")) {
		if err := json.Unmarshal(value, &list); err != nil {
			return nil, usagef("-o name: the items have no names")
		}
	} else {
		list = make([]map[string]json.RawMessage, 1)
		if err := json.Unmarshal(value, &list[0]); err != nil {
			return nil, usagef("-o name: the result has no name")
		}
	}
	var b bytes.Buffer
	for _, item := range list {
		name := nameOf(item)
		if name == "" {
			return nil, usagef("-o name: the result has no name")
		}
		fmt.Fprintln(&b, text.Visible(name))
	}
	return b.Bytes(), nil
}

func nameOf(item map[string]json.RawMessage) string {
	for _, field := range naming {
		raw := item[field]
		var s string
		if len(raw) > 0 && json.Unmarshal(raw, &s) != nil {
			s = string(raw) // a number
		}
		if s != "" {
			return s
		}
	}
	return ""
}
