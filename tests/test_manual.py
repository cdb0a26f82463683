"""The man pages and completions are made from the program, are whole, and work."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import completions
import manual
import pytest

from tests import REPOSITORY
from tests.support import api_stub, daemons
from tests.test_docs import family
from xpucached import quantities
from xpucached.cli import arguments, exits, quick
from xpucached.daemon import main
from xpucached.domain.models import Outcome
from xpucached.domain.plans import EvictReason
from xpucached.domain.status import Verdict
from xpucached.domain.stores import EntryState
from xpucached.errors import XpucachedError
from xpucached.settings import loading, model_files
from xpucached.settings.keys import keys

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write everything once."""
    place = tmp_path_factory.mktemp("manual")
    manual.write(place)
    return place


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install {package})")
    return found


def shown(path: Path) -> str:
    """Return a page as somebody reads it on a very wide terminal, without broken lines and words."""
    groff = tool("groff", "groff-base")
    command = [groff, "-man", "-Tutf8", "-P-cbou", "-rLL=2000n", "-rHY=0", "-Kutf8", os.fspath(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.replace("\N{MINUS SIGN}", "-").replace("\N{HYPHEN}", "-")


def below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from below(child)


@pytest.mark.parametrize("name", manual.PAGES)
def test_the_pages_are_what_man_accepts(made: Path, name: str) -> None:
    # As man itself starts it with --warnings: all that it finds is printed.
    command = [tool("groff", "groff-base"), "-man", "-Tutf8", "-ww", "-Kutf8", "-z", os.fspath(made / "man" / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_man_would_find_a_mistake(tmp_path: Path) -> None:
    page = tmp_path / "x.1"
    page.write_text(".TH X 1\n.SH NAME\nx\n.nosuchmacro\n")
    command = [tool("groff", "groff-base"), "-man", "-Tutf8", "-ww", "-z", os.fspath(page)]

    assert "nosuchmacro" in subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_what_is_written_is_the_same_each_time(made: Path, tmp_path: Path) -> None:
    # In a process of its own, whose sets have another order, on a narrow terminal, in another place.
    environ = {**os.environ, "PYTHONHASHSEED": "7", "COLUMNS": "40", "LC_ALL": "C"}
    command = [sys.executable, os.fspath(REPOSITORY / "tools" / "manual.py"), os.fspath(tmp_path)]
    subprocess.run(command, env=environ, cwd=tmp_path, check=True)

    def contents(place: Path) -> dict[str, str]:
        files = (path for path in place.rglob("*") if path.is_file())
        return {path.relative_to(place).as_posix(): path.read_text(encoding="utf-8") for path in files}

    assert contents(tmp_path) == contents(made)
    assert len(contents(made)) == len(manual.PAGES) + 2 * len(completions.COMPLETIONS) + 1


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("xpucached.8", "xpucached --user"),
        ("xpucachectl.1", "xpucachectl replay --dry-run"),
        ("xpucachectl-trash.1", "xpucachectl trash restore --all"),
        ("xpucached.toml.5", 'max_bytes = "20GiB"'),
        ("xpucached-models.5", 'command = ["/opt/app/venv/bin/python", "/opt/app/infer.py", "--once"]'),
    ],
)
def test_every_page_has_examples(made: Path, name: str, line: str) -> None:
    text = shown(made / "man" / name)
    there = text.partition("\nEXAMPLES\n")[2].partition("\nSEE ALSO\n")[0]
    assert line in [one.strip() for one in there.splitlines()]


def test_the_example_of_a_configuration_is_one(made: Path, tmp_path: Path) -> None:
    text = shown(made / "man" / "xpucached.toml.5").partition("\nEXAMPLES\n")[2].partition("\nSEE ALSO\n")[0]
    (tmp_path / "xpucached.toml").write_text("\n".join(line.strip() for line in text.splitlines()))
    found = loading.load(tmp_path / "xpucached.toml", user=False, environ={})
    assert (found.policy.max_bytes, found.schedule.evict) == (20 << 30, False)


@pytest.mark.parametrize(
    ("name", "parser"), [("xpucached.8", main.parser()), ("xpucachectl.1", arguments._parser())], ids=str
)
def test_every_command_and_option_is_in_its_page(made: Path, name: str, parser: argparse.ArgumentParser) -> None:
    text = shown(made / "man" / name)
    for one in below(parser):
        assert one.prog in text
        for action in one._actions:
            for option in action.option_strings:
                if option not in {"-h", "--help"}:
                    assert re.search(rf"^ +(\S+ \S+, |\S+, )?{re.escape(option)}\b", text, re.MULTILINE), option
            if action.help and action.dest != "help" and not isinstance(action, argparse._SubParsersAction):
                assert " ".join((action.help % vars(action)).split()) in " ".join(text.split()), action


@pytest.mark.parametrize("group", manual.GROUPS)
def test_the_page_of_commands_below_another_has_all_of_them(made: Path, group: str) -> None:
    text = shown(made / "man" / f"xpucachectl-{group}.1")
    (parser,) = (one for one in below(arguments._parser()) if one.prog == f"xpucachectl {group}")
    for one in below(parser):
        assert one.prog in text
    assert f"NAME\n     xpucachectl-{group} - {manual.GROUPS[group]}\n" in re.sub(r"\n +", "\n     ", text)
    for verb, ends in exits.OF_COMMANDS.items():
        if verb.split()[0] == group:
            assert all(f"{why}. Exit status: {status}." in text for status, why in ends.items()), verb


def test_every_command_with_others_below_has_a_page() -> None:
    parsers = {one.prog.removeprefix("xpucachectl "): [*below(one)][1:] for one in below(arguments._parser())}
    # Of `config` all is said in one line.
    assert {name for name, found in parsers.items() if found} - {"xpucachectl", "config"} == {*manual.GROUPS}


def test_every_setting_is_in_its_page(made: Path) -> None:
    text = shown(made / "man" / "xpucached.toml.5")
    for key in keys():
        chapter = text.partition(f"\n[{key.section}]\n")[2]
        assert re.search(rf"^ +{key.name}\b", re.split(r"\n(?=\S)", chapter)[0], re.MULTILINE), key


def test_every_key_of_a_model_file_is_in_its_page(made: Path) -> None:
    text = shown(made / "man" / "xpucached-models.5").partition("MODEL FILES")[2].partition("\nLOADERS")[0]
    for name in model_files.KEYS:
        assert re.search(rf"^ +{name}\b", text, re.MULTILINE), name


@pytest.mark.parametrize("name", ["xpucached.8", "xpucachectl.1"])
def test_every_error_is_in_the_pages_with_its_status(made: Path, name: str) -> None:
    text = " ".join(shown(made / "man" / name).partition("EXIT STATUS")[2].split())
    for one in family(XpucachedError):
        assert f"{one.code} {one.__doc__} Exit status: {one.exit}." in text


def test_every_word_of_a_status_is_in_the_client_s_page(made: Path) -> None:
    text = shown(made / "man" / "xpucachectl.1").partition("WHAT STATUS SAYS")[2]
    for word in [*Verdict, *Outcome, *EntryState, *EvictReason]:
        assert re.search(rf"\b{re.escape(word)}\b", text), word


def test_the_example_sets_nothing_and_names_every_key(made: Path) -> None:
    text = (made / manual.EXAMPLE).read_text(encoding="utf-8")
    assert all(not inner for inner in tomllib.loads(text).values())

    # With the marks of a comment away, each key stands in its section with its default.
    awake = re.sub(r"^#(\w+ = )(…)?", lambda one: f'{one[1]}"…"' if one[2] else one[1], text, flags=re.MULTILINE)
    read = tomllib.loads(awake)
    for key in keys():
        assert key.name in read[key.section], key
        value = read[key.section][key.name]
        if isinstance(key.default, bool | int) and value != "…":
            assert (quantities.size(value) if isinstance(value, str) else value) == key.default, key


# -- completions ----------------------------------------------------------------------------------------------------

BASH: Final = """
source "$1"; shift
eval "set -- $1"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
function=$(complete -p "$1" | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
$function "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(made: Path, line: str, environ: dict[str, str] | None = None) -> set[str]:
    """Return what a real bash offers for the last word of a line."""
    program = line.split(maxsplit=1)[0]
    script = made / "completions" / completions.COMPLETIONS["bash"].format(program=program)
    done = subprocess.run(
        [tool("bash", "bash"), "--norc", "-c", BASH, "bash", script, line],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("xpucachectl prew", {"prewarm"}),
        ("xpucachectl model re", {"remove"}),
        ("xpucachectl trash res", {"restore"}),
        ("xpucachectl ls --st", {"--state", "--store"}),
        ("xpucachectl ls --state d", {"defective"}),
        ("xpucachectl evict --reason over", {"over-budget"}),
        ("xpucachectl model add --loader tr", {"train", "transformers"}),
        ("xpucached --ch", {"--check"}),
    ],
)
def test_bash_completes(made: Path, line: str, offered: set[str]) -> None:
    assert completed(made, line) == offered


def test_bash_offers_the_files_of_a_folder(made: Path, tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()

    assert completed(made, f"xpucachectl replay --driver-root {tmp_path}/dr") == {f"{tmp_path}/driver"}


def test_bash_offers_the_models_that_the_daemon_knows(made: Path, home: Path, short_dir: Path) -> None:
    with daemons.daemon(home, short_dir) as running:
        running.start()
        for name in ("llama-7b", "llama-70b", "resnet"):
            running.ctl("model", "add", name, "--", "/bin/true")
        programs = short_dir / "bin"
        programs.mkdir()
        (programs / "xpucachectl").symlink_to(Path(sys.executable).with_name("xpucachectl"))
        environ = {
            **running.environment,
            "PATH": f"{programs}:/usr/bin:/bin",
            "XPUCACHED_SOCKET": f"{short_dir}/xpucached/xpucached.sock",
        }

        assert completed(made, "xpucachectl prewarm ll", environ) == {"llama-7b", "llama-70b"}
        assert completed(made, "xpucachectl model show r", environ) == {"resnet"}


def test_what_only_the_daemon_knows_is_offered_and_asked_for_in_the_quick_way(
    made: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = short_dir / "bin"
    programs.mkdir()
    (programs / "xpucachectl").symlink_to(Path(sys.executable).with_name("xpucachectl"))
    with api_stub.running(short_dir) as one:
        monkeypatch.setenv("XPUCACHED_SOCKET", str(one.path))
        environ = {**os.environ, "PATH": f"{programs}:/usr/bin:/bin"}
        some = one.service.known[0]
        for line, offered in (
            ("xpucachectl ls --driver 2", {"25.18.33578", "26.1"}),
            ("xpucachectl ls --driver c", {"current"}),
            ("xpucachectl ls --arch b", {"bmg-g21"}),
            ("xpucachectl replay --device b", {"bmg-g21"}),
            ("xpucachectl verify /var", {"/var/cache/xpucached/sycl"}),
            ("xpucachectl model list r", {"resnet"}),
            ("xpucachectl trash restore 0", {str(api_stub.TRASHED)}),
            (f"xpucachectl show {some.entry.id.ref[:3]}", {some.entry.id.ref}),
            ("xpucachectl --of roo", {"root"}),
        ):
            assert completed(made, line, environ) == offered, line
        # Nothing is loaded for it but what looks: a tenth of a second is felt.
        for kind in (*completions._ASKED.values(), completions._IN_TRASH):
            program, *words = str(kind["fish"]).strip("()").partition(" 2>")[0].removeprefix("echo current; ").split()
            if program == "xpucachectl":
                assert quick.answer(words) == 0, words
        capsys.readouterr()


HOSTILE: Final = ("/tmp/$(touch ran)", "/tmp/`touch ran`", "/tmp/{a,b}", "/tmp/two words", "/tmp/${HOME}")

ZSH: Final = """
compadd() { print -rl -- "${(@P)argv[-1]}" }
names=(${(f)"$(grep -o '^_xpucached_lines_[0-9a-f]*' $1)"})
source <(sed -n '/^# Custom Preamble/,/^# End Custom Preamble/p' $1)
for one in $names; do $one -J files; done
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_name_that_somebody_chose_is_never_run(made: Path, tmp_path: Path, shell: str) -> None:
    program = tmp_path / "bin" / "xpucachectl"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{chr(10).join(HOSTILE)}\nE\n", encoding="utf-8")
    program.chmod(0o755)
    script = made / "completions" / completions.COMPLETIONS[shell].format(program="xpucachectl")
    place = tmp_path / "place"
    place.mkdir()
    words = {
        "bash": ["--norc", "-c", BASH, "bash", str(script), "xpucachectl stores /"],
        "zsh": ["-f", "-c", ZSH, "zsh", str(script)],
        "fish": ["--no-config", "-c", f"source {script}; complete -C 'xpucachectl stores /'"],
    }
    done = subprocess.run(
        [tool(shell, shell), *words[shell]],
        env={**os.environ, "PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    told = {line.partition("\t")[0] for line in done.stdout.splitlines()}
    if shell == "bash":
        # As they have to be written there.
        told = {shlex.split(line)[0] for line in told}
    assert told >= {*HOSTILE}, done.stderr
    assert [*place.iterdir()] == []


def test_what_zsh_asks_for_stands_in_no_text_that_it_evaluates(made: Path) -> None:
    script = (made / "completions" / completions.COMPLETIONS["zsh"].format(program="xpucachectl")).read_text("utf-8")
    lines = [line for line in script.splitlines() if "$(xpucachectl" in line or "$(getent" in line]
    assert lines
    assert [line for line in lines if not line.startswith("  found=(${(f)")] == []


@pytest.mark.parametrize(("shell", "package"), [("zsh", "zsh"), ("fish", "fish")])
@pytest.mark.parametrize("program", ["xpucached", "xpucachectl"])
def test_other_shells_read_their_completions(made: Path, shell: str, package: str, program: str) -> None:
    script = made / "completions" / completions.COMPLETIONS[shell].format(program=program)
    done = subprocess.run([tool(shell, package), "-n", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "prewarm" in script.read_text(encoding="utf-8") or program == "xpucached"


def test_fish_completes(made: Path) -> None:
    script = made / "completions" / completions.COMPLETIONS["fish"].format(program="xpucachectl")
    code = f"source {script}; complete -C 'xpucachectl model re'"
    done = subprocess.run(
        [tool("fish", "fish"), "--no-config", "-c", code], capture_output=True, text=True, check=False
    )

    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["remove"], done.stderr
