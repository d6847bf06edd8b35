"""As much of matplotlib as a kernel sees of it, where the real one is not installed.

The names, the modules and the manners are those of the real one: it writes a signature on
what stands for pyplot.show, and has dates as numbers.
"""
