"""What the file and the variables say together: the variables over the file.  Home of pydantic and pydantic-settings.

They take more memory than all else that a daemon reads its configuration with, so it loads them in a process of its
own: see `settings.reader_process`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, cast

from msgspec.structs import FieldInfo as Field
from pydantic import PlainValidator, ValidationError, create_model
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from xpucached.settings.keys import SECTIONS
from xpucached.settings.values import Wrong, declared, table, unknown

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


class _Sources(BaseSettings):
    """Takes two sources that were read already."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    def __init__(self, *, file: Mapping[str, object], variables: Mapping[str, object]) -> None:
        # Passed on as what they are not, fields: this is how the sources below come by them.
        super().__init__(file=file, variables=variables)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - reads the process's variables; we are given ours
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there are none
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there are none
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the two that the constructor was given."""
        given = init_settings.init_kwargs if isinstance(init_settings, InitSettingsSource) else {}
        return (_Source(settings_cls, given["variables"]), _Source(settings_cls, given["file"]))


class _Source(PydanticBaseSettingsSource):
    """Values that were read already."""

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, object]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[object, str, bool]:  # noqa: ARG002 - the base's
        """Return the value of one field."""
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, object]:
        """Give them all."""
        return dict(self._values)


def _section(keys: Mapping[str, Field]) -> object:
    return Annotated[object, PlainValidator(functools.partial(table, keys))]


_DOCUMENT = cast(
    "type[_Sources]",
    create_model(
        "_Document",
        __base__=_Sources,
        **{name: (_section(declared(kind)), {}) for name, kind in SECTIONS.items()},  # type: ignore[call-overload]
    ),
)


def merged(file: Mapping[str, object], variables: Mapping[str, object]) -> Mapping[str, dict[str, object]]:
    """Read all sections: of each, what is given.  Raises `Wrong` with all that is wrong."""
    try:
        document = _DOCUMENT(file=file, variables=variables)
    except ValidationError as error:
        mistakes: list[tuple[tuple[str, ...], str]] = []
        for fault in error.errors(include_url=False):
            section = str(fault["loc"][0])
            wrong = fault.get("ctx", {}).get("error")
            if isinstance(wrong, Wrong):
                mistakes += [((section, *place), what) for place, what in wrong.mistakes]
            else:
                mistakes.append(((section,), unknown(section, SECTIONS)))
        raise Wrong(*mistakes) from error
    return {name: getattr(document, name) for name in SECTIONS}
