CREATE TABLE notes (id serial PRIMARY KEY, title varchar(80) NOT NULL, body varchar(80) NOT NULL, picture varchar(80));
INSERT INTO notes (title, body) VALUES ('first', 'of the base');
CREATE SCHEMA web;
CREATE TABLE web.sessions (sid varchar(80) PRIMARY KEY, data text NOT NULL);
