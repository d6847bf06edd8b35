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
	"time"
)

// A State is the state of a node.
type State string

const (
	Up   State = "up"   // its lease has not been found expired
	Lost State = "lost" // its lease expired, and its sessions were assigned to others
)

// A Node is the row of a node.
type Node struct {
	ID      string    // instance ID of the data directory
	Name    string    // of the host, for people
	Version string    // of the daemon
	Host    string    // identifies the boot of the host, and the data directory on it; "": no process runs
	Nonce   string    // replaced by each renewal
	Epoch   int64     // raised whenever another process may have the sessions
	Until   time.Time // expiry of the lease, by the clock of the database
	Now     time.Time // the clock of the database
	State   State

	Sessions int // sessions that it has claimed
	Runs     int // runs in these sessions that have not ended
}

// A Store stores the nodes. All methods use the clock of the database.
type Store interface {
	// Join gives a process the lease of a node, and creates the node if necessary. n has the ID,
	// names, host and nonce. Join does not take a valid lease of another host, but returns the
	// row of that host. If again is set, the process had the lease before, and another process
	// with its host identity may have it now: then Join takes only that of a lost node. It may
	// be repeated with the same nonce after an error.
	Join(ctx context.Context, n Node, again bool, lease time.Duration) (Node, error)

	// Renew extends the lease, replaces its nonce, and returns the clock of the database. The
	// time is zero if another process has the lease, or if the node was declared lost. Renew may
	// be repeated after an error.
	Renew(ctx context.Context, id string, epoch int64, nonce, next string, lease time.Duration) (time.Time, error)

	// Leave lets the next process of the node join from any host. The lease stays.
	Leave(ctx context.Context, id string, epoch int64, nonce string) error

	// DeclareLost changes nodes with an expired lease to Lost, raises their epochs, and assigns
	// their sessions to nodes that are up. It returns the ids of the lost nodes.
	DeclareLost(ctx context.Context) ([]string, error)

	// Nodes returns all nodes, by id.
	Nodes(ctx context.Context) ([]Node, error)
}
