"""file_cleanup: deletes files that no catalog needs, including orphans."""
