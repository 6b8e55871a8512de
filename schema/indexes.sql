-- Indexes over functions, made when these are there.

CREATE INDEX deletion_kept_path ON lakefork.deletion (lakefork.path_key(0, 0, path, false))
    WHERE restored_at IS NOT NULL OR outcome IN ('trashed', 'emptying', 'restoring');
-- What a catalog commits stays together; only forks have absolute paths.
CREATE INDEX idx_data_file_path ON public.ducklake_data_file (catalog_id, lakefork.path_key(catalog_id, table_id, path,
    true)) WHERE path_is_relative;
CREATE INDEX idx_data_file_absolute_path ON public.ducklake_data_file (lakefork.path_key(0, 0, path, false))
    WHERE NOT path_is_relative;
CREATE INDEX idx_delete_file_path ON public.ducklake_delete_file (lakefork.path_key(catalog_id, table_id, path,
    path_is_relative));
CREATE INDEX idx_scheduled_path ON public.ducklake_files_scheduled_for_deletion (lakefork.path_key(catalog_id, 0, path,
    path_is_relative));
CREATE INDEX idx_table_absolute_path ON public.ducklake_table (lakefork.path_key(0, 0, path, false))
    WHERE NOT path_is_relative;
CREATE INDEX foreign_file_path ON lakefork.foreign_file (lakefork.path_key(0, 0, path, false));
CREATE INDEX staged_file_path ON lakefork.staged_file (lakefork.path_key(0, 0, path, false));
CREATE INDEX flush_audit_quarantine ON lakefork.flush_audit (lakefork.path_key(0, 0, quarantine, false))
    WHERE quarantine IS NOT NULL;
