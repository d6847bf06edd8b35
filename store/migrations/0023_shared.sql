-- Whose object it is: the key of a client of E2B. '' is nobody's.
ALTER TABLE owners ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
CREATE INDEX owners_of_tenant ON owners (tenant, kind, created, id);
-- Numbers that change with the data of several daemons, so that they notice the changes of others.
CREATE TABLE versions (
	name TEXT PRIMARY KEY,
	n    BIGINT NOT NULL
);
INSERT INTO versions (name, n) VALUES ('secrets', 1);
