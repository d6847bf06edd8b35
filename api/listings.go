package api

import (
	"slices"
	"sync"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
)

// Bounds of the lists of changes that are kept between pages.
const (
	listingTime  = time.Minute // since the last page
	mostListings = 16
	listingBytes = 64 << 20 // of all lists; a longer one is not kept
)

// A listingKey says what a list of changes is about.
type listingKey struct {
	jail          id.Jail
	against, path string
	workspace     bool
}

// A listing is a sorted list of changes, which was made for a page and serves the pages
// after it. To compare the files of a jail takes as long for a page as for the list.
type listing struct {
	key     listingKey
	changes []jail.Change // not changed once made
	bytes   int           // an estimate of the memory that changes takes

	// Guarded by listings.mu.
	cursors map[string]bool // the 'next' of its pages
	expire  *time.Timer     // nil: it is not kept
}

func newListing(key listingKey, changes []jail.Change) *listing {
	l := &listing{key: key, changes: changes, cursors: map[string]bool{}}
	for i := range changes {
		const each = 192 // a Change with the words of What, without its paths
		l.bytes += each + len(changes[i].Path) + len(changes[i].From)
	}
	return l
}

// listings keeps lists of changes for the pages that are still to come. A list is found
// by the cursor of one of its own pages alone, so it is never older than the first page
// that the client saw. The zero value is ready to use.
type listings struct {
	mu sync.Mutex
	// +checklocks:mu
	all []*listing // the most recently used last
	// +checklocks:mu
	bytes int
}

// find returns the list to which a cursor belongs, or nil. If several do, it is the
// newest.
func (s *listings) find(key listingKey, cursor string) *listing {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range slices.Backward(s.all) {
		if l.key == key && l.cursors[cursor] {
			return l
		}
	}
	return nil
}

// keep keeps a list for the page that begins at cursor.
func (s *listings) keep(l *listing, cursor string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(l)
	if l.bytes > listingBytes {
		return
	}
	for len(s.all) > 0 && (len(s.all) >= mostListings || s.bytes+l.bytes > listingBytes) {
		s.remove(s.all[0])
	}
	l.cursors[cursor] = true
	l.expire = time.AfterFunc(listingTime, func() { s.drop(l) })
	s.all = append(s.all, l)
	s.bytes += l.bytes
}

// drop forgets a list, if it is kept.
func (s *listings) drop(l *listing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(l)
}

// dropJail forgets the lists of a jail, and those of comparisons with it.
func (s *listings) dropJail(j id.Jail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range slices.Clone(s.all) {
		if l.key.jail == j || l.key.against == string(j) {
			s.remove(l)
		}
	}
}

// remove is drop for a caller that holds s.mu.
//
// +checklocks:s.mu
func (s *listings) remove(l *listing) {
	i := slices.Index(s.all, l)
	if i < 0 {
		return
	}
	l.expire.Stop()
	s.all = slices.Delete(s.all, i, i+1)
	s.bytes -= l.bytes
}
