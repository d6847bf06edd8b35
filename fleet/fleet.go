// Package fleet gives a daemon a lease among the daemons that share a database.
//
// Each daemon is a node with one row in the database. The row has a lease, which the daemon
// renews, and an epoch. Only a node with a lease executes runs. Their sessions refer to the
// node and its epoch, so that they need no leases of their own. A node that cannot renew its
// lease stops at two thirds of its duration. When the lease has expired by the clock of the
// database, another node declares the first one lost: it raises the epoch, which invalidates
// all writes that refer to the old one, and assigns the sessions to other nodes.
package fleet

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// A State is the state of a node.
type State string

const (
	Up   State = "up"   // its lease has not been found expired
	Lost State = "lost" // its lease expired, and its sessions were assigned to others
	Gone State = "gone" // it was removed, and must join again
)

// A Node is the row of a node.
type Node struct {
	ID      string    // instance ID of the data directory
	Name    string    // of the host, for people
	Version string    // of the daemon
	Addr    string    // where other nodes reach it, as host:port; "": they do not
	Host    string    // identifies the boot of the host, and the data directory on it; "": no process runs
	Nonce   string    // replaced by each renewal
	Epoch   int64     // raised whenever another process may have the sessions
	Until   time.Time // expiry of the lease, by the clock of the database
	Now     time.Time // the clock of the database
	State   State

	Facts    Facts
	Front    bool // it has no jails of its own
	Draining bool // it gets no new jails and sessions
	Sessions int  // sessions that it has claimed
	Runs     int  // runs in these sessions that have not ended
	Jails    int  // jails that it has published; see Index
}

// Facts are what a node reports about its host with each renewal. Without a value, a fact is unknown.
type Facts struct {
	Arch       string `json:"arch,omitempty"`
	CPU        string `json:"cpu,omitempty"`    // model
	Kernel     string `json:"kernel,omitempty"` // release
	CPUs       int    `json:"cpus,omitempty"`
	Memory     int64  `json:"memory,omitempty"`      // bytes
	FreeMemory int64  `json:"free_memory,omitempty"` // that can be used without swapping
	Disk       int64  `json:"disk,omitempty"`        // of the file system of the data directory
	FreeDisk   int64  `json:"free_disk,omitempty"`
	Unshipped  int64  `json:"unshipped,omitempty"` // bytes of the newest snapshots of runs that are not in the object store
}

// A Renewal is the result of Store.Renew.
type Renewal struct {
	Now  time.Time // clock of the database; zero if another process has the lease, or if the node was declared lost
	Lost bool      // the lease of another node has expired: see DeclareLost
}

// A Store stores the nodes. All methods use the clock of the database.
type Store interface {
	// Join gives a process the lease of a node, and creates the node if necessary. n has the ID,
	// names, host and nonce. Join does not take a valid lease of another host, but returns the
	// row of that host. If again is set, the process had the lease before, and another process
	// with its host identity may have it now: then Join takes only that of a lost node. It may
	// be repeated with the same nonce after an error. For a node that is gone it returns
	// fault.Denied.
	Join(ctx context.Context, n Node, again bool, lease time.Duration) (Node, error)

	// Renew extends the lease, and replaces its nonce and the facts. It may be repeated after an
	// error.
	Renew(ctx context.Context, id string, epoch int64, nonce, next string, lease time.Duration, f Facts) (Renewal, error)

	// Leave lets the next process of the node join from any host. The lease stays.
	Leave(ctx context.Context, id string, epoch int64, nonce string) error

	// DeclareLost changes nodes with an expired lease to Lost, raises their epochs, and assigns
	// their sessions to nodes that are up. It returns the ids of the lost nodes.
	DeclareLost(ctx context.Context) ([]string, error)

	// Nodes returns all nodes that are not gone, by id.
	Nodes(ctx context.Context) ([]Node, error)

	// Peers is like Nodes, without the numbers of sessions, runs and jails: they are most of the work.
	Peers(ctx context.Context) ([]Node, error)

	// Drain sets whether a node gets new jails and sessions, or returns fault.NotFound.
	Drain(ctx context.Context, id string, on bool) error

	// Remove changes a node to Gone, raises its epoch, and deletes its objects from the index. Unless
	// lost is set, it returns fault.Conflict for a node with jails or sessions. A node without
	// an address is deleted, and comes back when its daemon starts.
	Remove(ctx context.Context, id string, lost bool) error

	// Invite stores the hash of a token with which one node can join.
	Invite(ctx context.Context, hash string, valid time.Duration) error

	// Accept uses a token for a node, which is no longer gone then. It returns
	// fault.Unauthenticated if the token is unknown, was used, or has expired.
	Accept(ctx context.Context, hash, id string) error
}

