"""axolotl's configs."""
