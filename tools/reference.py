"""The pages of the reference that come from the code: commands, rules, settings, packages.

A hook of mkdocs (see mkdocs.yml): the pages exist in the built documentation only, so that none of
them can be stale and no package, command or option can be forgotten.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import typer
from mkdocs.structure.files import File

from evalstop.cli.commands import COMMANDS, application
from evalstop.config.rules import RULES
from evalstop.config.schedulers import SCHEDULERS
from evalstop.config.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

    from evalstop.config.spelling import Entry

SECTIONS = {"how-to": "How to", "concepts": "Concepts", "design": "Design notes"}
"""Folder under docs/: the section of the navigation for pages that mkdocs.yml does not place."""

SOURCE = Path(__file__).parents[1] / "src" / "evalstop"


def commands() -> Iterator[str]:
    """Yield the page of commands."""
    yield """# Commands

Every command takes `--help` and `--json`: JSON alone on stdout, progress and warnings on stderr. It
exits with 0 on success, 1 on a failure at run time and 2 on bad usage or input.
"""
    for name in COMMANDS:
        group = typer.main.get_command(application([name]))
        yield from command(f"evalstop {name}", group.commands[name])  # type: ignore[attr-defined]


def command(title: str, one: Any) -> Iterator[str]:  # noqa: ANN401 -- click's classes, by way of typer
    """Yield one command's section, with its sub-commands after it."""
    arguments = " ".join(p.name.upper() for p in one.params if p.param_type_name != "option")
    nested = getattr(one, "commands", {})
    usage = f"{title} [OPTIONS] {'COMMAND' if nested else arguments}".rstrip()
    yield f"\n## {title}\n\n```text\n{usage}\n```\n\n{paragraphs(one.help)}\n"
    rows = [option(p) for p in one.params if not getattr(p, "hidden", False)]
    if rows:
        yield "\n| Option | Default | |\n|---|---|---|\n"
        yield from rows
    for name, sub in nested.items():
        yield from command(f"{title} {name}", sub)


