"""The lakefork command."""
