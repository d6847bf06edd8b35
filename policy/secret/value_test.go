package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"glasshouse/policy/secret"
)

const canary = "canary-7f3e19c4"

func TestValueIsNeverPrinted(t *testing.T) {
	v := secret.NewValue("API_KEY", []byte(canary))
	type hidden struct {
		Shown  secret.Value
		inside secret.Value
		point  *secret.Value
		list   []secret.Value
		table  map[string]secret.Value
	}
	s := hidden{v, v, &v, []secret.Value{v}, map[string]secret.Value{"k": v}}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%c", "%U", "%t", "%p", "%T", "% x", "%#x", "%08d"} {
		for _, what := range []any{v, &v, s, &s, []any{v}, map[string]any{"k": v}, struct{ secret.Value }{v}} {
			fmt.Fprintf(&out, verb+"\n", what)
		}
	}
	fmt.Fprintln(&out, fmt.Errorf("use %v: %w", v, fmt.Errorf("%s", v)))
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("message", "value", v, "struct", s, "any", []any{v}, slog.Group("g", "v", &v))
	}
	for _, what := range []any{v, &v, s, map[string]any{"k": v}} {
		b, err := json.Marshal(what)
		if err != nil {
			t.Error(err)
		}
		out.Write(b)
	}
	if b, err := xml.Marshal(v); err == nil {
		out.Write(b)
	}
	var encoded bytes.Buffer
	if err := gob.NewEncoder(&encoded).Encode(v); err == nil {
		t.Error("gob encoded the value")
	}
	out.Write(encoded.Bytes())
	var numbers []string // bytes as printed by %d
	for _, b := range []byte(canary[:6]) {
		numbers = append(numbers, fmt.Sprint(b))
	}
	for _, form := range []string{
		canary, strings.Join(numbers, " "), strings.Join(numbers, ","), hex.EncodeToString([]byte(canary)), strings.ToUpper(hex.EncodeToString([]byte(canary))),
		base64.StdEncoding.EncodeToString([]byte(canary))[:16],
	} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the value is printed as %s", form)
		}
	}
	if !strings.Contains(out.String(), "[secret API_KEY]") {
		t.Error("the name is not printed")
	}
}

func TestValueZero(t *testing.T) {
	b := []byte(canary)
	v := secret.NewValue("API_KEY", b)
	if string(v.Bytes()) != canary {
		t.Errorf("Bytes = %q", v.Bytes())
	}
	other := v
	v.Zero()
	v.Zero()
	if !bytes.Equal(b, make([]byte, len(b))) || other.Bytes() != nil || v.Bytes() != nil {
		t.Error("Zero did not overwrite the value")
	}
	var none secret.Value
	none.Zero()
	if none.Bytes() != nil || none.String() != "[secret ]" {
		t.Errorf("zero Value = %v", none)
	}
}