// E2BHeader marks requests of clients of E2B that a node passes on, among those of the API. It
// describes the client's connection and the domain that the client uses.
const E2BHeader = "Glasshouse-E2b"

// A Kind is a kind of objects that belong to one node.
type Kind string

const (
	Jail     Kind = "jail"
	Snapshot Kind = "snapshot"
	Approval Kind = "approval"

	// Objects of clients of E2B.
	Sandbox         Kind = "sandbox"
	SandboxSnapshot Kind = "sandbox-snapshot" // a snapshot that a client requested; it is also a Snapshot
	Template        Kind = "template"
	Volume          Kind = "volume"

	// Alias is a name of a template or volume, as its Key.ID says. If several nodes publish it,
	// the newest object has it.
	Alias Kind = "alias"
)

// An Object is an object of a node.
type Object struct {
	Kind    Kind
	ID      string
	Node    string
	Tenant  string // the API key that it belongs to; "": none
	Created time.Time
	Summary string // JSON, what lists show of it
}

// A Key identifies an object.
type Key struct {
	Kind Kind
	ID   string
}

// Key returns the key of an object.
func (o Object) Key() Key { return Key{o.Kind, o.ID} }

// Cursor returns the position of an object in a list, which stays valid if the object is removed.
func (o Object) Cursor() string { return o.ID + "@" + strconv.FormatInt(o.Created.UnixNano(), 36) }

// ParseCursor returns the creation time in nanoseconds and the ID of a position. "" is the
// beginning of a list.
func ParseCursor(s string) (created int64, id string, err error) {
	if s == "" {
		return math.MinInt64, "", nil
	}
	i := strings.LastIndexByte(s, '@')
	created, err = strconv.ParseInt(s[i+1:], 36, 64)
	if i <= 0 || err != nil {
		return 0, "", fault.Fieldf("fleet.ParseCursor", "after", "%s is not the end of a page", text.Visible(text.Clip(s, 64)))
	}
	return created, s[:i], nil
}

// A Lister lists the objects of all nodes; see Index.
type Lister interface {
	Objects(ctx context.Context, kind Kind, tenant, after string, limit int) ([]Object, error)
}

const pageSize = 1000

// All returns all objects of one kind and tenant, the oldest first.
func All(ctx context.Context, from Lister, kind Kind, tenant string) (all []Object, err error) {
	for after := ""; ; after = all[len(all)-1].Cursor() {
		page, err := from.Objects(ctx, kind, tenant, after, pageSize)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < pageSize {
			return all, nil
		}
	}
}

// An Index says which node has which object.
type Index interface {
	// Owner returns the node that has an object, or "".
	Owner(ctx context.Context, k Key) (node string, err error)

	// Publish stores objects of a node, and removes others. It does not change objects of other
	// nodes, except an older Alias.
	Publish(ctx context.Context, node string, put []Object, removed []Key) error

	// Bind stores that a node executes the requests with a key, unless one is stored that is not
	// instead, and returns the stored one. It forgets it after valid.
	Bind(ctx context.Context, key, node, instead string, valid time.Duration) (string, error)

	// Offer lets another node take an object from a node with a ticket. "" withdraws the last
	// offer. It returns fault.Conflict if another node has the object, and fault.NotFound if it
	// is not published.
	Offer(ctx context.Context, k Key, node, ticket string) error

	// Take changes the node of an object from one to another, with the ticket of the last offer.
	// It may be repeated after an error. Without that ticket it returns fault.Conflict.
	Take(ctx context.Context, k Key, from, to, ticket string) error

	// Published returns all objects of a node.
	Published(ctx context.Context, node string) ([]Object, error)

	// Objects returns up to limit objects of one kind, the oldest first, that follow the cursor
	// after. If tenant is not "", the objects are those of a tenant.
	Objects(ctx context.Context, kind Kind, tenant, after string, limit int) ([]Object, error)
}
