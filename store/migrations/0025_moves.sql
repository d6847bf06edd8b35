-- With which ticket another node can take an object, or '', and with which it was taken.
ALTER TABLE owners ADD COLUMN ticket TEXT NOT NULL DEFAULT '';
ALTER TABLE owners ADD COLUMN taken TEXT NOT NULL DEFAULT '';
