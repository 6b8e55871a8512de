"""The guarded way of deleting files, batch by batch: looked up and written down first, removed then."""
