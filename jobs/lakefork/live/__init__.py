"""Live queries: subscriptions that follow the change feed."""
