"""The client that is awaited. The one that blocks is made from it."""
