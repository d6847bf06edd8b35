-- A jail is its document; the columns beside it are for people with a SQL
-- prompt and for what must be unique.
CREATE TABLE jails (
	id         TEXT PRIMARY KEY,
	name       TEXT NOT NULL,
	state      TEXT NOT NULL,
	created    BIGINT NOT NULL,
	-- first host id of its range: two jails that shared one would not be apart
	first_id   BIGINT UNIQUE,
	document   TEXT NOT NULL
);
CREATE INDEX jails_created ON jails (created, id);

CREATE TABLE tokens (
	id         TEXT PRIMARY KEY,
	name       TEXT NOT NULL,
	role       TEXT NOT NULL,
	hash       TEXT NOT NULL UNIQUE,
	created    BIGINT NOT NULL,
	expires    BIGINT
);

-- process is who claimed the key; status is null until it is answered
CREATE TABLE replays (
	scope        TEXT NOT NULL,
	key          TEXT NOT NULL,
	body         TEXT NOT NULL,
	process      TEXT NOT NULL,
	started      BIGINT NOT NULL,
	status       BIGINT,
	content_type TEXT,
	location     TEXT,
	answer       TEXT,
	PRIMARY KEY (scope, key)
);
CREATE INDEX replays_started ON replays (started);
