-- Where other daemons reach a node, whether it has no jails of its own, and whether it gets no
-- new jails and sessions.
ALTER TABLE nodes ADD COLUMN addr TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN front BIGINT NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN draining BIGINT NOT NULL DEFAULT 0;
-- Tokens with which nodes join a fleet, each once. used is 0 until then.
CREATE TABLE joins (
	hash    TEXT PRIMARY KEY,
	expires BIGINT NOT NULL,
	used    BIGINT NOT NULL DEFAULT 0
);
-- Which node has an object. Only that node writes the row; summary is what lists show of it.
CREATE TABLE owners (
	kind    TEXT NOT NULL,
	id      TEXT NOT NULL,
	node    TEXT NOT NULL,
	created BIGINT NOT NULL,
	summary TEXT NOT NULL,
	PRIMARY KEY (kind, id)
);
CREATE INDEX owners_of_node ON owners (node, kind);
CREATE INDEX owners_by_age ON owners (kind, created, id);
