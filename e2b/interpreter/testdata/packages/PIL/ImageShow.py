def show(image, title=None, **options):
    raise RuntimeError("there is no screen")
