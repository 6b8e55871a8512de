-- receipts: what earlier attempts at a request did
SELECT statement, digest, affected_rows FROM lakefork.api_receipt
WHERE catalog_id = %(catalog_id)s AND user_id = %(user_id)s AND request_key = %(request_key)s;

-- complete_receipt: a statement that left no receipt in its own transaction
INSERT INTO lakefork.api_receipt (catalog_id, user_id, request_key, digest, statement, affected_rows)
VALUES (%(catalog_id)s, %(user_id)s, %(request_key)s, %(digest)s, %(statement)s, %(affected_rows)s)
ON CONFLICT DO NOTHING;
