class Artist:
    label = ""

    def get_label(self):
        return self.label


class Line2D(Artist):
    def __init__(self, xs, ys, style="-"):
        self.xs, self.ys, self.style = xs, ys, style

    def get_xdata(self):
        return self.xs

    def get_ydata(self):
        return self.ys

    def get_linestyle(self):
        return self.style


class Rectangle(Artist):
    def __init__(self, x, y, width, height):
        self.x, self.y, self.width, self.height = x, y, width, height

    def get_x(self):
        return self.x

    def get_y(self):
        return self.y

    def get_width(self):
        return self.width

    def get_height(self):
        return self.height


class Wedge(Artist):
    def __init__(self, theta1, theta2, r):
        self.theta1, self.theta2, self.r = theta1, theta2, r


class Path:
    def __init__(self, vertices):
        self.vertices = vertices


class PathPatch(Artist):
    def __init__(self, vertices):
        self.path = Path(vertices)

    def get_path(self):
        return self.path


class PathCollection(Artist):
    def __init__(self, offsets):
        self.offsets = offsets

    def get_offsets(self):
        return self.offsets


class BarContainer(tuple):
    orientation, label = "vertical", "_container0"

    def get_label(self):
        return self.label
