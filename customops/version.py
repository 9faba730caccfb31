__version__ = "0.2.0"
MIN_TORCH = (2, 10)  # what setup.py builds for and requires
