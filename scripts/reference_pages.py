#!/usr/bin/env python3
"""Write docs/config.md and docs/commands.md from the code; with --check, only compare them.

The config's keys come from its pydantic models, and what they mean from the ``#:`` comments above
the fields, or from the docstring of the class that explains them. The commands come from click.
"""

import argparse
import ast
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from deployments.config import replica_args as args
from deployments.config import user_config as live
from deployments.config.validation import StrictModel
from deployments.pipelines.core import steps
from deployments.pipelines.serving import config as pipeline
from deployments.pipelines.serving import step_config
from sojourn.cli import COMMANDS, cli, load_command

DOCS = Path(__file__).resolve().parent.parent / "docs"
WRITTEN = "<!-- Written by scripts/reference_pages.py; a test compares it with the code. -->\n"


@dataclass(frozen=True)
class Section:
    """A mapping of the config file."""

    path: str
    model: type[BaseModel]
    #: The class whose docstring explains the keys that have no comment.
    explained_by: type | None = None


MODEL = (
    Section("args", args.ReplicaArgs),
    Section("args.model, args.models[]", args.ModelConfig),
    Section("args.model.expert", args.ExpertModelConfig),
    Section("args.store", args.StoreConfig),
    Section("args.store.expert", args.ExpertStoreConfig),
)
LIVE = (
    Section("user_config.sla", live.SLAConfig),
    Section("user_config.policy", live.PolicyConfig),
    Section("user_config.autoscaler", live.AutoscalerConfig),
    Section("user_config.autoscaler.expert", live.ExpertAutoscalerConfig),
    Section("user_config.limits", live.LimitsConfig),
    Section("user_config.limits.expert", live.ExpertLimitsConfig),
    Section("user_config.access", live.AccessConfig),
    Section("user_config.access.tokens[]", live.TokenConfig),
    Section("user_config.tracing", live.TracingConfig),
    Section("user_config.tracing.expert", live.ExpertTracingConfig),
    Section("user_config.models.NAME", live.HostedModelConfig),
)
PIPELINE = (
    Section("args.pipeline", pipeline.PipelineConfig),
    Section("args.pipeline.inputs[], outputs[]", step_config.TensorConfig),
    Section("args.pipeline.autoscaling", pipeline.AutoscalingConfig),
    Section("args.pipeline.expert", pipeline.ExpertPipelineConfig),
    Section("steps[].stage", step_config.StageConfig, steps.Stage),
    Section("steps[].stage.expert", step_config.ExpertStageConfig),
    Section("steps[].ensemble", step_config.EnsembleConfig, steps.Ensemble),
    Section("steps[].switch", step_config.SwitchConfig, steps.Switch),
    Section("steps[].switch.expert", step_config.ExpertSwitchConfig),
    Section("steps[].each", step_config.EachConfig, steps.Each),
    Section("steps[].each.expert", step_config.ExpertEachConfig),
)

#: The types of values, in words.
TYPES: dict[Any, str] = {
    bool: "`true` \\| `false`",
    float: "number",
    int: "whole number",
    Path: "path",
    str: "text",
}

CONFIG_HEAD = f"""\
# The config file

{WRITTEN}
One YAML file says what is served. It follows Ray Serve's schema: `sojourn serve FILE` takes it on
one machine, and `sojourn deploy FILE` on a cluster. This page lists the keys that are Sojourn's;
Ray's documentation explains its own. `sojourn serve --check FILE` finds an unknown key or a wrong
value, and says in one line what is allowed.

A complete file, `configs/digits.yaml`:

```yaml
{{example}}```

A change under `args` replaces the replicas, one after another. A change under `user_config`
reaches the running replicas, and none restarts ([upgrades](deploying.md#upgrades)). Keys below
`expert` are for experiments and rare needs.
"""


def config_page() -> str:
    """Return docs/config.md."""
    example = (DOCS.parent / "configs/digits.yaml").read_text()
    parts = [CONFIG_HEAD.format(example=example)]
    for title, introduction, sections in (
        (
            "What a replica is",
            "For a model, below `applications[].args`. Without a `store`, replicas start no\n"
            "manager, and use the one that you started, if they need one.",
            MODEL,
        ),
        (
            "What may change while it runs",
            "For a model, below `applications[].deployments[].user_config`. Only `sla` is\n"
            "required. Without `tracing`, no request is traced. `power_limit_w` bounds the\n"
            "power of all replicas together, in W ([a ceiling](policy.md#a-ceiling-on-the-power)).",
            LIVE,
        ),
        (
            "Pipelines",
            "An application whose `import_path` is\n"
            "`deployments.pipelines.serving.application:build` is a\n"
            "[pipeline](pipelines.md). Below its `args`, each step has exactly one of the keys\n"
            "`stage`, `ensemble`, `switch` and `each`. Its `user_config` has, as above,\n"
            "`sla`, `access`, `tracing`, and of `limits`\n"
            "`late`, `max_rows_per_request` and `max_body_bytes`. A stage with\n"
            "`place: deployment` may have `ray_actor_options`, as Ray's\n"
            "deployments have.",
            PIPELINE,
        ),
    ):
        parts.append(f"## {title}\n\n{introduction}\n")
        parts += [_section(section) for section in sections]
    return "\n".join(parts)


