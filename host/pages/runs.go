package pages

import (
	"slices"
	"sort"
)

// runs are the missing ranges of an address space, sorted and without overlap.
type runs []Run

// at returns the index of the first run that ends after addr.
func (rs runs) at(addr uint64) int {
	return sort.Search(len(rs), func(i int) bool { return rs[i].End > addr })
}

// find returns the run that contains addr.
func (rs runs) find(addr uint64) (Run, bool) {
	if i := rs.at(addr); i < len(rs) && rs[i].Start <= addr {
		return rs[i], true
	}
	return Run{}, false
}

// cut removes a range and returns the missing runs in it.
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

// move applies an mremap to the runs. Nothing is missing in the old range of the target
// afterwards.
func (rs *runs) move(from, to, n uint64) {
	moved := rs.cut(from, from+n)
	rs.cut(to, to+n)
	for i := range moved {
		moved[i].Start, moved[i].End = moved[i].Start-from+to, moved[i].End-from+to
	}
	*rs = slices.Insert(*rs, rs.at(to), moved...)
}

// bytes returns the number of missing bytes.
func (rs runs) bytes() (n int64) {
	for _, r := range rs {
		n += int64(r.End - r.Start)
	}
	return n
}

// present returns the address of the first page, from the given one on, that is not missing.
func (rs runs) present(from, page uint64) uint64 {
	for {
		r, missing := rs.find(from)
		if !missing {
			return from
		}
		from = r.End
	}
}
