"""How the reference reads docstrings: roles become links, examples become code, and classes get their arguments."""

import importlib
import inspect
import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|meth|class|attr|mod|data):`~?([^`]+)`")


class Docstrings(griffe.Extension):
    """For griffe, which reads the code without running it."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called when an object and its members are there."""
        if isinstance(obj, griffe.Function):
            _declared(obj)
        if obj.docstring is not None:
            obj.docstring.value = _text(obj.docstring.value, obj)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Methods and settings are classes whose base makes the function that takes their fields."""
        if "__init__" in cls.members or cls.module.path.split(".")[0] != "fedax":
            return
        kind = importlib.import_module(cls.module.path)
        for part in cls.path.removeprefix(cls.module.path + ".").split("."):
            kind = getattr(kind, part, None)
        if not inspect.isclass(kind) or issubclass(kind, BaseException):
            return
        try:
            signature = inspect.signature(kind)
        except (ValueError, TypeError):
            return
        names = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        for name, parameter in signature.parameters.items():
            default = None if parameter.default is parameter.empty else _default(parameter.default)
            own = cls.members.get(name)
            annotation = own.annotation if isinstance(own, griffe.Attribute) and own.annotation else None
            if str(annotation) == "Any":
                annotation = None
            how = getattr(griffe.ParameterKind, parameter.kind.name.lower())
            names.append(griffe.Parameter(name, annotation=annotation, kind=how, default=default))
        if "args" not in signature.parameters or "kwargs" not in signature.parameters:
            made = griffe.Function("__init__", parameters=griffe.Parameters(*names), lineno=cls.lineno)
            cls.set_member("__init__", made)


def _declared(function: griffe.Function) -> None:
    """Gives a function the arguments and the docstring that it has where they are made from a declaration."""
    if "takes" not in {str(each.value).partition("(")[0] for each in function.decorators}:
        return
    found = getattr(importlib.import_module(function.module.path), function.name)
    names = [
        griffe.Parameter(
            name,
            annotation=re.sub(
                r"\b(?:fedax|collections|typing)(?:\.\w+)*\.", "", inspect.formatannotation(each.annotation)
            ),
            kind=getattr(griffe.ParameterKind, each.kind.name.lower()),
            default=None if each.default is each.empty else _default(each.default),
        )
        for name, each in inspect.signature(found).parameters.items()
    ]
    function.parameters = griffe.Parameters(*names)
    if function.docstring is not None:
        function.docstring.value = found.__doc__


def _default(value: object) -> str:
    text = repr(value)
    return "..." if text.startswith("<") else re.sub(r"\bfedax(\.\w+)*\.", "", text)


def _text(text: str, obj: griffe.Object) -> str:
    text = re.sub(r"^Example:$", "Examples:", inspect.cleandoc(text), flags=re.MULTILINE)
    text = re.sub(r"::\n\n(?=    )", ":\n\n", text)
    text = re.sub(
        r"^(?! *(?:>>>|\.\.\.)).*\]\(.*$", lambda line: line[0].replace("](", "\\]("), text, flags=re.MULTILINE
    )
    return _ROLE.sub(lambda role: _link(role[1], obj), text)


def _link(name: str, obj: griffe.Object) -> str:
    """A link where the name is in the reference, else the name as code."""
    try:
        path = name if name.startswith("fedax") else obj.resolve(name)
    except griffe.NameResolutionError:
        path = f"{obj.path}.{name}" if obj.is_class else f"{obj.module.path}.{name}"
    shown = name.removeprefix("fedax.") if name.count(".") > 2 else name
    return f'<autoref identifier="{path}" optional><code>{shown}</code></autoref>'
