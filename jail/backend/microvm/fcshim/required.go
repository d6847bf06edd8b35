package main

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// checkRequired returns an error if the object in text, which was decoded into a pointer, lacks a field.
func checkRequired(text []byte, into any) error {
	t := reflect.TypeOf(into).Elem()
	switch t.Kind() {
	case reflect.Struct:
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil {
			return err
		}
		for n := range t.NumField() {
			f := t.Field(n)
			name := f.Tag.Get("json")
			value, ok := fields[name]
			if !ok {
				if f.Tag.Get("required") != "" {
					return fmt.Errorf("An error occurred when deserializing the json body of a request: missing field `%s`.", name)
				}
				continue
			}
			if string(value) == "null" {
				return fmt.Errorf("An error occurred when deserializing the json body of a request: invalid type: null (%s).", name)
			}
			if err := checkRequired(value, reflect.New(f.Type).Interface()); err != nil {
				return err
			}
		}
	case reflect.Slice:
		var items []json.RawMessage
		if err := json.Unmarshal(text, &items); err != nil {
			return err
		}
		for _, item := range items {
			if err := checkRequired(item, reflect.New(t.Elem()).Interface()); err != nil {
				return err
			}
		}
	}
	return nil
}
