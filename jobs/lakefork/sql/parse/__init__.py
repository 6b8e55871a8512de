"""Parses text to frozen statements: tokens, grammar, types, rules."""
