"""The catalog: thin Python over the SQL functions of schema/."""
