package jail

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"glasshouse/jail/init/protocol"
)

func TestArchiveExec(t *testing.T) {
	broken := errors.New("broken")
	ended := time.Unix(1e9, 0)
	// The command wrote 4 bytes of output before it was listed. The first was dropped.
	listed := protocol.ExecStatus{ID: "x-1", Oldest: 1, Next: 4, Stdout: 4}
	atEnd := protocol.ExecStatus{ID: "x-1", Ended: &ended, Code: 3, Oldest: 1, Next: 6, Stdout: 6}
	piece := func(offset int64, data string) protocol.Chunk {
		return protocol.Chunk{Stream: protocol.Stdout, Offset: offset, Data: []byte(data)}
	}
	lost := func(from, to int64) protocol.Chunk {
		return protocol.Chunk{Stream: protocol.Stdout, Offset: to, Lost: to - from}
	}
	big := make([]byte, maxRing)
	for _, tt := range []struct {
		name   string
		chunks []protocol.Chunk
		status protocol.ExecStatus
		err    error
		want   archivedExec
	}{
		{"a command that ends meanwhile", []protocol.Chunk{piece(1, "bcd"), piece(4, "ef")}, atEnd, nil,
			archivedExec{atEnd, []protocol.Chunk{piece(1, "bcd"), piece(4, "ef")}}},
		{"output that breaks off", []protocol.Chunk{piece(1, "b")}, listed, broken,
			archivedExec{listed, []protocol.Chunk{piece(1, "b"), lost(2, 4)}}},
		{"output that breaks off after the command has ended", []protocol.Chunk{piece(1, "bcd")}, atEnd, broken,
			archivedExec{atEnd, []protocol.Chunk{piece(1, "bcd"), lost(4, 6)}}},
		{"no output", nil, protocol.ExecStatus{}, broken,
			archivedExec{listed, []protocol.Chunk{lost(1, 4)}}},
		{"all output, but not its end", []protocol.Chunk{piece(1, "bcd")}, listed, broken,
			archivedExec{listed, []protocol.Chunk{piece(1, "bcd")}}},
		{"too much output", []protocol.Chunk{piece(1, "bcd"), {Stream: protocol.Stderr, Offset: 4, Data: big}}, listed, nil,
			archivedExec{listed, []protocol.Chunk{piece(1, "bcd"), lost(4, 4+maxRing)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := archiveExec(listed, func(f func(protocol.Chunk) error) (protocol.ExecStatus, error) {
				for _, c := range tt.chunks {
					if err := f(c); err != nil {
						return tt.status, err
					}
				}
				return tt.status, tt.err
			})
			if complete := tt.name == "a command that ends meanwhile"; (err == nil) != complete {
				t.Errorf("err = %v, want nil: %v", err, complete)
			}
			if !reflect.DeepEqual(got.Status, tt.want.Status) {
				t.Errorf("status = %+v, want %+v", got.Status, tt.want.Status)
			}
			if !reflect.DeepEqual(got.Output, tt.want.Output) {
				t.Errorf("output = %.300s, want %.300s", fmt.Sprint(got.Output), fmt.Sprint(tt.want.Output))
			}
		})
	}
}
