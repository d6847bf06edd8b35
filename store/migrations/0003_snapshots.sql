CREATE TABLE snapshots (
	id       TEXT PRIMARY KEY,
	jail     TEXT NOT NULL,
	created  BIGINT NOT NULL,
	document TEXT NOT NULL
);
CREATE INDEX snapshots_by_jail ON snapshots (jail, created);
