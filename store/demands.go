package store

import (
	"context"
	"database/sql"
	"fmt"

	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/jail"
)

// Demands stores what the jails of each token demand on each node.
type Demands struct{ s *Store }

// Demands returns the demands of the tokens on all nodes.
func (s *Store) Demands() Demands { return Demands{s} }

// Share calls claim with what the jails of a token demand on the nodes other than node, and stores
// what it returns for node, unless it returns an error. Calls for one token are serialized across
// the nodes. Nodes whose lease has ended do not count.
func (ds Demands) Share(ctx context.Context, node string, token id.Token, claim func(others jail.Demand) (jail.Demand, error)) error {
	return ds.s.update(ctx, "demands."+string(token), func(tx *sql.Tx) error {
		all, err := ds.sum(ctx, tx, "AND nodes.id <> $1 AND demands.token = $2", node, text(string(token)))
		if err != nil {
			return err
		}
		d, err := claim(all[token])
		if err != nil {
			return err
		}
		if d == (jail.Demand{}) {
			_, err = tx.ExecContext(ctx, "DELETE FROM demands WHERE token = $1 AND node = $2", text(string(token)), node)
		} else {
			_, err = tx.ExecContext(ctx, `INSERT INTO demands (token, node, jails, memory, disk) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT (token, node) DO UPDATE SET jails = excluded.jails, memory = excluded.memory, disk = excluded.disk`,
				text(string(token)), node, d.Jails, d.Memory, d.Disk)
		}
		if err != nil {
			return fmt.Errorf("store the demand of token %s: %w", token, err)
		}
		return nil
	})
}

// Others returns the demand of each token on the nodes other than node.
func (ds Demands) Others(ctx context.Context, node string) (map[id.Token]jail.Demand, error) {
	return ds.sum(ctx, ds.s.read, "AND nodes.id <> $1", node)
}

// sum returns the demands on nodes with a lease.
func (ds Demands) sum(ctx context.Context, db querier, where string, args ...any) (map[id.Token]jail.Demand, error) {
	return readDemands(db.QueryContext(ctx, `SELECT token, CAST(SUM(jails) AS BIGINT), CAST(SUM(memory) AS BIGINT), CAST(SUM(disk) AS BIGINT) FROM demands JOIN nodes ON nodes.id = demands.node
		WHERE nodes.state = '`+string(fleet.Up)+`' AND nodes.until > `+ds.s.clock()+" "+where+" GROUP BY token", args...))
}

// OfNode returns the stored demands of a node.
func (ds Demands) OfNode(ctx context.Context, node string) (map[id.Token]jail.Demand, error) {
	return readDemands(ds.s.read.QueryContext(ctx, "SELECT token, jails, memory, disk FROM demands WHERE node = $1", node))
}

func readDemands(rows *sql.Rows, err error) (map[id.Token]jail.Demand, error) {
	if err != nil {
		return nil, fmt.Errorf("read the demands of tokens: %w", err)
	}
	defer rows.Close()
	all := map[id.Token]jail.Demand{}
	for rows.Next() {
		var token id.Token
		var d jail.Demand
		if err := rows.Scan(&token, &d.Jails, &d.Memory, &d.Disk); err != nil {
			return nil, fmt.Errorf("read the demand of a token: %w", err)
		}
		all[token] = d
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the demands of tokens: %w", err)
	}
	return all, nil
}
