-- one row: the name of the data directory whose records these are
CREATE TABLE house (
	name TEXT PRIMARY KEY
);
