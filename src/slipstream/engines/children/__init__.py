"""Programs that run inside another engine's environment, which has the engine and not slipstream.

A folder of its own, since a program's folder is the first place where Python looks for what it imports.
"""
