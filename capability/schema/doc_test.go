package schema_test

import (
	"os"
	"strings"
	"testing"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

// manual returns the Clojure blocks and the table rows of docs/reference/schema.md.
func manual(t *testing.T) (blocks [][]string, rows [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/schema.md")
	if err != nil {
		t.Fatal(err)
	}
	var block []string
	inside := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "```clojure":
			inside = true
		case line == "```":
			inside, blocks, block = false, append(blocks, block), nil
		case inside:
			block = append(block, line)
		case strings.HasPrefix(line, "| `"):
			var row []string
			for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
				row = append(row, strings.Trim(strings.TrimSpace(cell), "`"))
			}
			rows = append(rows, row)
		}
	}
	return blocks, rows
}

func TestManualExamples(t *testing.T) {
	blocks, rows := manual(t)
	if len(blocks) < 10 || len(rows) < 20 {
		t.Fatalf("%d blocks, %d rows", len(blocks), len(rows))
	}
	for _, block := range blocks {
		if len(block) == 3 && strings.HasPrefix(block[2], "; ") {
			if got, want := problem(typeOf(t, block[0]), valueOf(t, block[1])), block[2][2:]; got != want {
				t.Errorf("%s of %s:\n got %s\nwant %s", block[1], block[0], got, want)
			}
			continue
		}
		for _, line := range block {
			text, values, _ := strings.Cut(line, ";")
			yes, no, refuses := strings.Cut(values, "; not")
			if !refuses {
				yes, no, _ = strings.Cut(values, " not ")
			}
			typ := typeOf(t, text)
			for _, v := range valueOf(t, "["+yes+"]").(form.Vector) {
				if err := typ.Check(v); err != nil {
					t.Errorf("%s: %v", line, err)
				}
			}
			for _, v := range valueOf(t, "["+no+"]").(form.Vector) {
				if typ.Check(v) == nil {
					t.Errorf("%s: %s fits", line, form.Text(v))
				}
			}
			if len(valueOf(t, "["+yes+no+"]").(form.Vector)) == 0 {
				t.Errorf("%s: no explanation", line)
			}
		}
	}
	for _, row := range rows {
		checkRow(t, row)
	}
}

// checkRow checks a row of a table of JSON values, JSON Schemas, or imports.
func checkRow(t *testing.T, row []string) {
	t.Helper()
	switch {
	case strings.HasPrefix(row[0], "{"):
		typ, lost, err := schema.FromJSONSchema([]byte(row[0]))
		if err != nil || typ.String() != row[1] || strings.Join(lost, "; ") != row[2] {
			t.Errorf("%s is %s, lost %q, %v", row[0], typ, lost, err)
		}
	case len(row) == 3:
		v, err := typeOf(t, row[0]).FromJSON([]byte(row[1]))
		if err != nil || form.Text(v) != row[2] {
			t.Errorf("%s of %s is %s, %v", row[1], row[0], form.Text(v), err)
		}
	default:
		if got := string(jsonSchema(t, typeOf(t, row[0]))); got != row[1] {
			t.Errorf("%s is %s", row[0], got)
		}
	}
}
