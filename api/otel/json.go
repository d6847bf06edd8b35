package otel

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// marshalJSON encodes a request as OTLP/JSON: the JSON mapping of protobuf, but with
// enumerations as numbers and trace and span ids in hexadecimal (OTLP specification, JSON
// Protobuf Encoding).
func marshalJSON(m proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the message: %w", err)
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("decode the encoded message: %w", err)
	}
	if err := hexIDs(tree); err != nil {
		return nil, err
	}
	return json.Marshal(tree)
}

// hexIDs converts the ids in a value to hexadecimal. Attributes are lists of keys and values,
// so they cannot have a field of that name.
func hexIDs(at any) error {
	switch at := at.(type) {
	case []any:
		for _, v := range at {
			if err := hexIDs(v); err != nil {
				return err
			}
		}
	case map[string]any:
		for k, v := range at {
			text, is := v.(string)
			if !is || k != "traceId" && k != "spanId" && k != "parentSpanId" {
				if err := hexIDs(v); err != nil {
					return err
				}
				continue
			}
			id, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
			at[k] = hex.EncodeToString(id)
		}
	}
	return nil
}
