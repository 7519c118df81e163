"""The algorithm of speculative decoding on plain arrays; knows no model library, no files, no terminal."""
