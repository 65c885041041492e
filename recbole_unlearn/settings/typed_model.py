"""`--model=package.module:Class`: the class that somebody typed, imported as `python -m` would find it.

Only what is typed on the command line comes here. A checkpoint or a config file cannot name a class to import.
"""

from __future__ import annotations

import importlib
import os
import sys

from recbole_unlearn.errors import UnlearnError, nearest


def is_typed_class(text: object) -> bool:
    """Whether a model was given as package.module:Class, rather than by the name of one of RecBole's."""
    return isinstance(text, str) and ":" in text


def typed_class(text: str) -> type:
    """The model class that ``text`` names; the working directory is looked through first."""
    from recbole_unlearn.settings.config import is_recommender  # needs RecBole, and `--help` does not

    module, _, name = text.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise UnlearnError(
            f"--model={text:.200} is not package.module:Class; for example --model=my_models:MyBPR."
        )
    here = os.getcwd()
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    found = getattr(_imported(module), name, None)
    if found is None:
        classes = [key for key, value in vars(sys.modules[module]).items() if is_recommender(value)]
        raise UnlearnError(f"The module {module} has no class {name}.{nearest(name, classes)} Check --model.")
    if not is_recommender(found):
        raise UnlearnError(
            f"{text} is not a model of RecBole; derive the class from one of its recommenders."
        )
    return found


def _imported(module: str) -> object:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise UnlearnError(
                f"There is no module {module} in {os.getcwd()} or where Python looks for modules; check --model."
            ) from error
        raise UnlearnError(f"The module {module} needs {error.name}, which is not installed.") from error
    except Exception as error:  # it is somebody's own code, and may fail in any way
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise UnlearnError(
            f"The module {module} cannot be imported: {type(error).__name__}: {reason}"
        ) from error
