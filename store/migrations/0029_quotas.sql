-- What the jails that were created with a token may demand together, memory and disk in bytes; 0 is
-- no limit.
ALTER TABLE tokens ADD COLUMN max_jails BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tokens ADD COLUMN max_memory BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tokens ADD COLUMN max_disk BIGINT NOT NULL DEFAULT 0;
-- What the jails of a node that were created with a token demand.
CREATE TABLE demands (
	token  TEXT NOT NULL,
	node   TEXT NOT NULL,
	jails  BIGINT NOT NULL,
	memory BIGINT NOT NULL,
	disk   BIGINT NOT NULL,
	PRIMARY KEY (token, node)
);
