-- storage_roots: where files of all catalogs lie, with some files that must be there
SELECT catalog_id, path, lakefork.place(path) AS place, lakefork.place(location) AS location, known, samples
FROM lakefork.storage_roots(%(samples)s) ORDER BY path, catalog_id, table_id;

-- unplaced: what cannot be compared with what storage lists
SELECT problem FROM lakefork.unplaced() problem LIMIT 1;

-- catalogs_named: all catalogs that have or had a name, as long as they are not forgotten
SELECT DISTINCT catalog_id FROM lakefork.retained_catalog WHERE catalog_name = %(name)s;

-- claims: who needs some files, and what some directories belong to
SELECT path, claim FROM lakefork.claims(%(paths)s::text[], %(directories)s::text[]);
