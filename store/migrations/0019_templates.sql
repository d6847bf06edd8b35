-- team is the token that a template was made with. A tag of a template's document names
-- the build that it is of; a layer is what steps led to that need not be run again.
CREATE TABLE templates (
	id       TEXT PRIMARY KEY,
	team     TEXT NOT NULL,
	name     TEXT NOT NULL,
	document TEXT NOT NULL
);
CREATE UNIQUE INDEX templates_by_name ON templates (team, name);

CREATE TABLE template_builds (
	id       TEXT PRIMARY KEY,
	template TEXT NOT NULL,
	state    TEXT NOT NULL,
	document TEXT NOT NULL
);

CREATE TABLE template_layers (
	key      TEXT PRIMARY KEY,
	team     TEXT NOT NULL,
	document TEXT NOT NULL
);
