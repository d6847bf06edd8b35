-- sealed is empty for a secret that another provider keeps
CREATE TABLE secrets (
	name     TEXT PRIMARY KEY,
	provider TEXT NOT NULL,
	path     TEXT NOT NULL,
	sealed   TEXT NOT NULL,
	created  BIGINT NOT NULL,
	updated  BIGINT NOT NULL,
	used     BIGINT
);

CREATE TABLE secret_grants (
	id       TEXT PRIMARY KEY,
	secret   TEXT NOT NULL,
	jail     TEXT NOT NULL,
	created  BIGINT NOT NULL,
	document TEXT NOT NULL
);
CREATE INDEX secret_grants_by_secret ON secret_grants (secret);
