-- hash is the digest of what a link or a cookie holds: from this table nobody
-- can log in.
CREATE TABLE login_links (
	hash    TEXT PRIMARY KEY,
	role    TEXT NOT NULL,
	name    TEXT NOT NULL,
	created BIGINT NOT NULL,
	expires BIGINT NOT NULL
);

CREATE TABLE logins (
	id      TEXT PRIMARY KEY,
	hash    TEXT NOT NULL,
	role    TEXT NOT NULL,
	name    TEXT NOT NULL,
	created BIGINT NOT NULL,
	used    BIGINT NOT NULL
);
CREATE UNIQUE INDEX logins_by_hash ON logins (hash);
