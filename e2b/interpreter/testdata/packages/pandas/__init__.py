"""As much of pandas as a kernel sees of it, where the real one is not installed."""
import datetime


class DataFrame:
    def __init__(self, columns):
        self.columns = columns

    def to_dict(self, orient):
        assert orient == "list"
        return self.columns

    def _repr_html_(self):
        return "<table></table>"

    def __repr__(self):
        return "a table"


class Timestamp(datetime.datetime):
    pass
