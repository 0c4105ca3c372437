"""Jobs on clusters: written, submitted, asked, stopped and started again."""
