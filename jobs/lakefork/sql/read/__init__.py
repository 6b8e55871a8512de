"""SELECT: reads the newest versions of the rows that a query needs, from hot tables and batches."""
