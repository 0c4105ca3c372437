"""Models with a vision tower, trained whole: images beside the packed row."""
