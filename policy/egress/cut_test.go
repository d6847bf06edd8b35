package egress

import (
	"testing"

	"glasshouse/internal/texttest"
)

func TestRecordPathIsClippedAtRuneBoundary(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "the path of a record", func(path string) string {
		var kept []Record
		p := &Proxy{conf: Config{Recorder: recorderFunc(func(r Record) { kept = append(kept, r) })}}
		p.record(Record{Request: Request{Path: path}, Allowed: true})
		return kept[0].Path
	})
}

type recorderFunc func(Record)

func (f recorderFunc) Record(r Record) { f(r) }
