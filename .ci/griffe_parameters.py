"""For the API pages: parameters as a reader of them expects.

The defaults of customops/arguments.py are shown by their values. What a TypedDict has and a
docstring describes is one row, not two, and what no docstring describes is none.
"""

import griffe

VALUES = {"NONE": "None", "ONE": "1", "FALSE": "False", "TRUE": "True", "REQUIRED": None}


def _default(of: griffe.Parameter | griffe.DocstringParameter) -> str | griffe.Expr | None:
    default = VALUES.get(str(of.default), of.default)
    may_be_none = default == "..." and "None" in str(of.annotation)  # what a TypedDict has
    return "None" if may_be_none else default


class Parameters(griffe.UnpackTypedDictExtension):
    def on_class(self, *, cls: griffe.Class, **_: object) -> None:
        """Leaves a TypedDict as it is. Else it would lose what those that inherit from it have."""

    def on_function(self, *, func: griffe.Function, **others: object) -> None:
        super().on_function(func=func, **others)
        for parameter in func.parameters:
            parameter.default = _default(parameter)
        for section in func.docstring.parsed if func.docstring else ():
            if section.kind is griffe.DocstringSectionKind.parameters:
                section.value = _merged(section.value)


def _merged(rows: list[griffe.DocstringParameter]) -> list[griffe.DocstringParameter]:
    """One row to a name: the description of the first, type and default of the last."""
    by_name: dict[str, griffe.DocstringParameter] = {}
    for row in rows:
        first = by_name.setdefault(row.name, row)
        first.annotation, first.value = row.annotation, _default(row)
    return [row for row in by_name.values() if row.description]
