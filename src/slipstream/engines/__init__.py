"""Other people's engines, and slipstream itself, behind one protocol."""
