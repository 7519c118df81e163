"""Questions asked with models and engines; the answers are data, which `cli/` shows."""
