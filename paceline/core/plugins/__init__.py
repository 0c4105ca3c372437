"""Names of parts, looked up without their imports: registries, tables, extensions, moved modules."""
