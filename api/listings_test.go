package api

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/jail"
)

func TestListsOfChangesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s listings
		key := listingKey{jail: "j-a"}
		l := newListing(key, []jail.Change{{Path: "/a"}, {Path: "/b"}})
		s.keep(l, "/a")
		time.Sleep(listingTime - time.Second)
		s.keep(s.find(key, "/a"), "/b") // the next page
		time.Sleep(listingTime - time.Second)
		if s.find(key, "/a") != l || s.find(key, "/b") != l {
			t.Error("a list in use was removed")
		}
		if s.find(key, "/c") != nil || s.find(listingKey{jail: "j-b"}, "/a") != nil {
			t.Error("a list was found by a foreign cursor")
		}
		time.Sleep(2 * time.Second)
		if s.find(key, "/a") != nil || len(s.all) != 0 || s.bytes != 0 {
			t.Errorf("%d lists with %d bytes remain after expiry", len(s.all), s.bytes)
		}
	})
}

func TestListsOfChangesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s listings
		key := listingKey{jail: "j-a"}
		for range 3 * mostListings {
			s.keep(newListing(key, []jail.Change{{Path: "/a"}}), "/a")
		}
		if len(s.all) != mostListings {
			t.Errorf("got %d lists, want %d", len(s.all), mostListings)
		}
		third := []jail.Change{{Path: strings.Repeat("x", listingBytes/3)}}
		for range 5 {
			s.keep(newListing(key, third), "/a")
			if s.bytes > listingBytes {
				t.Fatalf("lists have %d bytes", s.bytes)
			}
		}
		last := newListing(listingKey{jail: "j-b", against: "j-c"}, nil)
		s.keep(last, "/a")
		s.keep(newListing(key, append(third, third[0], third[0])), "/a") // longer than all lists may be
		if s.find(last.key, "/a") != last {
			t.Error("a list that is too large evicted others")
		}
		s.dropJail("j-c")
		s.dropJail("j-a")
		if len(s.all) != 0 || s.bytes != 0 {
			t.Errorf("%d lists with %d bytes of deleted jails remain", len(s.all), s.bytes)
		}
	})
}
