INSERT INTO versions (name, n) VALUES ('capabilities', 1);
-- The publishers whose bundles the daemons of a fleet install: one row.
CREATE TABLE trust (
	id       BIGINT PRIMARY KEY,
	document TEXT NOT NULL
);
