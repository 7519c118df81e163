"""What can be known of a model from its files, and where models lie. Never loads weights."""
