CREATE TABLE capabilities (
	id       TEXT NOT NULL,
	version  TEXT NOT NULL,
	document TEXT NOT NULL,
	PRIMARY KEY (id, version)
);
