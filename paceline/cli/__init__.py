"""The command line: verbs by module, imported when called; torch runs in processes it starts."""
