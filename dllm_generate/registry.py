"""Named, validated, serialisable parts: decoders, schedules and cache policies."""

import dataclasses
import importlib
import inspect
import pkgutil
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps a name to a frozen dataclass, and builds instances of it from plain JSON values.

    Args:
        option (`str`): the config option that selects a part of this kind, such as `"decoder"`.
        home (`str`): the config option that holds the hyper-parameters, such as `"decoder_config"`.
        package (`str`): the package whose modules hold the parts; each is imported on first use, so that a new part
            is one new file.
        base (`type`): the class that every part derives from.
    """

    def __init__(self, option: str, home: str, package: str, base: type[T]):
        self.option, self.home, self.package, self.base = option, home, package, base
        self._parts: dict[str, type[T]] = {}
        self._loaded = False

    def register(self, name: str):
        """Class decorator that makes `name` a value of the option. A later registration of a name replaces it."""

        def decorate(cls: type[T]) -> type[T]:
            cls.name = name  # type: ignore[attr-defined]
            self._parts[name] = cls
            return cls

        return decorate

    @property
    def parts(self) -> dict[str, type[T]]:
        """All registered classes by name."""
        if not self._loaded:
            self._loaded = True
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
        return self._parts

    def find(self, name: Any) -> type[T]:
        """Returns the class called `name`. Raises ValueError with the known names otherwise."""
        if not isinstance(name, str) or name not in self.parts:
            raise ValueError(f"`{self.option}` is {name!r}, but must be one of {sorted(self.parts)} or an instance.")
        return self.parts[name]

    def refuse_unregistered(self, part: Any, decorator: str) -> None:
        """Raises ValueError for an instance that cannot be found again by its name, and says how to register it."""
        cls = type(part)
        if part is not None and not isinstance(part, str) and self.parts.get(getattr(part, "name", "")) is not cls:
            raise ValueError(
                f"`{self.option}` is an instance of {cls.__name__}, which is not registered: a file with it could not "
                f'be loaded. Decorate the class with @{decorator}("a_name"), here and wherever the file is loaded.'
            )

    def fields(self, name: str) -> list[str]:
        """Names of the hyper-parameters of the part called `name`."""
        return [field.name for field in dataclasses.fields(self.find(name))]  # type: ignore[arg-type]

    def build(self, spec: Any, hyper_parameters: dict[str, Any] | None = None, **flat: Any) -> T:
        """Makes the part that a config asks for.

        Args:
            spec: a registered name, or an instance, which is returned as it is.
            hyper_parameters: values for the fields of the class.
            flat: options that live flat on the config; those that the class has a field for are used unless None.

        Raises:
            ValueError: unknown name, unknown hyper-parameter, or a value that the class refuses.
        """
        if not isinstance(spec, str):
            return self._checked(spec, hyper_parameters, flat)
        cls, known = self.find(spec), self.fields(spec)
        values = dict(hyper_parameters or {})
        for key in values:
            if key not in known:
                raise ValueError(f"`{self.home}` has {key!r}, but {self.option} {spec!r} only takes {sorted(known)}.")
        for key, value in flat.items():
            if key not in known or value is None:
                continue
            if key in values:
                raise ValueError(f"`{key}` is set both flat and in `{self.home}`: choose one.")
            values[key] = value
        needed = [key for key, p in inspect.signature(cls).parameters.items() if p.default is p.empty]
        missing = [key for key in needed if key in known and key not in values]
        require(not missing, self.option, spec, f"given with {missing} in `{self.home}`")
        return cls(**values)

    def _checked(self, part: Any, hyper_parameters: dict[str, Any] | None, flat: dict[str, Any]) -> T:
        if not isinstance(part, self.base):
            self.find(part)
        if hyper_parameters:
            raise ValueError(
                f"`{self.home}` is {hyper_parameters}, but must be None where `{self.option}` is an instance."
            )
        for key, value in flat.items():
            if value is not None and value != getattr(part, key, value):
                raise ValueError(
                    f"`{key}` is {value!r}, but the instance given as `{self.option}` has {getattr(part, key)!r}: "
                    f"leave `{key}` None."
                )
        return part

    def homes(self) -> dict[str, str]:
        """Maps every hyper-parameter of every part to a text that says where it belongs."""
        places: dict[str, list[str]] = {}
        for name in self.parts:
            for key in self.fields(name):
                places.setdefault(key, []).append(name)
        return {
            key: f"{self.home}={{{key!r}: ...}} ({self.option} {', '.join(map(repr, names))})"
            for key, names in places.items()
        }


def settings_of(cls: type[T], name: str, option: bool | dict[str, Any] | None) -> T | None:
    """Makes the dataclass `cls` that the option `name` asks for.

    Args:
        option: None or False is nothing, True the default, a dict gives fields.

    Raises:
        ValueError: for any other value, and for unknown keys.
    """
    if option is None or option is False:
        return None
    require(option is True or isinstance(option, dict), name, option, "a bool or a dict")
    values = dict(option) if isinstance(option, dict) else {}
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    require(set(values) <= set(known), name, option, f"a dict with keys of {known}")
    return cls(**values)


def require(condition: bool, option: str, value: Any, allowed: str) -> None:
    """Raises the standard ValueError (option, value, what is allowed) unless `condition` holds."""
    if not condition:
        raise ValueError(f"`{option}` is {value!r}, but must be {allowed}.")


def is_number(value: Any) -> bool:
    """True for an int or float that is no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_int(value: Any) -> bool:
    """True for an int that is no bool."""
    return isinstance(value, int) and not isinstance(value, bool)
