"""Door: what a wheel or an environment brings for devices, for people.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpucached.domain.inspection import CodeForm
from xpucached.printing import plain, quoted
from xpucached.render.text import Cell, Colour, count, fold, seconds, section, size, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xpucached.domain.inspection import InspectedDevice, Inspection, Outlook
    from xpucached.render.text import TextStyle

_FORMS: Final = {
    CodeForm.SPIRV: "SPIR-V",
    CodeForm.NATIVE: "native",
    CodeForm.PATCH_TOKENS: "patch tokens (not judged)",
    CodeForm.CPU: "for processors",
    CodeForm.BITCODE: "LLVM bitcode (not judged)",
    CodeForm.COMPRESSED: "compressed (not read)",
    CodeForm.OTHER: "for other vendors",
    CodeForm.UNKNOWN: "unknown",
}


def inspection(value: Inspection, style: TextStyle) -> str:
    """Write a sentence for each device, then a line for each file, and what was left out."""
    told = zip(value.devices, value.totals, strict=True) if value.files else ()
    parts = [_sentence(value, device, one, style) for device, one in told]
    if not value.files:
        where = ", ".join(map(plain, value.places)) or "no folder"
        read = count(value.looked_at, "file")
        parts.append(fold(f"{plain(value.target)}: no device code in {read} that can hold any, of {where}", style))
    elif not value.devices:
        kernels = sum(one.kernels for one in value.files)
        parts.append(
            fold(
                f"{plain(value.target)}: {count(kernels, 'kernel')}; this host has no Intel GPU, so name the one"
                " that is meant: --device B580",
                style,
            )
        )
    if value.files:
        parts.append(_files(value, style))
    if value.kept_in and any(one.compiled for one in value.totals):
        parts.append(section("Kept in", "\n".join(map(plain, value.kept_in)), style))
    notes = [*value.notes, *(f"not read: {_counted(reason, number)}" for reason, number in value.skipped)]
    notes += [f"{one.name}: {note}" for one in value.files for note in one.notes]
    if notes:
        mark = style.paint("!", Colour.YELLOW)
        parts.append("\n".join(f"{mark} {fold(plain(note), style, 2)}" for note in notes))
    return "\n\n".join(parts)


def _counted(reason: str, number: int) -> str:
    what, _, why = reason.partition(" ")
    if number == 1:
        what = "copy" if what == "copies" else what.removesuffix("s")
        why = why.replace("that are ", "that is ")
    return f"{number} {what} {why}"


_NAMED: Final = 5
"""Files that `why` names."""


def brought(value: Inspection, style: TextStyle) -> str:
    """Write for `why` what is compiled of which library of a model's program, the most first; maybe nothing."""
    lines: list[str] = []
    for index, device in enumerate(value.devices):
        files = [one for one in value.files if one.outlooks[index].compiled or one.outlooks[index].absent or one.used]
        files.sort(key=lambda one: (-(one.share or 0), -one.kernels, one.name))
        for one in files[:_NAMED]:
            outlook = one.outlooks[index]
            said = ", ".join(_counts(outlook))
            used = f"; it has compiled {one.used}" if one.used else ""
            share = f", {one.share:.0%} of all that it has compiled" if one.used and one.share is not None else ""
            lines.append(fold(plain(f"{one.name} on {device.architecture}: {said}{used}{share}"), style, 2))
        if len(files) > _NAMED:
            lines.append(f"and {count(len(files) - _NAMED, 'file')} more: xpucachectl inspect {quoted(value.target)}")
    lines += [fold(plain(note), style, 2) for note in value.notes]
    return section("What its program brings", "\n".join(lines), style) if lines else ""


def _sentence(value: Inspection, device: InspectedDevice, one: Outlook, style: TextStyle) -> str:
    name = device.name if device.architecture in {"cpu", device.name} else f"{device.name} ({device.architecture})"
    whole = one.ready + one.compiled + one.absent + one.unknown
    if not whole:
        return style.paint(f"{plain(name)}: no kernel", Colour.YELLOW)
    said = ", ".join(_counts(one))
    used = [file.used for file in value.files if file.used is not None]
    compiled = f"; the model has compiled {sum(used)} of them" if used else ""
    assumed = " (its stepping is not known; the usual one is taken)" if device.assumed and one.ready else ""
    colour = Colour.GREEN if one.ready == whole else Colour.RED if one.absent else Colour.YELLOW
    return style.paint(fold(plain(f"{name}: of {count(whole, 'kernel')} {said}{compiled}{assumed}"), style), colour)


def _counts(one: Outlook) -> Iterable[str]:
    about = "" if one.seconds is None else f", about {seconds(one.seconds)}"
    if one.ready:
        yield f"{one.ready} run as they are"
    if one.compiled:
        yield f"{one.compiled} are compiled at first use ({size(one.compile_size)}{about})"
    if one.absent:
        yield f"{one.absent} have no code that it takes"
    if one.unknown:
        why = f" ({one.disputed} have code for other GPUs beside SPIR-V, with which SYCL runtimes were seen to fail)"
        yield f"{one.unknown} are unknown{why if one.disputed else ''}"


def _files(value: Inspection, style: TextStyle) -> str:
    several = len(value.devices) > 1
    used = any(one.used is not None for one in value.files)
    rows: list[list[str | Cell]] = []
    for one in value.files:
        forms = ", ".join(f"{number} {_FORMS[CodeForm(form)]}" for form, number in one.forms)
        for number, (device, outlook) in enumerate(zip(value.devices, one.outlooks, strict=True)):
            rows.append(
                [
                    "" if number else one.name,
                    device.architecture,
                    str(outlook.ready),
                    Cell(str(outlook.compiled), Colour.YELLOW if outlook.compiled else None),
                    Cell(str(outlook.absent), Colour.RED if outlook.absent else None),
                    str(outlook.unknown),
                    "-" if outlook.seconds is None else f"~{seconds(outlook.seconds)}",
                    "-" if one.used is None else str(one.used),
                    forms,
                ]
            )
        if not value.devices:
            rows.append([one.name, "-", "-", "-", "-", str(one.kernels), "-", "-", forms])
    heads = ("FILE", "DEVICE", "READY", "COMPILED", "NO CODE", "UNKNOWN", "TIME", "USED", "IMAGES")
    left_out = {"DEVICE": several, "TIME": any(one.seconds is not None for one in value.totals), "USED": used}
    if not value.devices:
        left_out |= {"READY": False, "COMPILED": False, "NO CODE": False}
    kept = [index for index, head in enumerate(heads) if left_out.get(head, True)]
    titles = ["KERNELS" if not value.devices and heads[index] == "UNKNOWN" else heads[index] for index in kept]
    chosen = [[row[index] for index in kept] for row in rows]
    return table(titles, chosen, style, right="READY COMPILED UNKNOWN KERNELS TIME USED")
