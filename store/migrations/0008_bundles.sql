CREATE TABLE skills (
	name     TEXT PRIMARY KEY,
	document TEXT NOT NULL
);

CREATE TABLE bundles (
	name     TEXT PRIMARY KEY,
	document TEXT NOT NULL
);
