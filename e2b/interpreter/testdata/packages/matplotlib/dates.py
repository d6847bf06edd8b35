import datetime


class DateConverter:
    pass


def num2date(n):
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(days=n)
