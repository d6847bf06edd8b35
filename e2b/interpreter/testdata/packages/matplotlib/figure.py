class Text:
    def __init__(self, text):
        self.text = text

    def get_text(self):
        return self.text


class Axis:
    converter = None

    def __init__(self):
        self.ticks, self.words, self.scale, self.label = [], [], "linear", ""

    def get_ticklocs(self):
        return self.ticks

    def get_ticklabels(self):
        return [Text(word) for word in self.words]


class Axes:
    def __init__(self):
        self.lines, self.patches, self.collections, self.images, self.tables, self.artists, self.containers = ([] for _ in range(7))
        self.xaxis, self.yaxis, self.title = Axis(), Axis(), ""

    def get_title(self):
        return self.title

    def get_xlabel(self):
        return self.xaxis.label

    def get_ylabel(self):
        return self.yaxis.label

    def get_xscale(self):
        return self.xaxis.scale

    def get_yscale(self):
        return self.yaxis.scale


class Figure:
    _suptitle = None

    def __init__(self, *axes):
        self.axes = list(axes)

    def __repr__(self):
        return "<Figure size 640x480 with %d Axes>" % len(self.axes)

    def get_axes(self):
        return self.axes

    def savefig(self, to, format=None, bbox_inches=None):
        to.write(b"\x89PNG\r\n\x1a\nof %d" % len(self.axes))

    def show(self, warn=True):
        raise AttributeError("there is no screen")
