"""What each algorithm is, without torch: asked by rules, plan and pages; the classes that do it stand in ``paceline.algorithms``."""