def option(parameter: Any) -> str:  # noqa: ANN401 -- same
    """Return one option's or argument's row."""
    names = ", ".join(f"`{n}`" for n in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name != "option":
        names = f"`{parameter.name.upper()}`"
    default = parameter.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    shown = f"`{default}`" if plain and default != "" else "required" if parameter.required else ""
    return f"| {names} | {shown} | {cell(parameter.help or '')} |\n"


def rules() -> Iterator[str]:
    """Yield the page of rules."""
    yield """# Rules

Written `NAME[:key=value[,key=value...]]` everywhere: on the command line, in TOML and in Python
(`evalstop.parse_rule`). A map gives each job type its own, for instance
`rlhf=consecutive:k=2;dpo=consecutive:k=3;*=none`, which is what `paper` stands for.
"""
    yield from entries(RULES)


def schedulers() -> Iterator[str]:
    """Yield the page of base schedulers."""
    yield """# Schedulers

Written as rules are: `NAME[:key=value[,key=value...]]`, for `evalstop simulate --scheduler`, for
`scheduler` in the platform's settings, and in Python (`evalstop.parse_scheduler`).
"""
    yield from entries(SCHEDULERS)


def settings() -> Iterator[str]:
    """Yield the page of the platform's settings."""
    yield """# Settings

What can stand in `evalstop.toml`, which `evalstop up` and `evalstop doctor` read. Everything has a
default; a name that is not known here is refused, with its line.
"""
    for field in msgspec.structs.fields(Settings):
        many = isinstance(field.default, tuple)
        group = get_args(field.type)[0] if many else field.type
        heading = f"[[{field.name}]]" if many else f"[{field.name}]"
        doc = inspect.getdoc(group) or ""
        lead, _, attributes = doc.partition("Attributes:")
        yield f"\n## {heading}\n\n{sentence(lead.partition(':')[2].strip())}\n"
        yield "\n| Setting | Default | |\n|---|---|---|\n"
        told = explained(attributes)
        for one in msgspec.structs.fields(group):
            value = one.default_factory() if callable(one.default_factory) else one.default
            default = "required" if one.required else f"`{toml(value)}`"
            yield f"| `{one.name}` | {default} | {cell(told.get(one.name, ''))} |\n"


def sentence(text: str) -> str:
    """Return ``text`` with a capital at its start."""
    return text[:1].upper() + text[1:]


def explained(attributes: str) -> dict[str, str]:
    """Return what a docstring's list of attributes says of each; several may share a line."""
    told: dict[str, str] = {}
    for names, text in re.findall(
        r"^    (\w[\w, ]*): (.+(?:\n {5,}.+)*)", attributes, re.MULTILINE
    ):
        told |= {name.strip(): text for name in names.split(",")}
    return told


def toml(value: object) -> str:
    """Return a default as it would be written."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if value is None:
        return "none"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def entries(table: Mapping[str, Entry]) -> Iterator[str]:
    """Yield the sections of a table of named things."""
    for entry in table.values():
        yield f"\n## {entry.name}\n\n{entry.summary}\n"
        if entry.false_alarms:
            yield f"\nFalse alarms: {entry.false_alarms}\n"
        if entry.parameters:
            yield "\n| Setting | Type | Default | Unit |\n|---|---|---|---|\n"
        for p in entry.parameters:
            yield f"| `{p.name}` | {cell(p.type)} | `{p.default}` | {cell(p.unit)} |\n"


def paragraphs(text: str | None) -> str:
    """Return a help text without its indentation."""
    return inspect.cleandoc((text or "").replace("\b", "")).replace("\f", "")


def cell(text: str) -> str:
    """Return ``text`` so that it stays within one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def packages() -> Iterator[tuple[str, str]]:
    """Yield name and page of every package, in alphabetical order."""
    for path in sorted(SOURCE.glob("*/__init__.py")):
        name = path.parent.name
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        if doc:
            yield (
                name,
                f"# {name}\n\n::: evalstop.{name}\n    options: {{show_root_heading: false}}\n",
            )


def pages() -> dict[str, tuple[str, str]]:
    """Return title and text of every page, by its path under docs/."""
    made = {
        "reference/commands.md": ("Commands", "".join(commands())),
        "reference/rules.md": ("Rules", "".join(rules())),
        "reference/schedulers.md": ("Schedulers", "".join(schedulers())),
        "reference/settings.md": ("Settings", "".join(settings())),
    }
    for name, text in packages():
        made[f"reference/packages/{name}.md"] = (name, text)
    return made


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages into the navigation, under Reference (mkdocs hook)."""
    made = pages()
    config.extra["evalstop_pages"] = {path: text for path, (_, text) in made.items()}
    sections: dict[str, list[dict[str, str]]] = {}
    listed: set[str] = set()
    for part in config.nav or []:
        for title, entry in part.items():
            if isinstance(entry, list):
                sections[title] = entry
            listed |= {path for each in _as_list(entry) for path in each.values()}
    sections["Reference"] += [{title: path} for path, (title, _) in made.items()]
    for path, title in written_pages(Path(config.docs_dir)):
        if path not in listed:
            sections[SECTIONS.get(path.partition("/")[0], "More")].append({title: path})
    return config


def _as_list(entry: str | list[dict[str, str]]) -> list[dict[str, str]]:
    return entry if isinstance(entry, list) else [{"": entry}]


def written_pages(docs: Path) -> Iterator[tuple[str, str]]:
    """Yield path and title of each page that lies under docs/, in alphabetical order."""
    for path in sorted(docs.rglob("*.md")):
        heading = path.read_text().partition("\n")[0]
        yield str(path.relative_to(docs)), heading.removeprefix("# ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to the site (mkdocs hook)."""
    for path, text in config.extra["evalstop_pages"].items():
        files.append(File.generated(config, path, content=text))
    return files