def _section(section: Section) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{key}` | {value} | {default} | {text} |"
        for key, value, default, text in _keys(section)
    ]
    docstring = inspect.cleandoc(section.model.__doc__ or "")
    if section.explained_by is not None:
        docstring = docstring.partition("\n")[0]
    return f"### `{section.path}`\n\n{_markdown(docstring)}\n\n" + "\n".join(rows) + "\n"


def _keys(section: Section) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, value allowed, default and meaning of each field without a section of its own."""
    meanings = field_comments(section.model)
    explained = docstring_attributes(section.explained_by) if section.explained_by else {}
    for name, field in section.model.model_fields.items():
        if _is_section(field.annotation):
            continue
        meaning = meanings.get(name) or explained.get(name)
        if meaning is None:
            sys.exit(f"{section.model.__name__}.{name}: has no comment that says what it means")
        yield name, _value(field), _default(field), _markdown(meaning)


def _is_section(annotation: Any) -> bool:
    """Return whether a key holds a mapping that another section explains."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    return len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], StrictModel)


def field_comments(model: type[BaseModel]) -> dict[str, str]:
    """Return the ``#:`` comments above the fields of a class, by field."""
    source = textwrap.dedent(inspect.getsource(model))
    lines = source.splitlines()
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for node in definition.body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        above = node.lineno - 2
        comment: list[str] = []
        while lines[above].strip().startswith("#:"):
            comment.insert(0, lines[above].strip().removeprefix("#:").strip())
            above -= 1
        if comment:
            found[node.target.id] = " ".join(comment)
    return found


def docstring_attributes(explained_by: type) -> dict[str, str]:
    """Return what the section ``Attributes`` of a NumPy-style docstring says, by attribute."""
    docstring = inspect.cleandoc(explained_by.__doc__ or "")
    _, _, section = docstring.partition("Attributes\n----------\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section.split("\n\n")[0].splitlines():
        if not line.startswith(" "):
            names = line.partition(" :")[0].split(", ")
            found |= dict.fromkeys(names, "")
        else:
            found |= {name: f"{found[name]} {line.strip()}".strip() for name in names}
    return found


def _value(field: FieldInfo) -> str:
    """Return what a field may be, in words."""
    words = _type(field.annotation)
    bounds = []
    for rule in field.metadata:
        for name, said in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
            if (bound := getattr(rule, name, None)) is not None:
                bounds.append(f"{said} {bound:g}" if bound < 1e6 else f"{said} {bound:,}")
    return ", ".join([words, *bounds])


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " \\| ".join(f"`{argument}`" for argument in arguments)
    if origin in (Union, types.UnionType):
        kinds = [_type(one) for one in arguments if one is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if origin in (list, tuple):
        one = _type(arguments[0])
        plural = one if one.startswith("`") else f"{one.removesuffix('s')}s"
        return "list of " + plural.replace("list of", "lists of")
    if origin is dict:
        return "mapping"
    # What is not of these types is a part of the config, with a section of its own.
    return TYPES.get(annotation, "mapping")


def _default(field: FieldInfo) -> str:
    return (
        "required"
        if field.is_required()
        else _literal(field.get_default(call_default_factory=True))
    )


def _literal(value: object) -> str:
    """Return a default as YAML has it; "" for an empty one, which is none."""
    if value is None or isinstance(value, BaseModel) or value in ((), {}, [], ""):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`" if value < 1e6 else f"`{value:,.0f}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"


def _markdown(text: str) -> str:
    """Return text of a docstring or a comment as Markdown; a key of a YAML file is not None."""
    return re.sub(r"``(.+?)``", r"`\1`", text).replace("None: ", "If not set: ")


def commands_page() -> str:
    """Return docs/commands.md."""
    parts = [
        f"# The commands\n\n{WRITTEN}\n"
        "Every command prints this with `--help`. An error is one line on standard error, and the\n"
        "exit status is 2.\n"
    ]
    for name in sorted(COMMANDS):
        context = click.Context(cli, info_name="sojourn")
        parts += _command(load_command(name), context, name, depth=2)
    return "\n".join(parts)


def _command(command: click.Command, parent: click.Context, name: str, depth: int) -> Iterator[str]:
    """Yield the parts of a command's section, and those of the commands below it."""
    context = click.Context(command, info_name=name, parent=parent)
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"{'#' * depth} `{context.command_path}`\n"
    yield f"```text\n{context.command_path} {pieces}\n```\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    records = [parameter.get_help_record(context) for parameter in command.params]
    options = [record for record in records if record is not None and record[1]]
    if options:
        rows = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in options]
        yield "\n".join(["| option | meaning |", "|---|---|", *rows, ""])
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from _command(found, context, below, depth + 1)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> str | None:
    """Write the pages or, with --check, report the first one that is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only check for out-of-date pages")
    check = parser.parse_args().check
    for name, content in (("config.md", config_page()), ("commands.md", commands_page())):
        page = DOCS / name
        if check and (not page.exists() or page.read_text() != content):
            return f"docs/{name} is out of date: run scripts/reference_pages.py"
        if not check:
            page.write_text(content)
    return None


if __name__ == "__main__":
    sys.exit(main())
