"""The asynchronous client. The blocking client is generated from it."""
