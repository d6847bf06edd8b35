-- What this node has seen of the audit logs of other nodes; see package witness. conflict is a
-- witness.Conflict, or ''.
CREATE TABLE witnessed (
	node       TEXT PRIMARY KEY,
	key        TEXT NOT NULL,
	checkpoint TEXT NOT NULL,
	entries    BIGINT NOT NULL,
	seen       BIGINT NOT NULL,
	conflict   TEXT NOT NULL
);
