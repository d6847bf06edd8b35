-- The schema version of a node's program; 0 for versions before this one.
ALTER TABLE nodes ADD COLUMN schema BIGINT NOT NULL DEFAULT 0;
-- The oldest schema version whose programs can use the database after the migration; 0 for any.
ALTER TABLE schema_version ADD COLUMN needs BIGINT NOT NULL DEFAULT 0;
