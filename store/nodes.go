package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
)

// Nodes stores the daemons that share the database; it implements fleet.Store.
type Nodes struct{ s *Store }

// Nodes returns the daemons that share the database.
func (s *Store) Nodes() Nodes { return Nodes{s} }

const nodeColumns = "id, name, version, addr, front, host, nonce, epoch, until, state, facts"

// clock returns an expression for the clock of the database, in nanoseconds. SQLite has none,
// but all processes that use its file have the clock of the host.
func (s *Store) clock() string {
	if s.postgres {
		return "((EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT * 1000)"
	}
	return strconv.FormatInt(time.Now().UnixNano(), 10)
}

// now returns the clock of the database.
func (ns Nodes) now(ctx context.Context, tx *sql.Tx) (time.Time, error) {
	var n int64
	if err := tx.QueryRowContext(ctx, "SELECT "+ns.s.clock()).Scan(&n); err != nil {
		return time.Time{}, fmt.Errorf("read the clock of the database: %w", err)
	}
	return time.Unix(0, n), nil
}

// update runs f in a transaction. Those of all nodes are serialized.
func (ns Nodes) update(ctx context.Context, doing string, f func(tx *sql.Tx, now time.Time) error) error {
	err := ns.s.update(ctx, "nodes", func(tx *sql.Tx) error {
		now, err := ns.now(ctx, tx)
		if err != nil {
			return err
		}
		return f(tx, now)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// scanNode reads the columns nodeColumns, and more.
func scanNode(row interface{ Scan(...any) error }, more ...any) (fleet.Node, error) {
	var n fleet.Node
	var until, front int64
	var facts []byte
	err := row.Scan(append([]any{&n.ID, &n.Name, &n.Version, &n.Addr, &front, &n.Host, &n.Nonce, &n.Epoch, &until, &n.State, &facts}, more...)...)
	if err == nil && len(facts) > 0 {
		err = json.Unmarshal(facts, &n.Facts)
	}
	n.Until, n.Front = time.Unix(0, until).UTC(), front != 0
	return n, err
}

// Join gives a process the lease of a node, unless another host has it.
func (ns Nodes) Join(ctx context.Context, n fleet.Node, again bool, lease time.Duration) (fleet.Node, error) {
	var got fleet.Node
	facts, err := json.Marshal(n.Facts)
	if err != nil {
		return got, fmt.Errorf("join as node %s: %w", n.ID, err)
	}
	err = ns.update(ctx, "join as node "+n.ID, func(tx *sql.Tx, now time.Time) error {
		var err error
		got, err = scanNode(tx.QueryRowContext(ctx, "SELECT "+nodeColumns+" FROM nodes WHERE id = $1", n.ID))
		got.Now = now.UTC()
		missing := errors.Is(err, sql.ErrNoRows)
		if err != nil && !missing {
			return err
		}
		if got.State == fleet.Gone {
			return &fault.Error{Op: "store.Join", Kind: fault.Denied, On: n.ID, Err: errors.New("this node was removed from the fleet"),
				Remedy: "create a token with glasshouse node token on another node, and join again with glasshouse node join"}
		}
		valid := got.State == fleet.Up && got.Until.After(now)
		if !missing && (valid && got.Host != n.Host && got.Host != "" || again && got.State != fleet.Lost && got.Nonce != n.Nonce) {
			return nil
		}
		epoch := got.Epoch
		if missing || got.Host != n.Host || got.State == fleet.Lost {
			// The process of another host may still write with the earlier epoch.
			epoch++
			if _, err := tx.ExecContext(ctx, "UPDATE sessions SET holder = '', epoch = 0 WHERE holder = $1", n.ID); err != nil {
				return err
			}
		}
		got = n
		got.Epoch, got.Until, got.Now, got.State = epoch, now.Add(lease).UTC(), now.UTC(), fleet.Up
		_, err = tx.ExecContext(ctx, "INSERT INTO nodes ("+nodeColumns+`, schema) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT (id) DO UPDATE
			SET name = excluded.name, version = excluded.version, addr = excluded.addr, front = excluded.front, host = excluded.host, nonce = excluded.nonce,
				epoch = excluded.epoch, until = excluded.until, state = excluded.state, facts = excluded.facts, schema = excluded.schema`,
			n.ID, n.Name, n.Version, n.Addr, number(n.Front), n.Host, n.Nonce, epoch, got.Until.UnixNano(), got.State, string(facts), Schema())
		return err
	})
	return got, err
}

// Renew extends a lease.
func (ns Nodes) Renew(ctx context.Context, id string, epoch int64, nonce, next string, lease time.Duration, f fleet.Facts) (fleet.Renewal, error) {
	facts, err := json.Marshal(f)
	if err != nil {
		return fleet.Renewal{}, fmt.Errorf("renew the lease of node %s: %w", id, err)
	}
	var now int64
	var got fleet.Renewal
	err = ns.s.write.QueryRowContext(ctx, "UPDATE nodes SET nonce = $4, facts = $6, until = $5 + "+ns.s.clock()+`
		WHERE id = $1 AND epoch = $2 AND nonce IN ($3, $4) AND state = 'up'
		RETURNING until - $5, EXISTS (SELECT 1 FROM nodes others WHERE others.state = 'up' AND others.id <> $1 AND others.until < `+ns.s.clock()+")",
		id, epoch, nonce, next, int64(lease), string(facts)).Scan(&now, &got.Lost)
	if errors.Is(err, sql.ErrNoRows) {
		return got, nil
	}
	if err != nil {
		return got, fmt.Errorf("renew the lease of node %s: %w", id, err)
	}
	got.Now = time.Unix(0, now).UTC()
	return got, nil
}

// Leave lets the next process of the node join from any host.
func (ns Nodes) Leave(ctx context.Context, id string, epoch int64, nonce string) error {
	_, err := ns.s.write.ExecContext(ctx, "UPDATE nodes SET host = '' WHERE id = $1 AND epoch = $2 AND nonce = $3", id, epoch, nonce)
	if err != nil {
		return fmt.Errorf("leave as node %s: %w", id, err)
	}
	return nil
}

// DeclareLost finds nodes whose lease has expired, and assigns their sessions to others.
func (ns Nodes) DeclareLost(ctx context.Context) ([]string, error) {
	var lost []string
	err := ns.update(ctx, "declare nodes lost", func(tx *sql.Tx, now time.Time) error {
		lost = nil
		rows, err := tx.QueryContext(ctx, "UPDATE nodes SET state = 'lost', epoch = epoch + 1 WHERE state = 'up' AND until < $1 RETURNING id", now.UnixNano())
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				return err
			}
			lost = append(lost, id)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
		if len(lost) == 0 {
			return nil
		}
		return reassign(ctx, tx)
	})
	if err != nil {
		return nil, err
	}
	return lost, nil
}

// reassign distributes the sessions of nodes that are lost or gone evenly over the nodes that are up
// and not draining. Without one, any node may start their runs.
func reassign(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `
		WITH away AS (SELECT id FROM nodes WHERE state IN ('lost', 'gone')),
			n AS (SELECT id, row_number() OVER (ORDER BY id) - 1 AS place, count(*) OVER () AS total FROM nodes WHERE state = 'up' AND draining = 0 AND front = 0),
			s AS (SELECT id, row_number() OVER (ORDER BY id) AS place FROM sessions
				WHERE holder IN (SELECT id FROM away) OR assignee IN (SELECT id FROM away)),
			chosen AS (SELECT s.id, COALESCE(n.id, '') AS node FROM s LEFT JOIN n ON n.place = s.place % n.total)
		UPDATE sessions SET holder = '', epoch = 0, assignee = chosen.node FROM chosen WHERE chosen.id = sessions.id`)
	if err != nil {
		return fmt.Errorf("assign the sessions of lost nodes to others: %w", err)
	}
	return nil
}

// Nodes returns all nodes that are not gone.
func (ns Nodes) Nodes(ctx context.Context) ([]fleet.Node, error) {
	return ns.list(ctx, `WITH held AS (SELECT holder, COUNT(*) AS n FROM sessions WHERE holder <> '' GROUP BY holder),
			active AS (SELECT sessions.holder, COUNT(*) AS n FROM runs JOIN sessions ON runs.session = sessions.id
				WHERE runs.waiting = 1 AND sessions.holder <> '' GROUP BY sessions.holder),
			jails AS (SELECT node, COUNT(*) AS n FROM owners WHERE kind = 'jail' GROUP BY node)`,
		"COALESCE(held.n, 0), COALESCE(active.n, 0), COALESCE(jails.n, 0)",
		"LEFT JOIN held ON held.holder = nodes.id LEFT JOIN active ON active.holder = nodes.id LEFT JOIN jails ON jails.node = nodes.id")
}

// Peers is like Nodes, but counts nothing.
func (ns Nodes) Peers(ctx context.Context) ([]fleet.Node, error) {
	return ns.list(ctx, "", "0, 0, 0", "")
}

// list returns nodes with the three counts, of the joined tables.
func (ns Nodes) list(ctx context.Context, with, counts, joined string) ([]fleet.Node, error) {
	rows, err := ns.s.read.QueryContext(ctx, with+" SELECT "+nodeColumns+", "+ns.s.clock()+", "+counts+", draining FROM nodes "+joined+
		" WHERE state <> 'gone' ORDER BY id")
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	defer rows.Close()
	var list []fleet.Node
	for rows.Next() {
		var now int64
		var sessions, runs, jails, draining int
		n, err := scanNode(rows, &now, &sessions, &runs, &jails, &draining)
		if err != nil {
			return nil, fmt.Errorf("read a node: %w", err)
		}
		n.Now, n.Sessions, n.Runs, n.Jails, n.Draining = time.Unix(0, now).UTC(), sessions, runs, jails, draining != 0
		list = append(list, n)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	return list, nil
}

// Drain sets whether a node gets new jails and sessions.
func (ns Nodes) Drain(ctx context.Context, id string, on bool) error {
	res, err := ns.s.write.ExecContext(ctx, "UPDATE nodes SET draining = $2 WHERE id = $1 AND state <> 'gone'", id, number(on))
	if err != nil {
		return fmt.Errorf("drain node %s: %w", id, err)
	}
	if n, err := res.RowsAffected(); err == nil && n == 0 {
		return noNode("store.Drain", id)
	}
	return nil
}

func noNode(op, id string) error { return fault.Newf(fault.NotFound, op, id, "no such node") }

// Remove removes a node from the fleet.
func (ns Nodes) Remove(ctx context.Context, id string, lost bool) error {
	const op = "store.Remove"
	return ns.update(ctx, "remove node "+id, func(tx *sql.Tx, _ time.Time) error {
		var addr string
		var jails, sessions int
		err := tx.QueryRowContext(ctx, `SELECT addr, (SELECT COUNT(*) FROM owners WHERE node = nodes.id AND kind = 'jail'),
			(SELECT COUNT(*) FROM sessions WHERE holder = nodes.id) FROM nodes WHERE id = $1 AND state <> 'gone'`, id).Scan(&addr, &jails, &sessions)
		if errors.Is(err, sql.ErrNoRows) {
			return noNode(op, id)
		}
		if err != nil {
			return err
		}
		if !lost && jails+sessions > 0 {
			return &fault.Error{Op: op, Kind: fault.Conflict, On: id, Err: fmt.Errorf("the node has %d jails and the runs of %d sessions", jails, sessions),
				Remedy: "drain it and delete its jails, or use --lost if it does not come back"}
		}
		for _, stmt := range []string{
			"DELETE FROM owners WHERE node = $1",
			"DELETE FROM demands WHERE node = $1",
			"UPDATE nodes SET state = 'gone', epoch = epoch + 1, draining = 0 WHERE id = $1",
		} {
			if _, err := tx.ExecContext(ctx, stmt, id); err != nil {
				return err
			}
		}
		if err := reassign(ctx, tx); err != nil {
			return err
		}
		if addr == "" {
			_, err = tx.ExecContext(ctx, "DELETE FROM nodes WHERE id = $1", id)
		}
		return err
	})
}

// Invite stores the hash of a token. Those that expired a day ago are deleted.
func (ns Nodes) Invite(ctx context.Context, hash string, valid time.Duration) error {
	return ns.update(ctx, "store a token for joining", func(tx *sql.Tx, now time.Time) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM joins WHERE expires < $1", now.Add(-24*time.Hour).UnixNano()); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO joins (hash, expires) VALUES ($1, $2)", hash, now.Add(valid).UnixNano())
		return err
	})
}

// Accept uses a token for joining.
func (ns Nodes) Accept(ctx context.Context, hash, id string) error {
	refused := func(why string) error {
		return &fault.Error{Op: "store.Accept", Kind: fault.Unauthenticated, Err: errors.New(why), Remedy: "create another token with glasshouse node token"}
	}
	return ns.update(ctx, "accept node "+id, func(tx *sql.Tx, now time.Time) error {
		var expires, used int64
		err := tx.QueryRowContext(ctx, "SELECT expires, used FROM joins WHERE hash = $1", hash).Scan(&expires, &used)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return refused("the token for joining is unknown")
		case err != nil:
			return err
		case used != 0:
			return refused("the token for joining was used before")
		case expires <= now.UnixNano():
			return refused("the token for joining has expired")
		}
		if _, err := tx.ExecContext(ctx, "UPDATE joins SET used = $2 WHERE hash = $1", hash, now.UnixNano()); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE nodes SET state = 'lost' WHERE id = $1 AND state = 'gone'", id)
		return err
	})
}
