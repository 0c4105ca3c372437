"""Algorithm specs for rules, plans and docs, without torch; implementations: ``paceline.algorithms``."""
