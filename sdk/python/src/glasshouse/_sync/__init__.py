# Made by `make sdk` from _async/__init__.py. Do not edit.
"""The client that is awaited. The one that blocks is made from it."""
