package api

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/observe/event"
	"glasshouse/observe/report"
)

type networkParams struct {
	ID id.Jail `path:"id"`
	paging
	Since   string `query:"since" description:"Start of the time range: a time (RFC 3339), or a duration before now, such as 5m."`
	Until   string `query:"until" description:"End of the time range."`
	Packets bool   `query:"packets" description:"Return the network events as lines of JSON. Equivalent to Accept: application/x-ndjson."`
}

// listNetworkFlows responds with the network log of a jail.
func (h *networkHandler) listNetworkFlows(w http.ResponseWriter, r *http.Request, p networkParams) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	part := window{Since: p.Since, Until: p.Until}
	if p.Packets || accepts(r, lineKind) {
		if p.Limit != 0 || p.After != "" {
			return fault.Fieldf("api.listNetworkFlows", "packets", "packet events are not paged; GET /jails/%s/events?type=net has limit and after", p.ID)
		}
		return h.events.streamEvents(w, r, eventParams{ID: p.ID, recordFilter: recordFilter{Q: netRecords}, window: part, Format: "ndjson"})
	}
	n, err := limit(p.Limit)
	if err != nil {
		return err
	}
	var after uint64
	if p.After != "" {
		after, err = strconv.ParseUint(p.After, 10, 64)
		if err != nil {
			return fault.Fieldf("api.listNetworkFlows", "after", "%q is not the 'next' of a page", text.Clip(p.After, 64))
		}
	}
	log := report.NewNetLog()
	err = h.recordings.folded(r.Context(), p.ID, netRecords, part, func(src report.Events) error {
		var e event.Event
		for {
			if _, err := src.Next(&e); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			log.Add(&e)
		}
	})
	if err != nil {
		return err
	}
	list, count := log.Flows()
	if accepts(r, textKind) {
		var b bytes.Buffer
		if err := report.WriteNet(&b, list); err != nil {
			return fmt.Errorf("render the list of flows: %w", err)
		}
		if more := count.N - int64(len(list)); more > 0 {
			fmt.Fprintf(&b, "and %d more, of fewer bytes\n", more)
		}
		return writeText(w, b.Bytes())
	}
	list = list[from(list, after):]
	list, next := cut(list, n, func(f report.Flow) string { return strconv.FormatUint(f.Events.First, 10) })
	return writeJSON(w, http.StatusOK, struct {
		Items []report.Flow `json:"items"`
		Next  string        `json:"next,omitempty"`
		Count int64         `json:"count"`
	}{list, next, count.N})
}

// from returns the index of the first flow in list that began after an event. The sequence
// numbers of the first events are unique.
func from(list []report.Flow, after uint64) int {
	i, found := slices.BinarySearchFunc(list, after, func(f report.Flow, seq uint64) int {
		return int(min(max(int64(f.Events.First)-int64(seq), -1), 1))
	})
	if found {
		i++
	}
	return i
}

// getNetworkPackets responds with the retained packets of a jail.
func (h *networkHandler) getNetworkPackets(w http.ResponseWriter, r *http.Request, p oneJail) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	j, err := h.jails.Get(r.Context(), p.ID)
	if err != nil {
		return err
	}
	if h.recordings.observed == nil {
		return errNotObserved
	}
	names, err := h.recordings.observed.Packets(p.ID)
	if err != nil {
		return fmt.Errorf("list the packet captures of jail %s: %w", p.ID, err)
	}
	w.(*recorder).stream = true
	begun := false
	for _, name := range names {
		blocks, f, err := openBlocks(name)
		if err != nil {
			return fmt.Errorf("open packet capture %s: %w", name, err)
		}
		if blocks.Size() > 0 && !begun {
			download(w, "application/x-pcapng", string(p.ID)+".pcapng")
			begun = true
		}
		if err := errors.Join(send(w, r, blocks), f.Close()); err != nil {
			return err
		}
	}
	if begun {
		return nil
	}
	missing := &fault.Error{Op: "api.getNetworkPackets", On: string(p.ID), Kind: fault.NotFound, Err: errors.New("the jail has not sent or received packets yet")}
	if j.Spec.Observe.Packets == 0 {
		missing.Err = errors.New("packet capture is disabled for this jail")
		missing.Remedy = "create a jail with observe.packet_bytes above 0, such as 128"
	}
	return missing
}

// openBlocks opens the complete blocks of a pcapng file. A file that is being written may end
// with an incomplete block, after which a reader could not parse the next file.
func openBlocks(name string) (*io.SectionReader, io.Closer, error) {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) { // removed by retention since it was listed
		return io.NewSectionReader(f, 0, 0), io.NopCloser(nil), nil
	}
	if err != nil {
		return nil, nil, err
	}
	size, err := wholeBlocks(f)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("read %s: %w", name, err), f.Close())
	}
	return io.NewSectionReader(f, 0, size), f, nil
}

// wholeBlocks returns the length of a pcapng file without an incomplete last block. A block
// begins with its type and length; each section header states the byte order.
func wholeBlocks(f *os.File) (size int64, err error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("read the size of the packet capture: %w", err)
	}
	const section, magic, least = 0x0a0d0d0a, 0x1a2b3c4d, 12
	var order binary.ByteOrder = binary.LittleEndian
	var head [least]byte
	for size+least <= fi.Size() {
		if _, err := f.ReadAt(head[:], size); err != nil {
			return 0, fmt.Errorf("read the block header at offset %d: %w", size, err)
		}
		if binary.LittleEndian.Uint32(head[:]) == section { // a palindrome, so the byte order does not matter
			order = binary.LittleEndian
			if order.Uint32(head[8:]) != magic {
				order = binary.BigEndian
			}
		}
		n := int64(order.Uint32(head[4:]))
		if n < least || n%4 != 0 || size+n > fi.Size() {
			break
		}
		size += n
	}
	return size, nil
}
