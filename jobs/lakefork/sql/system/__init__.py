"""system.*, information_schema.*, SHOW and DESCRIBE."""
