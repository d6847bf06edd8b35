"""Extracts the data of charts from figures of matplotlib.

The kinds of charts, and the rules by which a figure is recognized as one, are those of E2B's
protocol. Other figures have no chart.
"""
import datetime
import re
import sys


def is_a(value, package, *names):
    """Whether a value's class has one of the names in a package, which may not be installed."""
    return any(c.__name__ in names and c.__module__.split(".")[0] == package for c in type(value).__mro__)


def drawn_as(artist, *names):
    return is_a(artist, "matplotlib", *names)


def chart_of(figure):
    """The chart of a figure, or None if the figure is empty."""
    charts = [chart for chart in map(chart_of_axes, figure.get_axes()) if chart]
    if len(figure.get_axes()) <= 1:
        return charts[0] if charts else None
    over = getattr(figure, "_suptitle", None)
    return {"type": "superchart", "title": over.get_text() if over else "", "elements": charts}


def chart_of_axes(ax):
    artists = [a for group in (ax.lines, ax.patches, ax.collections, ax.images, ax.tables, ax.artists) for a in group]
    if not artists:
        return None
    kind = kind_of(artists)
    chart = {"type": kind, "title": ax.get_title() or None, "elements": []}
    if kind in PLANAR:
        chart.update(labels_of(ax))
    if kind in READERS:
        READERS[kind](ax, chart)
    return chart


def kind_of(artists):
    if all(drawn_as(a, "Line2D") for a in artists):
        return "line"
    if all(drawn_as(a, "Line2D", "PathPatch") for a in artists):
        return "box_and_whisker"
    artists = [a for a in artists if not is_guide(a)]
    for kind, name in (("scatter", "PathCollection"), ("pie", "Wedge"), ("bar", "Rectangle")):
        if all(drawn_as(a, name) for a in artists):
            return kind
    return "unknown"


def is_guide(artist):
    """Whether an artist is a straight line parallel to an axis, such as a grid line."""
    if not drawn_as(artist, "Line2D"):
        return False
    xs, ys = list(artist.get_xdata()), list(artist.get_ydata())
    return len(xs) == len(ys) == 2 and (same(xs[0], xs[1]) or same(ys[0], ys[1]))


