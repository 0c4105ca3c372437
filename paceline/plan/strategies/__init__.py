"""What each strategy is, without torch: asked by rules, plan and pages; the classes that do it stand in ``paceline.strategies``."""
