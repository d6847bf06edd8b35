package pages

import (
	"slices"
	"sort"
)

// runs are what is missing of an address space: in order, none over another.
type runs []Run

// at returns the index of the first run that ends behind addr.
func (rs runs) at(addr uint64) int {
	return sort.Search(len(rs), func(i int) bool { return rs[i].End > addr })
}

// find returns the run that addr is in.
func (rs runs) find(addr uint64) (Run, bool) {
	if i := rs.at(addr); i < len(rs) && rs[i].Start <= addr {
		return rs[i], true
	}
	return Run{}, false
}

// cut takes a part of the address space out, and returns what was missing there.
func (rs *runs) cut(start, end uint64) runs {
	if start >= end {
		return nil
	}
	all := *rs
	first := all.at(start)
	last := first
	var out, keep runs
	for ; last < len(all) && all[last].Start < end; last++ {
		r := all[last]
		in := r.part(max(r.Start, start), min(r.End, end))
		out = append(out, in)
		if r.Start < in.Start {
			keep = append(keep, r.part(r.Start, in.Start))
		}
		if in.End < r.End {
			keep = append(keep, r.part(in.End, r.End))
		}
	}
	if last > first {
		*rs = slices.Replace(all, first, last, keep...)
	}
	return out
}

// part returns the part of a run from start to end.
func (r Run) part(start, end uint64) Run {
	return Run{Start: start, End: end, Off: r.Off + int64(start-r.Start)}
}

// move does what mremap did to the address space. Nothing is missing any more of
// what was where it moved to.
func (rs *runs) move(from, to, n uint64) {
	moved := rs.cut(from, from+n)
	rs.cut(to, to+n)
	for i := range moved {
		moved[i].Start, moved[i].End = moved[i].Start-from+to, moved[i].End-from+to
	}
	*rs = slices.Insert(*rs, rs.at(to), moved...)
}

// bytes returns how much is missing.
func (rs runs) bytes() (n int64) {
	for _, r := range rs {
		n += int64(r.End - r.Start)
	}
	return n
}

// present returns an address, of a page from the given one on, at which nothing is
// missing.
func (rs runs) present(from, page uint64) uint64 {
	for {
		r, missing := rs.find(from)
		if !missing {
			return from
		}
		from = r.End
	}
}