def same(a, b):
    """Whether two coordinates are equal: numbers with a tolerance, text and dates exactly."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) <= 1e-9 * max(abs(a), abs(b), 1e-300)
    return bool(a == b)


UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")


def labels_of(ax):
    def unit(label):
        found = UNIT.search(label)
        return found and (found[1] or found[2]) or None

    x, y = ax.get_xlabel(), ax.get_ylabel()
    return {"x_label": x or None, "y_label": y or None, "x_unit": unit(x), "y_unit": unit(y)}


def turned(chart):
    """Swap the axes of a horizontal chart: clients expect the values at y."""
    for what in ("label", "unit"):
        x, y = "x_" + what, "y_" + what
        chart[x], chart[y] = chart[y], chart[x]


# --- lines and points ---

def scales(ax, chart):
    for name, axis, scale in (("x", ax.xaxis, ax.get_xscale()), ("y", ax.yaxis, ax.get_yscale())):
        words = [label.get_text() for label in axis.get_ticklabels()]
        ticks = [float(tick) for tick in axis.get_ticklocs()]
        if of_dates(axis):
            num2date = sys.modules["matplotlib.dates"].num2date
            ticks, scale = [num2date(tick).isoformat() for tick in ticks], "datetime"
        elif scale == "linear" and ticks and all(tick == i and word != str(i) for i, (tick, word) in enumerate(zip(ticks, words))):
            scale = "categorical"
        chart.update({name + "_ticks": ticks, name + "_tick_labels": words, name + "_scale": scale})


def of_dates(axis):
    find = getattr(axis, "get_converter", None)
    converter = find() if find else axis.converter
    return any(c.__name__ in ("DateConverter", "_SwitchableDateConverter") and c.__module__ == "matplotlib.dates" for c in type(converter).__mro__)


def place(v):
    """A coordinate for JSON. Numbers of numpy are converted later."""
    if isinstance(v, datetime.date):
        return v.isoformat()
    if type(v).__name__ == "datetime64":
        return str(v.astype("datetime64[s]"))
    if getattr(v, "mask", None) is not None and bool(v.mask):
        return None  # matplotlib does not draw masked values
    return v


def lines(ax, chart):
    scales(ax, chart)
    for line in ax.lines:
        if is_guide(line):
            continue
        points = [[place(x), place(y)] for x, y in zip(line.get_xdata(), line.get_ydata())]
        chart["elements"].append({"label": named(line, "_child", "Line"), "points": points})


def named(artist, given, kind):
    """The label of an artist. Without a label, matplotlib uses a prefix and a number."""
    label = str(artist.get_label())
    number = label[len(given):]
    return "%s %s" % (kind, number) if label.startswith(given) and number.isdigit() else label


def points(ax, chart):
    scales(ax, chart)
    for collection in ax.collections:
        chart["elements"].append({"label": str(collection.get_label()), "points": [[place(x), place(y)] for x, y in collection.get_offsets()]})


# --- bars, boxes and slices ---

def bars(ax, chart):
    lie = False
    for container in ax.containers:
        rects = list(container)
        upright = getattr(container, "orientation", "vertical") != "horizontal"
        lie = lie or not upright
        axis = ax.xaxis if upright else ax.yaxis
        middles = [r.get_x() + r.get_width() / 2 if upright else r.get_y() + r.get_height() / 2 for r in rects]
        values = [r.get_height() if upright else r.get_width() for r in rects]
        group = named(container, "_container", "Group")
        for label, value in zip(names_at(axis, middles), values):
            chart["elements"].append({"label": label, "group": group, "value": float(value)})
    if lie:
        turned(chart)


def names_at(axis, places):
    """The labels of positions on an axis: the tick labels in order if there are as many as
    positions, else the label of the tick at the position, or the number."""
    words = [label.get_text() for label in axis.get_ticklabels()]
    if len(words) == len(places):
        return words
    at = {round(float(tick), 6): word for tick, word in zip(axis.get_ticklocs(), words)}
    return [at.get(round(float(p), 6)) or "%g" % p for p in places]


def slices(ax, chart):
    for wedge in ax.patches:
        # matplotlib computes angles in single precision.
        chart["elements"].append({"label": str(wedge.get_label()), "angle": abs(round(float(wedge.theta2) - float(wedge.theta1), 4)), "radius": float(wedge.r)})


def boxes(ax, chart):
    found = [Box(patch) for patch in ax.patches]
    straight = [line for line in ax.lines if len(line.get_xdata()) == 2 and line.get_linestyle() != "None"]
    # A median line crosses its box, so it determines the orientation. Whiskers may have no length.
    upright = not any(same(*line.get_xdata()) and not same(*line.get_ydata()) and box.holds(line) for line in straight for box in found)
    for box in found:
        box.stand(upright)
    for line in ax.lines:
        across, along = line.get_xdata(), line.get_ydata()
        if not upright:
            across, along = along, across
        across, along = [float(v) for v in across], [float(v) for v in along]
        box = next((b for b in found if across and b.left <= min(across) and max(across) <= b.right), None)
        if box:
            box.take(across, along, line.get_linestyle() == "None")
    axis = ax.xaxis if upright else ax.yaxis
    for box, label in zip(found, names_at(axis, [(b.left + b.right) / 2 for b in found])):
        chart["elements"].append(box.element(label))
    if not upright:
        turned(chart)


class Box:
    """A box with its median, whiskers and outliers."""

    def __init__(self, patch):
        vertices = patch.get_path().vertices
        self.x = min(float(v[0]) for v in vertices), max(float(v[0]) for v in vertices)
        self.y = min(float(v[1]) for v in vertices), max(float(v[1]) for v in vertices)
        self.low = self.high = self.median = None
        self.widest, self.alone = -1, []

    def holds(self, line):
        xs, ys = line.get_xdata(), line.get_ydata()
        return self.x[0] <= min(xs) and max(xs) <= self.x[1] and self.y[0] <= min(ys) and max(ys) <= self.y[1]

    def stand(self, upright):
        (self.left, self.right), (self.first, self.third) = (self.x, self.y) if upright else (self.y, self.x)

    def take(self, across, along, dots):
        if dots:
            self.alone += along
        elif len(along) != 2:
            return
        elif same(*along):
            if self.first <= along[0] <= self.third and abs(across[1] - across[0]) > self.widest:
                self.median, self.widest = along[0], abs(across[1] - across[0])  # the caps of whiskers are shorter
        elif same(max(along), self.first):
            self.low = min(along)
        elif same(min(along), self.third):
            self.high = max(along)

    def element(self, label):
        low = self.first if self.low is None else self.low
        high = self.third if self.high is None else self.high
        return {
            "label": label, "min": low, "first_quartile": self.first, "median": self.median, "third_quartile": self.third, "max": high,
            "outliers": [v for v in self.alone if v < low or v > high],
        }


PLANAR = ("line", "scatter", "bar", "box_and_whisker")
READERS = {"line": lines, "scatter": points, "bar": bars, "pie": slices, "box_and_whisker": boxes}
