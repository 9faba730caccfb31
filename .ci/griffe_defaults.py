"""For the API pages: the defaults of customops/arguments.py by their values."""

import griffe

VALUES = {"NONE": "None", "ONE": "1", "FALSE": "False", "TRUE": "True"}


class Defaults(griffe.Extension):
    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        for parameter in func.parameters:
            parameter.default = VALUES.get(str(parameter.default), parameter.default)
