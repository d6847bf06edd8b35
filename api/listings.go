package api

import (
	"slices"
	"sync"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
)

// Limits of the cache for lists of changes.
const (
	listingTime  = time.Minute // since the last request
	mostListings = 16
	listingBytes = 64 << 20 // total size of all lists; a larger list is not cached
)

// A listingKey identifies the subject of a list of changes.
type listingKey struct {
	jail          id.Jail
	against, path string
	workspace     bool
}

// A listing is a sorted list of changes. It is computed for the first page and serves the
// following pages, because comparing the files of a jail costs as much for one page as for the
// whole list.
type listing struct {
	key     listingKey
	changes []jail.Change // immutable
	bytes   int           // an estimate of the memory that changes takes

	// Guarded by listings.mu.
	cursors map[string]bool // the 'next' of its pages
	expire  *time.Timer     // nil: not cached
}

func newListing(key listingKey, changes []jail.Change) *listing {
	l := &listing{key: key, changes: changes, cursors: map[string]bool{}}
	for i := range changes {
		const each = 192 // size of a Change without its paths
		l.bytes += each + len(changes[i].Path) + len(changes[i].From)
	}
	return l
}

// listings caches lists of changes for the following pages. A list is found only by a cursor
// of one of its own pages, so it is never older than the first page that the client received.
// The zero value is ready to use.
type listings struct {
	mu sync.Mutex
	// +checklocks:mu
	all []*listing // most recently used last
	// +checklocks:mu
	bytes int
}

// find returns the newest list that has the cursor, or nil.
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

// keep caches a list for the page that begins at cursor.
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

// drop removes a list from the cache.
func (s *listings) drop(l *listing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(l)
}

// dropJail removes the lists of a jail and of comparisons with it.
func (s *listings) dropJail(j id.Jail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range slices.Clone(s.all) {
		if l.key.jail == j || l.key.against == string(j) {
			s.remove(l)
		}
	}
}

// remove removes a list. The caller holds s.mu.
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
