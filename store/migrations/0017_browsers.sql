-- Browsers that are told when a person is asked. What is in an endpoint lets its
-- holder, with the key below, tell the browser something, and nothing else.
CREATE TABLE browsers (
	id       TEXT PRIMARY KEY,
	login    TEXT NOT NULL,
	endpoint TEXT NOT NULL,
	p256dh   TEXT NOT NULL,
	auth     TEXT NOT NULL,
	created  BIGINT NOT NULL
);
CREATE UNIQUE INDEX browsers_by_endpoint ON browsers (endpoint);

-- What push services know this house by: one key, whoever serves it.
CREATE TABLE push_key (
	one     INTEGER PRIMARY KEY,
	private TEXT NOT NULL,
	public  TEXT NOT NULL
);
