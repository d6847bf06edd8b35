-- Whose object it is: the key of a client of E2B. '' is nobody's.
ALTER TABLE owners ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
CREATE INDEX owners_of_tenant ON owners (tenant, kind, created, id);
