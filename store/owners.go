package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
)

// Owners stores which node has which object; it implements fleet.Index.
type Owners struct{ s *Store }

// Owners returns the index of the objects of all nodes.
func (s *Store) Owners() Owners { return Owners{s} }

const ownerColumns = "kind, id, node, tenant, created, summary"

// Owner returns the node that has an object, or "".
func (os Owners) Owner(ctx context.Context, k fleet.Key) (node string, err error) {
	err = os.s.read.QueryRowContext(ctx, "SELECT node FROM owners WHERE kind = $1 AND id = $2", k.Kind, text(k.ID)).Scan(&node)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look up the node of %s %s: %w", k.Kind, k.ID, err)
	}
	return node, nil
}

// Publish stores objects of a node, and removes others.
func (os Owners) Publish(ctx context.Context, node string, put []fleet.Object, removed []fleet.Key) error {
	err := transact(ctx, os.s.write, func(tx *sql.Tx) error {
		for _, o := range put {
			_, err := tx.ExecContext(ctx, "INSERT INTO owners ("+ownerColumns+`) VALUES ($1, $2, $3, $4, $5, $6)
				ON CONFLICT (kind, id) DO UPDATE SET node = excluded.node, created = excluded.created, summary = excluded.summary
				WHERE owners.node = excluded.node OR owners.kind = $7 AND owners.created < excluded.created`,
				o.Kind, text(o.ID), node, text(o.Tenant), o.Created.UnixNano(), text(o.Summary), fleet.Alias)
			if err != nil {
				return err
			}
		}
		for _, k := range removed {
			if _, err := tx.ExecContext(ctx, "DELETE FROM owners WHERE kind = $1 AND id = $2 AND node = $3", k.Kind, k.ID, node); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("publish the objects of node %s: %w", node, err)
	}
	return nil
}

// Bind stores which node executes the requests with a key, unless one other than instead is stored,
// and returns the stored one.
func (os Owners) Bind(ctx context.Context, key, node, instead string, valid time.Duration) (bound string, err error) {
	now := time.Now()
	err = transact(ctx, os.s.write, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM placements WHERE expires < $1", now.UnixNano()); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO placements (key, node, expires) VALUES ($1, $2, $3)
			ON CONFLICT (key) DO UPDATE SET node = excluded.node WHERE placements.node = $4`, key, node, now.Add(valid).UnixNano(), instead)
		if err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "SELECT node FROM placements WHERE key = $1", key).Scan(&bound)
	})
	if err != nil {
		return "", fmt.Errorf("bind a request to a node: %w", err)
	}
	return bound, nil
}

// Offer lets another node take an object from a node with a ticket.
func (os Owners) Offer(ctx context.Context, k fleet.Key, node, ticket string) error {
	changed, err := os.change(ctx, "UPDATE owners SET ticket = $4 WHERE kind = $1 AND id = $2 AND node = $3", k.Kind, text(k.ID), node, ticket)
	if err != nil {
		return fmt.Errorf("offer %s %s to another node: %w", k.Kind, k.ID, err)
	}
	if changed {
		return nil
	}
	owner, err := os.Owner(ctx, k)
	switch {
	case err != nil:
		return err
	case owner == "":
		return fault.Newf(fault.NotFound, "store.Offer", k.ID, "no such %s in the fleet", k.Kind)
	}
	return fault.Newf(fault.Conflict, "store.Offer", k.ID, "node %s has the %s", owner, k.Kind)
}

// Take changes the node of an object.
func (os Owners) Take(ctx context.Context, k fleet.Key, from, to, ticket string) error {
	changed, err := os.change(ctx, `UPDATE owners SET node = $4, ticket = '', taken = $5
		WHERE kind = $1 AND id = $2 AND (node = $3 AND ticket = $5 OR node = $4 AND ticket = '' AND taken = $5) AND $5 <> ''`, k.Kind, text(k.ID), from, to, ticket)
	if err != nil {
		return fmt.Errorf("take %s %s from another node: %w", k.Kind, k.ID, err)
	}
	if !changed {
		return fault.Newf(fault.Conflict, "store.Take", k.ID, "the %s is not offered to this node", k.Kind)
	}
	return nil
}

func (os Owners) change(ctx context.Context, query string, args ...any) (bool, error) {
	return changesRows(os.s.write.ExecContext(ctx, query, args...))
}

// Published returns all objects of a node.
func (os Owners) Published(ctx context.Context, node string) ([]fleet.Object, error) {
	return os.list(ctx, "node = $1 ORDER BY kind, created, id", node)
}

// Objects returns objects of one kind, the oldest first.
func (os Owners) Objects(ctx context.Context, kind fleet.Kind, tenant, after string, limit int) ([]fleet.Object, error) {
	created, last, err := fleet.ParseCursor(after)
	if err != nil {
		return nil, err
	}
	where := "kind = $1 AND (created > $2 OR created = $2 AND id > $3)"
	args := []any{kind, created, text(last), limit}
	if tenant != "" {
		where += " AND tenant = $5"
		args = append(args, text(tenant))
	}
	return os.list(ctx, where+" ORDER BY created, id LIMIT $4", args...)
}

func (os Owners) list(ctx context.Context, where string, args ...any) ([]fleet.Object, error) {
	rows, err := os.s.read.QueryContext(ctx, "SELECT "+ownerColumns+" FROM owners WHERE "+where, args...)
	if err != nil {
		return nil, fmt.Errorf("list the objects of nodes: %w", err)
	}
	defer rows.Close()
	var all []fleet.Object
	for rows.Next() {
		var o fleet.Object
		var created int64
		if err := rows.Scan(&o.Kind, &o.ID, &o.Node, &o.Tenant, &created, &o.Summary); err != nil {
			return nil, fmt.Errorf("read an object of a node: %w", err)
		}
		o.Created = time.Unix(0, created).UTC()
		all = append(all, o)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list the objects of nodes: %w", err)
	}
	return all, nil
}
