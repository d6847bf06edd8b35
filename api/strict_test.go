package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe/event"
)

// Any input is either refused as invalid, or decoded like encoding/json does, without unknown
// fields. It never panics.
func FuzzStrictJSON(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"name":"a","limits":{"memory_mb":1},"mounts":[{"source":"/a","target":"/b","write":true}],"env":{"A":"b"}}`,
		`{"name":"a","name":"b"}`, `{"NAME":"a"}`, `null`, `{"workspace":null}`, `{"labels":{"a":"b","a":"c"}}`, `{"\u006eame":"x"}`, `[{}]`, `{"command":[null]}`,
	} {
		f.Add([]byte(s))
	}
	known := map[string]bool{}
	for i, t := 0, reflect.TypeFor[wire.CreateJail](); i < t.NumField(); i++ {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		known[name] = true
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var got, want wire.CreateJail
		err := decodeStrict(raw, &got)
		if err != nil {
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("%q: %v, want invalid", raw, err)
			}
			return
		}
		if err := json.Unmarshal(raw, &want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q decoded to %+v, want %+v, %v", raw, got, want, err)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
			t.Errorf("%q is not an object but was accepted: %v", raw, err)
		}
		for name := range fields {
			if !known[name] {
				t.Errorf("%q was accepted with the unknown field %q", raw, name)
			}
		}
	})
}

func FuzzParameters(f *testing.F) {
	for _, s := range []string{"", "limit=1", "label=a=b&label=c=d", "after=j-aaaaaaaaaaaa", "limit=%31", "a;b", "%", "limit=1&limit=2", "name=%00", "uid=4294967296", "tar", "cols=65536", "from=-1", "\x80=1"} {
		f.Add(s, "j-aaaaaaaaaaaa")
	}
	f.Fuzz(func(t *testing.T, query, path string) {
		for _, into := range []any{&eventParams{}, &diffParams{}, &listJails{}, &listJailSnapshots{}, &deleteJail{}, &lineageParams{}, &getFile{}, &putFile{}, &getExec{}, &terminalParams{}, &paging{}, &none{}} {
			r := &http.Request{URL: &url.URL{RawQuery: query}}
			r.SetPathValue("id", path)
			r.SetPathValue("exec", "x-aaaaaaaaaaaa")
			err := readParams(r, into)
			if kind := fault.KindOf(err); err != nil && kind != fault.Invalid && kind != fault.NotFound {
				t.Errorf("%q: %v", query, err)
			}
			if p, ok := into.(*getFile); ok && err == nil && !id.Valid('j', string(p.ID)) {
				t.Errorf("the path %q was accepted as a jail id", path)
			}
			for _, text := range []string{fault.FieldOf(err), problemText(err)} {
				if strings.ContainsAny(text, "\n\r\x00") {
					t.Errorf("%q: the problem contains a line break: %q", query, text)
				}
			}
		}
	})
}

func problemText(err error) string {
	if err == nil {
		return ""
	}
	return fault.Detail(err)
}

func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-1", "bytes=-5", "bytes=5-", "bytes=9223372036854775807-", "bytes=-9223372036854775808", "bytes= 1-2", "bytes=1-2,3-4"} {
		f.Add(s, int64(10))
	}
	f.Fuzz(func(t *testing.T, h string, size int64) {
		size = max(size, 0)
		from, n, err := parseRange(h, size)
		if err != nil || n < 0 {
			return
		}
		if from < 0 || n == 0 || from+n > size {
			t.Errorf("%q of %d bytes is %d from %d on", h, size, n, from)
		}
	})
}

func TestPagesContainNoNull(t *testing.T) {
	for _, v := range []any{
		wire.Page[int]{Items: each([]int(nil), func(n int) int { return n })},
	} {
		if b, _ := json.Marshal(v); strings.Contains(string(b), "null") {
			t.Errorf("%s, want []", b)
		}
	}
}

// Any parameter value is one value of one term, and an error names the parameter.
func FuzzRecordFilter(f *testing.F) {
	for _, s := range []string{"a", "a b", `"`, `\`, "a,b", "*", "x type:proc", "<0", "EPERM", `a" type:net "`, "-x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		rf, err := recordFilter{Comm: value}.filter()
		if err != nil {
			if field := fault.FieldOf(err); !errors.Is(err, fault.Invalid) || field != "comm" && field != "q" {
				t.Errorf("%q: %v", value, err)
			}
			return
		}
		if got, want := rf.Types(), []event.Type{event.Syscall, event.File, event.Net, event.Proc}; value != "" && !slices.Equal(got, want) {
			t.Errorf("%q: a term for comm matches events of types %v, want %v: %s", value, got, want, rf)
		}
	})
}
