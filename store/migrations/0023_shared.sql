-- The API key of E2B that an object belongs to, or ''.
ALTER TABLE owners ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
CREATE INDEX owners_of_tenant ON owners (tenant, kind, created, id);
-- Numbers that change with the data of several daemons, so that they notice the changes of others.
CREATE TABLE versions (
	name TEXT PRIMARY KEY,
	n    BIGINT NOT NULL
);
INSERT INTO versions (name, n) VALUES ('secrets', 1);
-- The node that executes the requests with an idempotency key, until expires.
CREATE TABLE placements (
	key     TEXT PRIMARY KEY,
	node    TEXT NOT NULL,
	expires BIGINT NOT NULL
);
CREATE INDEX placements_by_expiry ON placements (expires);
