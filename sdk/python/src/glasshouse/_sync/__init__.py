# Made by `make sdk` from _async/__init__.py. Do not edit.
"""The asynchronous client. The blocking client is generated from it."""
