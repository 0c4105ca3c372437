"""The command line: one small module per verb, imported when called; verbs that need torch start a process."""
